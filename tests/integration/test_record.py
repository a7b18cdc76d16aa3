"""`forewarn record`: what an endpoint shows is written down, failures included."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from forewarn.errors import LimitExceeded
from forewarn.testing.transcript.transcript import EndReason, RequestFailure, Transcript, load_transcript
from tests.support.faulty import document, event, faulty, nothing, reset, says
from tests.support.service import Running
from tests.support.spans import GUARD_S
from tests.support.transcripts import PATIENT, Recording, live, record
from tests.support.wire import LATEST

PATIENT_TO_A_POINT = replace(PATIENT, first_timeout_s=3.0, timeout_s=3.0)
"""For an endpoint that says nothing at last."""


@pytest.fixture(scope="module")
def lived(service: Running, tmp_path_factory: pytest.TempPathFactory) -> tuple[Transcript, str]:
    """The transcript of a maintenance that is approved, starts and ends; and the id of its event."""
    return live(service, service.vm(), tmp_path_factory.mktemp("lived") / "t.jsonl")


def test_a_maintenance_is_recorded_from_end_to_end(lived: tuple[Transcript, str]) -> None:
    transcript, event_id = lived
    documents = [entry.parse_document(LATEST) for entry in transcript.entries]
    told = [[(e.id == event_id, e.status) for e in each.events] for each in documents if each is not None]
    assert told == [[], [(True, "Scheduled")], [(True, "Started")], []]
    assert transcript.end_reason is EndReason.SIGNAL
    assert transcript.request_count is not None
    assert transcript.request_count >= 4
    assert {"content-type", "etag", "date"} <= transcript.entries[0].headers.keys()


def test_only_gets_are_sent_and_none_is_conditional(tmp_path: Path) -> None:
    with faulty(says(document(1))) as endpoint:
        record(endpoint.url, tmp_path / "t.jsonl", lambda _: len(endpoint.heard) > 2)
    assert {heard.method for heard in endpoint.heard} == {"GET"}
    assert not any(heard.is_conditional or "prefer" in heard.headers for heard in endpoint.heard)
    assert all(heard.headers["metadata"] == "true" for heard in endpoint.heard)


def test_failures_are_recorded_each_once(tmp_path: Path) -> None:
    acts = [says(document(1)), says(b"", 503), says(b"", 503), says(b"\xff\xfe"), reset(), nothing()]
    with faulty(*acts) as endpoint:
        transcript = record(endpoint.url, tmp_path / "t.jsonl", lambda made: len(made.entries) > 4, PATIENT_TO_A_POINT)
    told = [(entry.status, entry.failure) for entry in transcript.entries]
    expected: list[tuple[int, RequestFailure | None]] = [
        (200, None),
        (503, None),
        (200, None),
        (0, RequestFailure.BROKEN),
        (0, RequestFailure.TIME_OUT),
    ]
    assert told == expected
    assert transcript.entries[2].body == b"\xff\xfe"


def test_an_endpoint_that_is_not_there_is_recorded_too(tmp_path: Path) -> None:
    with faulty() as endpoint:
        url = endpoint.url
    asyncio.run(Recording(url, tmp_path / "t.jsonl").run(for_s=2.0))
    transcript = load_transcript(tmp_path / "t.jsonl")
    assert [entry.failure for entry in transcript.entries] == [RequestFailure.NO_CONNECTION]
    assert transcript.end_reason is EndReason.TIME


def test_neither_address_nor_host_name_is_written_by_us(tmp_path: Path) -> None:
    with faulty(says(document(1)), reset()) as endpoint:
        record(endpoint.url, tmp_path / "t.jsonl", lambda made: len(made.entries) > 1)
    text = (tmp_path / "t.jsonl").read_text()
    assert "127.0.0.1" not in text
    assert f":{endpoint.port}" not in text


def test_a_full_transcript_ends_with_a_last_line_and_says_so(tmp_path: Path) -> None:
    acts = [says(document(number, event(Description="x" * 200))) for number in range(1, 60)]
    with faulty(*acts) as endpoint, pytest.raises(LimitExceeded, match="the transcript is full after"):
        asyncio.run(Recording(endpoint.url, tmp_path / "t.jsonl", size_bytes_max=4096).run(for_s=GUARD_S))
    assert (tmp_path / "t.jsonl").stat().st_size <= 4096
    assert load_transcript(tmp_path / "t.jsonl").end_reason is EndReason.SIZE
