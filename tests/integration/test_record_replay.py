"""`forewarn replay`: what was recorded is served again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from forewarn.client import Client, EndpointUnreachable, Pace
from forewarn.clock import VIRTUAL_START
from forewarn.errors import ConfigError
from forewarn.testing.transcript.transcript import RequestFailure, Transcript, TranscriptEntry, load_transcript
from forewarn.testing.transcript.transcript_replay import ReplayServer
from forewarn.wire import imds
from tests.support.faulty import document, event
from tests.support.service import Running, eventually
from tests.support.showings import BEGAN
from tests.support.showings import transcript as transcript_of
from tests.support.spans import GUARD_S
from tests.support.transcripts import PATIENT, live, recording, replayed, stepped, wait_for_entries
from tests.support.wire import Wire, approval, get, post

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lived(service: Running, tmp_path_factory: pytest.TempPathFactory) -> tuple[Transcript, str]:
    """The transcript of a maintenance that is approved, starts and ends; and the id of its event."""
    return live(service, service.vm(), tmp_path_factory.mktemp("lived") / "t.jsonl")


def test_a_client_sees_in_the_replay_what_it_saw_of_the_service(lived: tuple[Transcript, str], tmp_path: Path) -> None:
    """A recording of the replay is the recording of the service."""
    transcript, _ = lived
    path = tmp_path / "second.jsonl"
    with stepped(transcript) as (url, _, advance), recording(url, path, pace=PATIENT) as made:
        before_s = 0.0
        for count, entry in enumerate(transcript.entries, start=1):
            advance(entry.at_s - before_s)
            before_s = entry.at_s
            wait_for_entries(made, count)
    again = load_transcript(path)
    assert len(again.entries) == len(transcript.entries)
    for one, other in zip(transcript.entries, again.entries, strict=True):
        assert other.has_same_content(one)


def test_approvals_are_taken_and_told(lived: tuple[Transcript, str]) -> None:
    """R47, R54."""
    transcript, event_id = lived
    stranger = "00000000-0000-4000-8000-000000000000"
    scheduled = transcript_of(transcript.entries[1], end_s=1000.0)
    with replayed(scheduled) as (url, approved):
        with Client(url) as client:
            assert [each.id for each in client.fetch().events] == [event_id]
            client.approve(event_id)
            client.approve(stranger)
        with wire_to(url) as wire:
            assert wire.ask(post(b"{}")).status == 400
            answer = wire.ask(post(approval(event_id), version="2019-08-01"))
            assert (answer.status, answer.body) == (200, b"")
    told = [(each.event_id, each.is_shown) for each in approved]
    assert told == [(event_id, True), (stranger, False), (event_id, True)]


def test_an_approval_while_nothing_is_answered_is_of_what_was_shown_before(lived: tuple[Transcript, str]) -> None:
    transcript, event_id = lived
    shown = replace(transcript.entries[1], at_s=0.0)
    silent = transcript_of(shown, TranscriptEntry(at_s=0.01, failure=RequestFailure.TIME_OUT), end_s=1000.0)
    with stepped(silent) as (url, approved, advance), wire_to(url) as wire:
        advance(0.01)
        assert wire.ask(post(approval(event_id))).status == 200
    assert [each.is_shown for each in approved] == [True]


def test_a_replay_refuses_what_every_endpoint_refuses(lived: tuple[Transcript, str]) -> None:
    """R4, R10, R15."""
    transcript, _ = lived
    with replayed(transcript) as (url, _), wire_to(url) as wire:
        assert wire.ask(get(version="2017-08-01")).status == 400
        assert wire.ask(get().replace(b"Metadata: true\r\n", b"")).status == 400
        assert wire.ask(get().replace(b"scheduledevents", b"somethingelse")).status == 404
        assert wire.ask(get().replace(b"GET", b"PUT", 1)).headers["allow"] == "GET, POST"
        assert wire.ask(get()).status == 200


@pytest.mark.parametrize(
    ("header", "body"),
    [
        pytest.param(b"X-Forwarded-For: 10.0.0.1\r\n", imds.FORWARDED, id="X-Forwarded-For"),
        pytest.param(b"Origin: http://a.example\r\n", imds.ORIGIN_REFUSED, id="Origin"),
        pytest.param(b"Host: a.example\r\n", imds.HOST_REFUSED, id="second Host"),
        pytest.param(b"Metadata: false\r\n", imds.METADATA_MISSING, id="contradictory Metadata"),
    ],
)
@pytest.mark.parametrize("request_of", [get, lambda: post(approval("A"))], ids=["GET", "POST"])
def test_a_replay_refuses_senders_that_the_service_refuses(
    header: bytes,
    body: bytes,
    request_of: Callable[[], bytes],
    lived: tuple[Transcript, str],
    service: Running,
) -> None:
    """R10, R13."""
    head, _, rest = request_of().partition(b"\r\n")
    sent = head + b"\r\n" + header + rest
    with replayed(lived[0]) as (url, approved), wire_to(url) as wire, service.wire(service.vm()) as other:
        replay, serve = wire.ask(sent), other.ask(sent)
    assert (replay.status, replay.body) == (serve.status, serve.body) == (400, body)
    assert approved == []


def test_a_replay_refuses_requests_that_the_service_refuses(lived: tuple[Transcript, str], service: Running) -> None:
    """R5, R13: a name that is not the endpoint's, a repeated parameter, a page's request, a body that is too large."""
    large = b"x" * ((256 << 10) + 1)
    sent = (
        get().replace(b"Host: 169.254.169.254", b"Host: a.example"),
        get().replace(b" HTTP/1.1", b"&api-version=2020-07-01 HTTP/1.1"),
        get(version="2017-03-01").replace(b"Metadata: true\r\n", b"Referer: http://a.example/\r\n"),
        post(large),
    )
    with replayed(lived[0]) as (url, _):
        for request in sent:
            with wire_to(url) as wire, service.wire(service.vm()) as other:
                replay, serve = wire.ask(request), other.ask(request)
            assert (replay.status, replay.body) == (serve.status, serve.body)
            assert replay.status in {400, 413}


def test_a_client_finds_the_api_version_that_was_recorded() -> None:
    """R15."""
    entry = TranscriptEntry(at_s=0, status=200, body=document(7))
    old = Transcript(api_version="2019-04-01", began=BEGAN, interval_s=1.0, entries=(entry,), end_s=9.0)
    with replayed(old) as (url, _), Client(url) as client:
        assert client.fetch().incarnation == 7
        assert client.version == "2019-04-01"


def test_failures_are_replayed_as_what_they_were() -> None:
    """R66."""
    entries = [
        TranscriptEntry(at_s=0.0, status=503, headers={"retry-after": "2"}, body=b"{}"),
        TranscriptEntry(at_s=1.0, status=200, headers={"content-type": "application/json"}),
        TranscriptEntry(at_s=2.0, failure=RequestFailure.NO_CONNECTION),
        TranscriptEntry(at_s=3.0, failure=RequestFailure.TIME_OUT),
        TranscriptEntry(at_s=5.0, status=200, body=document(1)),
    ]
    with stepped(transcript_of(*entries, end_s=6.0)) as (url, _, advance):
        with wire_to(url) as wire:
            first = wire.ask(get())
            assert (first.status, first.headers["retry-after"]) == (503, "2")
            advance(1.4)
            assert wire.ask(get()).body == b""
            advance(1.0)
            wire.send(get())
            with pytest.raises(ConnectionResetError):
                wire.sock.recv(1)
        advance(1.0)
        with wire_to(url) as wire:
            wire.send(get())
            wire.sock.settimeout(0.3)
            with pytest.raises(TimeoutError):
                wire.sock.recv(1)
            wire.sock.settimeout(GUARD_S)
            advance(1.6)
            with pytest.raises(ConnectionResetError):
                wire.sock.recv(1)
        with wire_to(url) as wire:
            assert wire.ask(get()).body == document(1)


def test_a_time_out_is_one_for_the_client() -> None:
    held = transcript_of(TranscriptEntry(at_s=0.0, failure=RequestFailure.TIME_OUT), end_s=1.0)
    pace = Pace(first_timeout_s=0.2, timeout_s=0.2, retry_for_s=0)
    with replayed(held) as (url, _), Client(url, pace=pace) as client, pytest.raises(EndpointUnreachable) as caught:
        client.fetch()
    assert caught.value.details["timed_out"]


def test_the_end_is_told_and_the_last_answer_stays() -> None:
    ends: list[float] = []
    entries = [
        TranscriptEntry(at_s=0.0, status=200, body=document(1)),
        TranscriptEntry(at_s=2.0, status=200, body=document(2)),
    ]
    with stepped(transcript_of(*entries, end_s=4.0), on_end=lambda: ends.append(0)) as (url, _, advance):
        advance(8.0)
        assert eventually(lambda: len(ends) == 1)
        with Client(url) as client:
            assert client.fetch().incarnation == 2
    assert len(ends) == 1


def test_a_loop_begins_again() -> None:
    ends: list[float] = []
    entries = [
        TranscriptEntry(at_s=0.0, status=200, body=document(1)),
        TranscriptEntry(at_s=5.0, status=200, body=document(2)),
    ]
    looped = transcript_of(*entries, end_s=10.0)
    seen: list[int | None] = []
    with (
        stepped(looped, is_loop=True, on_end=lambda: ends.append(0)) as (url, _, advance),
        Client(url) as client,
    ):
        for _ in range(4):
            seen.append(client.fetch().incarnation)
            advance(4.0)
        assert eventually(lambda: len(ends) == 1)
    assert seen == [1, 1, 2, 1]


def test_notbefore_can_be_moved_to_now() -> None:
    """As much is left as was then, at this speed; nothing else is touched, and it is the same at each look."""
    now = datetime(2040, 5, 5, 5, 5, 5, tzinfo=UTC)
    body = document(1, event(NotBefore="Tue, 01 Jan 2030 00:15:00 GMT"), event(NotBefore=""))
    later = TranscriptEntry(at_s=60.0, status=200, body=body + b" ")
    shown = transcript_of(TranscriptEntry(at_s=0.0, status=200, body=body), later, end_s=1000.0)
    moved = body.replace(b"Tue, 01 Jan 2030 00:15:00 GMT", b"Sat, 05 May 2040 05:05:14 GMT")
    begun = replace(shown, began=VIRTUAL_START)
    with stepped(begun, get_time=lambda: now, speed=100.0) as (url, _, advance), wire_to(url) as wire:
        assert wire.ask(get()).body == moved
        advance(60.0)
        assert wire.ask(get()).body == moved + b" "
    with replayed(shown) as (url, _), wire_to(url) as wire:
        assert wire.ask(get()).body == body


def test_what_cannot_be_replayed_is_refused() -> None:
    with pytest.raises(ConfigError, match="no answers"):
        ReplayServer(transcript_of(end_s=1.0))
    with pytest.raises(ConfigError, match="choose a lower speed"):
        ReplayServer(transcript_of(TranscriptEntry(at_s=0.0, status=200), end_s=1.0), speed=60.0, is_loop=True)


def wire_to(url: str) -> Wire:
    host, _, port = url.removeprefix("http://").partition(":")
    return Wire((host, int(port)), "127.0.0.1")
