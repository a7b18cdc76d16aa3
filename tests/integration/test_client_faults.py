"""Both clients against an endpoint that misbehaves: one suite, over real sockets."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from typing import TypeVar

import pytest

from forewarn.client import (
    BadAnswer,
    Change,
    ChangeKind,
    EndpointRefused,
    EndpointUnreachable,
    Pace,
    PollAnswered,
    PollFailed,
)
from tests.support.drivers import DRIVERS, QUICK, SHORT, Driver, Drives
from tests.support.faulty import Act, Faulty, document, drip, event, faulty, nothing, raw, reset, says, when
from tests.support.spans import GUARD_S, lasts

T = TypeVar("T")

FIRST = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
SECOND = "F1A2E3B4-0000-4000-8000-AA5F13A16123"
GOOD = says(document(1, event()))
EMPTY = says(document(1))
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"

FAULTS: dict[str, Act] = {
    "410": says(b"", 410),
    "429": says(b'{ "error": "Too many requests" }', 429, {"retry-after": "0"}),
    "500": says(b"<html>oops</html>", 500, {"content-type": "text/html"}),
    "503": says(b"", 503),
    "empty 200": says(b""),
    "200 without Events": says(b'{"DocumentIncarnation":9}'),
    "200 with Events null": says(b'{"DocumentIncarnation":9,"Events":null}'),
    "200 with nameless events": says(b'{"DocumentIncarnation":9,"Events":[{}]}'),
    "200 of half a document": says(document(9, event(SECOND))[:-2]),
    "200 in HTML": says(b"<html></html>", headers={"content-type": "text/html"}),
    "304 to nobody": says(status=304),
    "closed without a word": raw(b""),
    "reset without a word": reset(),
    "half a status line": raw(b"HTTP/1.1 2"),
    "half of the headers": raw(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "closed in the body": raw(WHOLE % (1000, document(9))),
    "reset in the body": reset(WHOLE % (1000, document(9))),
    "no HTTP": raw(b"\x16\x03\x01\x02\x00\x01"),
    "an upgrade": raw(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"),
    "a chunk of no size": raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
    "two lengths": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}"),
    "no answer": nothing(),
    "no body": nothing(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"),
    "slow headers": drip(b"HTTP/1.1 200 OK\r\n" + b"X-Slow: x\r\n" * 200),
    "slow body": drip(WHOLE % (5000, b" " * 5000)),
    "a body without end": raw(WHOLE % (17 << 20, b" " * (17 << 20))),
}
HANGING = {"no answer", "no body", "slow headers", "slow body"}


def pace_for(fault: str) -> Pace:
    """Time-outs are short only where they are to pass: a busy machine may be slow."""
    return replace(QUICK, first_timeout_s=SHORT, timeout_s=SHORT) if fault in HANGING else QUICK


def connect_timeout_for(fault: str) -> float:
    """As above: the whole of a request may take this and its time-out."""
    return SHORT if fault in HANGING else GUARD_S


def first_of(told: Iterator[PollAnswered | PollFailed], kind: type[T]) -> T:
    """The next of that kind: where time-outs are short, a slow machine adds failures of its own."""
    return next(one for one in told if isinstance(one, kind))


@pytest.fixture(params=list(DRIVERS.values()), ids=list(DRIVERS))
def drives(request: pytest.FixtureRequest) -> Drives:
    made: Drives = request.param
    return made


@pytest.fixture
def endpoint() -> Iterator[Faulty]:
    with faulty(GOOD) as made:
        yield made


@pytest.fixture
def client(drives: Drives, endpoint: Faulty) -> Iterator[Driver]:
    with drives(endpoint.url) as made:
        yield made


def take(told: Iterator[Change], count: int) -> list[tuple[str, str]]:
    return [(change.kind.value, change.event.id) for change in islice(told, count)]


# Failures


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_as_a_failure_and_followed_by_the_document(
    drives: Drives, endpoint: Faulty, fault: str
) -> None:
    """R66, R104, R105: it is neither a document nor the end of anything, and it ends in time."""
    endpoint.script(GOOD, FAULTS[fault], GOOD)
    pace = replace(pace_for(fault), first_timeout_s=QUICK.first_timeout_s)
    with drives(endpoint.url, pace, connect_timeout_s=connect_timeout_for(fault)) as client:
        told = client.follow()
        first, missed, last = first_of(told, PollAnswered), first_of(told, PollFailed), first_of(told, PollAnswered)
    assert (missed.failures, last.is_changed, last.document) == (1, False, first.document)
    assert "\n" not in str(missed.error)
    assert str(missed.error).startswith("the metadata endpoint ")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fetch_outlives_a_fault(drives: Drives, endpoint: Faulty, fault: str) -> None:
    """R66, R104."""
    endpoint.script(FAULTS[fault], GOOD)
    with drives(endpoint.url, pace_for(fault), connect_timeout_s=connect_timeout_for(fault)) as client:
        assert [one.id for one in client.fetch().events] == [FIRST]


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        ("410", EndpointRefused, "answered 410 for its document"),
        ("429", EndpointRefused, "answered 429 for its document: Too many requests"),
        ("empty 200", BadAnswer, "answered 200, but the body is empty"),
        ("200 in HTML", BadAnswer, "answered 200, but the body is not JSON"),
        ("closed without a word", EndpointUnreachable, "does not answer: Server disconnected without"),
        ("no answer", EndpointUnreachable, "does not answer: no answer within 0."),
        ("slow headers", EndpointUnreachable, "does not answer: no answer within 0."),
        ("slow body", EndpointUnreachable, "does not answer: no answer within 0."),
        ("a body without end", EndpointUnreachable, "does not answer: the answer is longer than 16777216 bytes"),
    ],
)
def test_a_fetch_says_in_the_end_what_was_wrong(
    drives: Drives, endpoint: Faulty, fault: str, kind: type[Exception], said: str
) -> None:
    """R66, R104: once its time for retries is over."""
    endpoint.script(FAULTS[fault])
    pace = replace(pace_for(fault), retry_for_s=0)
    drive = drives(endpoint.url, pace, connect_timeout_s=connect_timeout_for(fault))
    with drive as client, pytest.raises(kind, match=said):
        client.fetch()


def test_a_refused_connection_is_asked_again(client: Driver, endpoint: Faulty) -> None:
    """R104: an endpoint that is being started anew."""
    told = client.follow()
    assert isinstance(next(told), PollAnswered)
    endpoint.refuse()
    missed = list(islice(told, 4))
    assert all(isinstance(one, PollFailed) for one in missed)
    assert str(missed[-1].error).endswith("does not answer: Connection refused")  # type: ignore[union-attr]
    endpoint.listen()
    assert any(isinstance(one, PollAnswered) for one in islice(told, 5))


def test_a_host_that_does_not_answer_is_given_up_soon(drives: Drives) -> None:
    """R104: a connection that nobody takes has a time-out of its own."""
    drive = drives("http://192.0.2.1", Pace(retry_for_s=0), connect_timeout_s=SHORT)
    with drive as client, pytest.raises(EndpointUnreachable):
        client.fetch()


def test_failures_come_further_and_further_apart(client: Driver, endpoint: Faulty) -> None:
    """R104."""
    endpoint.script(says(b"", 500))
    told = list(islice(client.follow(), 6))
    waited = [one.retry_in_s for one in told if isinstance(one, PollFailed)]
    assert len(waited) == 6
    gaps = [later.at_s - sooner.at_s for sooner, later in pairwise(endpoint.heard)]
    assert all(gap >= pause for gap, pause in zip(gaps, waited, strict=False))
    assert max(waited) <= QUICK.retry_max_s


def test_a_retry_after_is_kept_to(drives: Drives, endpoint: Faulty) -> None:
    """R104."""
    endpoint.script(says(b"", 429, {"Retry-After": "1"}), GOOD)
    with drives(endpoint.url, Pace(retry_min_s=0.01)) as client:
        client.fetch()
    refused, answered = endpoint.heard
    assert answered.at_s - refused.at_s >= 1


def test_the_first_answer_may_come_late(drives: Drives, endpoint: Faulty) -> None:
    """R67, R104: the later ones may not."""
    late = says(document(1), after_s=2 * SHORT)
    endpoint.script(late)
    with drives(endpoint.url, Pace(first_timeout_s=GUARD_S, timeout_s=SHORT, retry_for_s=0)) as client:
        client.fetch()
        with pytest.raises(EndpointUnreachable, match=r"no answer within 0\."):
            client.fetch()


def test_a_silent_endpoint_is_given_more_time_each_time(drives: Drives, endpoint: Faulty) -> None:
    """R67, R104: after a start it may need as long as for the first answer."""
    endpoint.script(EMPTY, says(document(2), after_s=2 * SHORT))
    with drives(endpoint.url, replace(QUICK, timeout_s=SHORT)) as client:
        told = list(islice(client.follow(), 6))
    assert [type(one) for one in told[:2]] == [PollAnswered, PollFailed]
    assert any(isinstance(one, PollAnswered) for one in told[2:])


# What is tolerated


@pytest.mark.parametrize(
    "body",
    [
        document(1, event(Colour="red", Weight={"kg": 5})),
        document(1, event(EventType="Defragment")),
        document(1, event(DurationInSeconds=None, EventSource=None, Description=None, NotBefore=None)),
        document(1, event(DurationInSeconds="5", NotBefore=5)),
        b"\xef\xbb\xbf" + document(1, event()),
        json.dumps(json.loads(document(1, event())), indent=4).replace("\n", "\r\n").encode(),
        b'{"Events":' + document(1, event()).partition(b'"Events": ')[2],
    ],
    ids=["members", "type", "bare", "kinds", "mark", "pretty", "no incarnation"],
)
@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "text/html; charset=latin-1", ""])
def test_a_document_may_look_otherwise(client: Driver, endpoint: Faulty, body: bytes, content_type: str) -> None:
    """R105, W2."""
    endpoint.script(says(body, headers={"content-type": content_type}))
    assert [one.id for one in client.fetch().events] == [FIRST]


@pytest.mark.parametrize(
    ("text", "year"),
    [
        ("Mon, 19 Sep 2016 18:29:47 GMT", 2016),
        ("2016-09-19T18:29:47Z", 2016),
        ("2016-09-19T18:29:47.1234567Z", 2016),
        ("2016-09-19 18:29:47", 2016),
        ("", None),
        ("soon", None),
    ],
)
def test_not_before_may_have_any_form(client: Driver, endpoint: Faulty, text: str, year: int | None) -> None:
    """R21, R36, R105."""
    endpoint.script(says(document(1, event(NotBefore=text))))
    (found,) = client.fetch().events
    assert (found.not_before.year if found.not_before else None) == year


@pytest.mark.parametrize(
    "answer",
    [
        WHOLE % (len(document(1, event())), document(1, event())),
        b"HTTP/1.1 200 OK\r\n\r\n" + document(1, event()),
        b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\n" + document(1, event()),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
        % (len(document(1, event())), document(1, event())),
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n" + document(1, event()),
        b"HTTP/1.1 200\r\nserver:IMDS\r\nServer:  again\r\nX: \xe4\r\n\r\n" + document(1, event()),
    ],
    ids=["length", "until the end", "HTTP/1.0", "chunks", "100", "headers"],
)
def test_an_answer_may_have_any_form_of_http(client: Driver, endpoint: Faulty, answer: bytes) -> None:
    """R6."""
    endpoint.script(raw(answer))
    assert [one.id for one in client.fetch().events] == [FIRST]


def test_an_incarnation_may_go_back(client: Driver, endpoint: Faulty) -> None:
    """R46, R101, R105: what counts is that it is another."""
    endpoint.script(says(document(9, event())), says(document(1)), says(document(1, event(SECOND))), says(document(1)))
    assert take(client.watch(), 4) == [
        ("prepare", FIRST),
        ("canceled", FIRST),
        ("prepare", SECOND),
        ("canceled", SECOND),
    ]


# Versions

NEWEST = ["2019-08-01", "2019-04-01", "2019-01-01"]
REFUSALS = {
    "with the newest": json.dumps(
        {
            "error": "Bad request. api-version is invalid or was not specified in the request. "
            "For more information refer to aka.ms/azureimds",
            "newest-versions": NEWEST,
        }
    ).encode(),
    "old": b'{ "error": "Bad request. api-version was not specified in the request. For more information refer to" }',
}


@pytest.mark.parametrize("status", [400, 404])
@pytest.mark.parametrize("text", [*REFUSALS.values(), b'{ "error": "Not found. Invalid version requested" }'])
@pytest.mark.parametrize("taken", ["2019-08-01", "2019-01-01", "2017-03-01"])
def test_a_version_is_found_that_the_endpoint_takes(
    client: Driver, endpoint: Faulty, status: int, text: bytes, taken: str
) -> None:
    """R15, R20, R64: for documents and for approvals, and kept to."""
    named = document(1, event(Resources=["_vm-1"]))
    endpoint.script(
        when(
            lambda heard: heard.version != taken,
            says(text, status),
            when(lambda heard: heard.method == "POST", says(), says(named)),
        )
    )
    (found,) = client.fetch().events
    assert found.resources == (("vm-1",) if taken == "2017-03-01" else ("_vm-1",))
    asked = len(endpoint.heard)
    assert asked <= 7
    client.approve(found)
    assert client.version == taken
    assert [(heard.method, heard.version) for heard in endpoint.heard[asked:]] == [("POST", taken)]


def test_an_endpoint_without_any_version_is_an_error(client: Driver, endpoint: Faulty) -> None:
    """R15: each version was tried once."""
    endpoint.script(says(REFUSALS["old"], 400))
    with pytest.raises(EndpointRefused, match=r"answered 400 for its document: Bad request\. api-version"):
        client.fetch()
    assert len(endpoint.heard) == 7


# Approvals


def test_an_approval_outlives_faults(drives: Drives, endpoint: Faulty) -> None:
    """R49, R104: a lost answer is asked for again."""
    endpoint.script(reset(), FAULTS["closed in the body"], says(b"", 503), nothing(), says())
    with drives(endpoint.url, replace(QUICK, first_timeout_s=SHORT)) as client:
        client.approve([FIRST, SECOND])
    bodies = {heard.body for heard in endpoint.asked("POST")}
    assert len(endpoint.heard) >= 5
    assert [json.loads(body) for body in bodies] == [{"StartRequests": [{"EventId": FIRST}, {"EventId": SECOND}]}]


def test_an_approval_that_nobody_answers_ends(drives: Drives, endpoint: Faulty) -> None:
    """R104: within its time for retries and one time-out, not after dozens of them."""
    endpoint.script(nothing())
    pace = replace(QUICK, first_timeout_s=SHORT, retry_for_s=1.5 * SHORT)
    with drives(endpoint.url, pace) as client, pytest.raises(EndpointUnreachable):
        client.approve(FIRST)
    assert len(endpoint.heard) <= 2


def test_a_refused_approval_is_not_repeated(client: Driver, endpoint: Faulty) -> None:
    """R55: asking again would change nothing."""
    endpoint.script(says(b'{ "error": "Bad request: . EventId is not known" }', 400))
    with pytest.raises(EndpointRefused, match=r"answered 400 for an approval: Bad request: \. EventId is not known"):
        client.approve(FIRST)
    assert len(endpoint.heard) == 1


def test_approving_nothing_sends_nothing(client: Driver, endpoint: Faulty) -> None:
    """A12."""
    client.approve([])
    assert endpoint.heard == []


def test_a_watch_can_approve_and_fetch_in_between(client: Driver, endpoint: Faulty) -> None:
    """R100, R104: no change is lost by it."""
    endpoint.script(
        says(document(1)),
        says(document(2, event())),
        says(),
        says(document(3, event(), event(SECOND))),
        says(document(3, event(), event(SECOND))),
        says(document(4)),
    )
    told = []
    for change in client.watch():
        told.append((change.kind, change.event.id))
        if change.kind is ChangeKind.PREPARE and len(told) == 1:
            client.approve(change.event)
            assert len(client.fetch().events) == 2
        if len(told) == 4:
            break
    prepare, canceled = ChangeKind.PREPARE, ChangeKind.CANCELED
    assert told == [(prepare, FIRST), (prepare, SECOND), (canceled, FIRST), (canceled, SECOND)]


# Connections


def test_one_connection_is_kept(client: Driver, endpoint: Faulty) -> None:
    """R6, R97."""
    list(islice(client.follow(), 5))
    client.approve(FIRST)
    assert endpoint.connections == 1


@pytest.mark.parametrize("headers", [{"connection": "close"}, {}], ids=["said", "unsaid"])
def test_an_endpoint_may_close_the_connection_between_polls(
    drives: Drives, endpoint: Faulty, headers: dict[str, str]
) -> None:
    """R6, W3: whether it says so or not, no poll fails and no approval is lost."""

    def closes(turn: object) -> bool:
        says(document(1, event()), headers=headers)(turn)  # type: ignore[arg-type] # a turn, as acts have it
        return False

    endpoint.script(closes)
    with drives(endpoint.url, replace(QUICK, poll_interval_s=0.1)) as client:
        assert [type(one) for one in islice(client.follow(), 4)] == [PollAnswered] * 4
        time.sleep(0.1)
        client.approve(FIRST)
    assert endpoint.connections == 5


def test_no_proxy_is_asked(drives: Drives, endpoint: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    """R104: metadata addresses are local; a proxy would ask for another VM."""
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with drives(endpoint.url) as client:
        assert client.fetch().events
        client.approve(FIRST)
    assert len(endpoint.heard) == 2


def test_every_request_is_one_of_the_protocol(client: Driver, endpoint: Faulty) -> None:
    """R10, R13, R47."""
    client.fetch()
    client.approve(FIRST)
    for heard in endpoint.heard:
        assert heard.headers["metadata"] == "true"
        assert heard.headers["host"] == f"127.0.0.1:{endpoint.port}"
        assert heard.headers["user-agent"].startswith("forewarn/")
        assert "x-forwarded-for" not in heard.headers
    get, post = endpoint.heard
    assert "content-length" not in get.headers
    assert post.headers["content-length"] == str(len(post.body))
    assert "transfer-encoding" not in post.headers


# Held requests


def test_a_dead_endpoint_that_holds_a_request_is_found_out(drives: Drives, endpoint: Faulty) -> None:
    """X1, R104: then it is polled, so that the next silence does not last as long."""
    endpoint.script(EMPTY, when(lambda heard: heard.is_conditional, nothing(), GOOD))
    pace = replace(QUICK, wait_s=1, timeout_s=SHORT)
    with lasts(1), drives(endpoint.url, pace) as client:
        told = client.follow()
        first_of(told, PollAnswered)
        first_of(told, PollFailed)
        for _ in range(3):
            first_of(told, PollAnswered)
    assert [heard.is_conditional for heard in endpoint.heard[:5]] == [False, True, False, False, False]


def test_an_endpoint_that_does_not_hold_is_not_asked_in_a_loop(drives: Drives, endpoint: Faulty) -> None:
    """X1, R97: as an endpoint that knows If-None-Match, and one that claims to hold."""
    for headers in ({}, {"preference-applied": "wait"}):
        endpoint.script(GOOD, when(lambda heard: heard.is_conditional, says(status=304, headers=headers), GOOD))
        with lasts(0.29), drives(endpoint.url, Pace(poll_interval_s=0.1, wait_s=20)) as client:
            list(islice(client.follow(), 5))


def test_a_held_request_that_is_cut_loses_no_change(drives: Drives, endpoint: Faulty) -> None:
    """X1, R100: the answer that was lost is asked for again, outright."""
    answer = WHOLE % (5000, document(2, event()))
    endpoint.script(EMPTY, reset(answer), when(lambda heard: heard.is_conditional, says(status=304), GOOD))
    with drives(endpoint.url, Pace(poll_interval_s=0.02, wait_s=20, retry_min_s=0.01)) as client:
        assert take(client.watch(), 1) == [("prepare", FIRST)]
    assert [heard.is_conditional for heard in endpoint.heard] == [False, True, False]
