"""Transcripts: what is written is read again, and what is no transcript is refused with its line."""

from __future__ import annotations

import contextlib
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.errors import ConfigError, LimitExceeded
from forewarn.testing.transcript.transcript import (
    SIZE_BYTES_MAX,
    EndReason,
    RequestFailure,
    Transcript,
    TranscriptEntry,
    TranscriptWriter,
    load_transcript,
    read_transcript,
)

BEGAN = datetime(2030, 1, 1, 12, 0, 0, 250_000, tzinfo=UTC)
VERSION = "2020-07-01"
HEAD = {"forewarn_transcript": 1, "api_version": VERSION, "began": "2030-01-01T12:00:00.25Z", "interval_s": 1.0}
OK = {"at_s": 1.0, "status": 200, "headers": {}, "body": "{}"}
END = {"end_s": 9.0, "reason": "time", "asked": 3}


class Disk(io.BytesIO):
    """A file of which a test looks at the content; what has no descriptor is not flushed to a disk."""

    def seekable(self) -> bool:
        return False


def written(*entries: TranscriptEntry, end: bool = True, **options: Any) -> bytes:  # noqa: ANN401 - of the writer
    disk = Disk()
    writer = TranscriptWriter(disk, api_version=VERSION, began=BEGAN, interval_s=1.0, **options)
    for entry in entries:
        writer.add_entry(entry)
    if end:
        writer.write_end(100.0, EndReason.TIME, 42)
    return disk.getvalue()


def read(content: bytes) -> Transcript:
    return read_transcript(io.BytesIO(content), "t.jsonl")


