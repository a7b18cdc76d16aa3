"""The driver for threads, over a transport of our own: what it sends, how long it sleeps, what it hands on."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable

import pytest

from forewarn.client import (
    BadAnswer,
    ChangeKind,
    Client,
    EndpointRefused,
    EndpointUnreachable,
    Event,
    Pace,
    PollAnswered,
    PollFailed,
)
from forewarn.client.deadline import never_cancelled
from forewarn.client.exchange import HttpAnswer, HttpRequest
from forewarn.client.transport import check_url
from forewarn.errors import ConfigError
from tests.unit.client.builders import AWAY, FIRST, SECOND, Step, event, ok, refused, same


class Scripted:
    """A transport that answers from a script, and keeps what was asked."""

    def __init__(self, *script: Step) -> None:
        self.script = list(script)
        self.requests: list[HttpRequest] = []
        self.given_up: list[bool] = []
        self.is_closed = False

    def send(self, request: HttpRequest, is_cancelled: Callable[[], bool] = never_cancelled) -> HttpAnswer:
        self.given_up.append(is_cancelled())
        self.requests.append(request)
        step = self.script.pop(0)
        if isinstance(step, EndpointUnreachable):
            raise step
        return step

    def close(self) -> None:
        self.is_closed = True


def client(transport: Scripted, slept: list[float] | None = None) -> Client:
    return Client(transport=transport, chance=lambda: 1.0, sleep=(slept if slept is not None else []).append)


def test_a_document_is_fetched_with_patience() -> None:
    """R104."""
    transport, slept = Scripted(AWAY, refused(410), ok(3, event())), list[float]()
    assert client(transport, slept).fetch().events == (event(),)
    assert slept == [0.5, 1.0]


def test_errors_come_out_as_such() -> None:
    """R104, R105."""
    with pytest.raises(EndpointRefused):
        client(Scripted(refused(400))).fetch()
    with pytest.raises(BadAnswer):
        Client(transport=Scripted(HttpAnswer(status=200)), pace=Pace(retry_for_s=0)).fetch()
    with pytest.raises(EndpointUnreachable):
        client(Scripted(AWAY)).fetch_name()


def test_events_are_approved_as_such_or_by_id() -> None:
    """R47, R52: each once."""
    transport = Scripted(HttpAnswer(status=200))
    client(transport).approve([event(), SECOND, FIRST])
    assert json.loads(transport.requests[0].body) == {"StartRequests": [{"EventId": FIRST}, {"EventId": SECOND}]}


@pytest.mark.parametrize("one", [event(), FIRST], ids=["event", "id"])
def test_a_single_event_is_approved_as_such_or_by_its_id(one: Event | str) -> None:
    """R47: an id is not taken for many."""
    transport = Scripted(HttpAnswer(status=200))
    client(transport).approve(one)
    assert json.loads(transport.requests[0].body) == {"StartRequests": [{"EventId": FIRST}]}


def test_approving_nothing_does_nothing() -> None:
    """A12."""
    transport = Scripted()
    client(transport).approve([])
    assert transport.requests == []


def test_a_watch_goes_on_for_as_long_as_it_is_read() -> None:
    """R100, R104: and approves in between over the same transport."""
    transport = Scripted(
        ok(1), ok(2, event()), HttpAnswer(status=200), same(), AWAY, ok(3, event(status="Started")), ok(4)
    )
    slept: list[float] = []
    talk = client(transport, slept)
    kinds = []
    for change in talk.watch():
        kinds.append(change.kind)
        if change.kind is ChangeKind.PREPARE:
            talk.approve(change.event)
        if change.kind is ChangeKind.RECOVERED:
            break
    assert kinds == [ChangeKind.PREPARE, ChangeKind.STARTED, ChangeKind.RECOVERED]
    assert slept == [0.5]


def test_every_answer_and_failure_is_told_to_who_follows() -> None:
    """R101."""
    told = client(Scripted(ok(), AWAY, ok())).follow()
    assert [type(next(told)) for _ in range(3)] == [PollAnswered, PollFailed, PollAnswered]


def test_a_client_closes_what_it_opened() -> None:
    transport = Scripted(ok())
    with client(transport) as talk:
        talk.fetch()
        assert talk.version == "2020-07-01"
        assert not transport.is_closed
    assert transport.is_closed


# Stopping


def test_a_watch_that_is_stopped_before_it_begins_asks_nothing() -> None:
    """R100."""
    transport, stop = Scripted(), threading.Event()
    stop.set()
    assert list(client(transport).watch(stop)) == []
    assert transport.requests == []


def test_a_watch_ends_in_the_pause_in_which_it_is_stopped() -> None:
    """R100, R104: what it has told is not lost, and nothing is asked afterwards."""
    transport, stop = Scripted(ok(1, event()), AWAY), threading.Event()
    talk = Client(
        transport=transport, pace=Pace(wait_s=0), sleep=lambda _: stop.set() if not transport.script else None
    )
    assert [change.kind for change in talk.watch(stop)] == [ChangeKind.PREPARE]
    assert len(transport.requests) == 2


def test_a_request_that_is_given_up_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    """R104: neither the log nor who follows is told that the endpoint was away."""
    stop = threading.Event()

    class Given(Scripted):
        def send(self, request: HttpRequest, is_cancelled: Callable[[], bool] = never_cancelled) -> HttpAnswer:
            stop.set()
            assert is_cancelled()
            return super().send(request)

    with caplog.at_level(logging.INFO, "forewarn.client"):
        for told in (client(Given(AWAY)).watch(stop), client(Given(AWAY)).follow(stop)):
            assert list(told) == []
            stop.clear()
    assert caplog.messages == []


def test_a_client_that_is_closed_asks_nothing_any_more() -> None:
    transport = Scripted()
    talk = client(transport)
    talk.close()
    assert list(talk.watch()) == []
    assert list(talk.follow()) == []
    for call in (talk.fetch, talk.fetch_name, lambda: talk.approve(FIRST)):
        with pytest.raises(EndpointUnreachable, match=r"^the client is closed$"):
            call()
    assert transport.requests == []


def test_what_is_under_way_when_the_client_is_closed_is_not_tried_again() -> None:
    """R104: whether it was approved is not known."""
    transport = Scripted(AWAY)
    talk = Client(transport=transport, sleep=lambda _: talk.close())
    with pytest.raises(EndpointUnreachable, match=r"^the client is closed$"):
        talk.approve(FIRST)
    assert len(transport.requests) == 1


# Addresses


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://169.254.169.254", "http://169.254.169.254"),
        ("http://127.0.0.1:8169/", "http://127.0.0.1:8169"),
        ("https://[fd00::1]:8443", "https://[fd00::1]:8443"),
        ("http://metadata/prefix/", "http://metadata/prefix"),
    ],
)
def test_a_url_names_an_http_server(url: str, expected: str) -> None:
    assert check_url(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        *["", "169.254.169.254", "ftp://host", "http://", "http://user@host", "http://host?x=1", "http://host#x"],
        *["http://host:0", "http://host:99999", "http://host:x", "http://[::1", "http://a b", "http://host/a b"],
        *["http://host\n", "http://höst", "http://a..b", f"http://{'a' * 64}.com", "http://host/ä"],
    ],
)
def test_what_names_no_http_server_is_refused_at_once(url: str) -> None:
    """A watch would go on for ever about it."""
    with pytest.raises(ConfigError, match="is not an endpoint: expected for example http://169"):
        Client(url)