def lines(*each: object) -> bytes:
    return b"".join((one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in each)


# Writing and reading


def test_the_first_line_describes_and_the_last_one_ends() -> None:
    first, last = written().splitlines()
    assert json.loads(first) == HEAD | {"began": "2030-01-01T12:00:00.250000Z"}
    assert json.loads(last) == {"end_s": 100.0, "reason": "time", "asked": 42}


def test_an_answer_is_one_line() -> None:
    entry = TranscriptEntry(at_s=1.23456, took_s=0.001, status=200, headers={"etag": '"1"'}, body=b'{"a":"\xc3\xa9"}')
    line = json.loads(written(entry).splitlines()[1])
    assert line == {"at_s": 1.235, "took_s": 0.001, "status": 200, "headers": {"etag": '"1"'}, "body": '{"a":"é"}'}


def test_what_is_no_text_is_kept_as_base64() -> None:
    line = json.loads(written(TranscriptEntry(at_s=0, status=200, body=b"\xff\x00")).splitlines()[1])
    assert line["body_base64"] == "/wA="
    assert "body" not in line


def test_what_says_the_same_is_written_once() -> None:
    again = [
        TranscriptEntry(at_s=0, status=200, body=b"{}", headers={"date": "a"}),
        TranscriptEntry(at_s=1, took_s=1, status=200, body=b"{}", headers={"date": "b"}),
        TranscriptEntry(at_s=2, status=200, body=b"{} "),
        TranscriptEntry(at_s=3, failure=RequestFailure.TIME_OUT),
        TranscriptEntry(at_s=9, failure=RequestFailure.TIME_OUT),
        TranscriptEntry(at_s=10, failure=RequestFailure.BROKEN),
        TranscriptEntry(at_s=11, status=200, body=b"{} "),
    ]
    assert [entry.at_s for entry in read(written(*again)).entries] == [0, 2, 3, 10, 11]


_HEADERS = st.dictionaries(st.sampled_from(["content-type", "etag", "retry-after"]), st.sampled_from(["", "a", "é\t"]))
_ANSWERS = st.builds(
    TranscriptEntry,
    at_s=st.just(0.0),
    took_s=st.integers(0, 100_000).map(lambda ms: ms / 1000),
    status=st.integers(200, 599),
    headers=_HEADERS,
    body=st.binary(max_size=40) | st.text(max_size=40).map(str.encode),
)
_FAILURES = st.builds(TranscriptEntry, at_s=st.just(0.0), failure=st.sampled_from(RequestFailure))


@given(st.lists(_ANSWERS | _FAILURES, max_size=8))
def test_what_is_written_is_read_again(entries: list[TranscriptEntry]) -> None:
    kept = [one for one, before in zip(entries, [None, *entries], strict=False) if not one.has_same_content(before)]
    transcript = read(written(*entries))
    assert transcript.entries == tuple(kept)
    assert (transcript.began, transcript.end_s, transcript.end_reason) == (BEGAN, 100.0, EndReason.TIME)


def test_a_recorder_that_did_not_end_has_written_what_it_saw() -> None:
    entry = TranscriptEntry(at_s=5.0, took_s=0.5, status=200, body=b"{}")
    transcript = read(written(entry, end=False))
    assert transcript.entries == (entry,)
    assert (transcript.end_s, transcript.end_reason) == (5.5, None)


@given(st.integers(0, 10_000))
def test_a_transcript_that_was_cut_off_anywhere_has_what_was_whole(cut: int) -> None:
    entries = [TranscriptEntry(at_s=n, status=200, body=b'{"n":%d}' % n) for n in range(5)]
    whole = written(*entries)
    head = whole.index(b"\n")
    content = whole[: head + 1 + cut % (len(whole) - head)]
    transcript = read(content)
    assert transcript.entries == tuple(entries[: len(transcript.entries)])
    assert len(transcript.entries) >= min(content.count(b"\n") - 1, 5)


def test_a_full_file_takes_no_more_and_keeps_room_for_its_end() -> None:
    disk = Disk()
    writer = TranscriptWriter(disk, api_version=VERSION, began=BEGAN, interval_s=1.0, size_bytes_max=2000)
    entries = [TranscriptEntry(at_s=n, status=200, body=b"%d" % n) for n in range(100)]
    with pytest.raises(LimitExceeded, match=r"full after \d+ bytes and \d+ answers: the limit is 2000 bytes"):
        any(not writer.add_entry(entry) for entry in entries)
    writer.write_end(100.0, EndReason.SIZE, 100)
    assert len(disk.getvalue()) <= 2000
    assert read(disk.getvalue()).end_reason is EndReason.SIZE


def test_a_disk_that_takes_little_at_a_time_gets_all_of_it() -> None:
    class Slow(Disk):
        def write(self, data: Any) -> int:  # noqa: ANN401 - any buffer
            return super().write(bytes(data)[:7])

    disk = Slow()
    TranscriptWriter(disk, api_version=VERSION, began=BEGAN, interval_s=1.0).write_end(1.0, EndReason.TIME, 0)
    assert read(disk.getvalue()).end_s == 1.0


# What is no transcript


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", r"t\.jsonl:1: not a transcript: the first line must begin"),
        (b"\n", r"t\.jsonl:1: not a transcript"),
        (b"hello\n", r"t\.jsonl:1: not a transcript"),
        (b"[1]\n", r"t\.jsonl:1: not a transcript"),
        (b"\0" * 100, r"t\.jsonl:1: not a transcript"),
        (b'{"forewarn_tran', r"t\.jsonl:1: not valid JSON"),
        (lines({"a": 1}), r"t\.jsonl:1: not a transcript"),
        (lines(HEAD | {"forewarn_transcript": 2}), r"t\.jsonl:1: unsupported format version 2: expected 1"),
        (lines(HEAD | {"forewarn_transcript": "x"}), r"t\.jsonl:1: unsupported format version 'x'"),
        (lines(HEAD | {"host": "vm"}), r"t\.jsonl:1: host: extra inputs are not permitted"),
        (lines(HEAD | {"began": "2030-01-01T00:00:00"}), r"t\.jsonl:1: began: .*timezone"),
        (lines(HEAD | {"api_version": "a b"}), r"t\.jsonl:1: api_version"),
        (lines(HEAD | {"interval_s": 0}), r"t\.jsonl:1: interval_s"),
        (lines(HEAD, b"{"), r"t\.jsonl:2: not valid JSON: the line may be truncated or damaged"),
        (lines(HEAD, b"\xff"), r"t\.jsonl:2: not valid JSON"),
        (lines(HEAD, b"[" * 100_000), r"t\.jsonl:2: not valid JSON"),
        (lines(HEAD, b"[]"), r"t\.jsonl:2: expected a JSON object"),
        (lines(HEAD, OK, {"at_s": 2.0}), r"t\.jsonl:3: an answer must have either a status or a failure"),
        (lines(HEAD, OK | {"failure": "broken"}), r"t\.jsonl:2: an answer must have either a status or a failure"),
        (lines(HEAD, OK | {"status": 99}), r"t\.jsonl:2: status: input should be greater than or equal to 200"),
        (lines(HEAD, OK | {"at_s": -1}), r"t\.jsonl:2: at_s"),
        (lines(HEAD, OK | {"at_s": "x"}), r"t\.jsonl:2: at_s"),
        (lines(HEAD, b'{"at_s": NaN, "status": 200}'), r"t\.jsonl:2: at_s"),
        (lines(HEAD, b'{"at_s": 1e999, "status": 200}'), r"t\.jsonl:2: at_s"),
        (lines(HEAD, b'{"at_s": 1%s, "status": 200}' % (b"0" * 5000)), r"t\.jsonl:2: not valid JSON"),
        (lines(HEAD, OK | {"headers": {"set-cookie": "a"}}), r"t\.jsonl:2: headers\.set-cookie"),
        (lines(HEAD, OK | {"headers": {"etag": "a\r\nb: c"}}), r"t\.jsonl:2: headers\.etag"),
        (lines(HEAD, OK | {"body": None, "body_base64": "?"}), r"t\.jsonl:2: body"),
        (lines(HEAD, {"at_s": 1.0, "status": 200, "body_base64": "?"}), r"t\.jsonl:2: body_base64 is not valid base64"),
        (lines(HEAD, b'{"at_s": 1, "status": 200, "body": "\\ud800"}'), r"t\.jsonl:2: "),
        (lines(HEAD, OK, OK | {"at_s": 0.5}), r"t\.jsonl:3: time goes back from 1 s to 0\.5 s"),
        (lines(HEAD, OK, END | {"end_s": 0.5}), r"t\.jsonl:3: time goes back from 1 s to 0\.5 s"),
        (lines(HEAD, END, OK | {"at_s": 10}), r"t\.jsonl:3: the transcript ended on the previous line"),
        (lines(HEAD, END | {"reason": "tired"}), r"t\.jsonl:2: reason"),
    ],
)
def test_what_is_no_transcript_is_refused_with_its_line(content: bytes, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{words}") as caught:
        read(content)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 400


@given(st.lists(st.binary(max_size=30) | st.sampled_from([lines(HEAD), lines(OK), lines(END)]), max_size=6))
def test_whatever_a_file_holds_is_read_or_refused(parts: list[bytes]) -> None:
    with contextlib.suppress(ConfigError):
        read(b"".join(parts))


def test_spaces_and_windows_line_ends_do_no_harm() -> None:
    content = lines(HEAD, OK, END).replace(b"\n", b"\r\n")
    assert len(read(b" " + content).entries) == 1


def test_a_last_line_without_its_end_counts_if_it_is_whole() -> None:
    assert read(lines(HEAD, OK, END)[:-1]).end_reason is EndReason.TIME


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    with path.open("wb") as file:
        file.write(lines(HEAD))
        file.truncate(100 << 20)
    with pytest.raises(ConfigError, match=rf"at most {SIZE_BYTES_MAX} bytes, not 104857600"):
        load_transcript(path)


def test_a_line_without_end_is_refused_before_it_is_whole() -> None:
    with pytest.raises(ConfigError, match=r"^t\.jsonl:2: the line has more than \d+ bytes"):
        read(lines(HEAD) + b'{"at_s":1.0,"status":200,"body":"' + b"x" * (9 << 20))


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none\.jsonl: No such file"):
        load_transcript(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="cannot read"):
        load_transcript(tmp_path)


# In words


def test_an_answer_is_told_in_a_few_words() -> None:
    body = b'{"DocumentIncarnation":4,"Events":[{"EventId":"A","EventType":"Reboot","EventStatus":"Started"}]}'
    assert TranscriptEntry(at_s=0, status=200, body=body).describe(VERSION) == "200, incarnation 4: Reboot Started"
    assert TranscriptEntry(at_s=0, status=200, body=b"").describe(VERSION) == "200, 0 bytes, not a document"
    assert TranscriptEntry(at_s=0, status=503, body=b"no").describe(VERSION) == "503, 2 bytes, not a document"
    assert TranscriptEntry(at_s=0, failure=RequestFailure.TIME_OUT).describe(VERSION) == "no answer: time-out"
