"""Transcripts: files of the answers of an endpoint, with times.

JSON Lines. The first line describes the recording, one line follows for each answer that differs from the previous one,
and the last line gives the time and reason of the end. Neither the first nor the last names a machine; the bodies hold
the endpoint's answers unchanged.

::

    {"forewarn_transcript": 1, "api_version": "2020-07-01", "began": "2030-01-01T00:00:00Z", "interval_s": 1.0}
    {"at_s": 0.0, "took_s": 0.002, "status": 200, "headers": {"content-type": "application/json"}, "body": "..."}
    {"at_s": 61.0, "took_s": 10.0, "failure": "time-out"}
    {"end_s": 3600.0, "reason": "time", "asked": 3561}

A file without a last line was written by a recorder that was interrupted; it holds everything seen until then.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NoReturn, Self, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from forewarn.errors import ConfigError, LimitExceeded
from forewarn.wire.document import Document, NoDocument, decode_document, decode_moment

__all__ = [
    "BODY_SIZE_BYTES_MAX",
    "HEADERS",
    "SIZE_BYTES_MAX",
    "EndReason",
    "RequestFailure",
    "Transcript",
    "TranscriptEntry",
    "TranscriptWriter",
    "load_transcript",
    "read_transcript",
]

FORMAT = 1
"""Version of the format that is written, and the only one that is read."""

HEADERS = ("content-type", "date", "etag", "retry-after")
"""Headers kept of an answer: those that clients read, and the endpoint's time."""

SIZE_BYTES_MAX = 64 << 20
"""Maximum size of a file that is written or read."""

BODY_SIZE_BYTES_MAX = 1 << 20
"""Maximum size of a body that is kept."""

_LINE_SIZE_BYTES_MAX = 8 << 20
_END_SIZE_BYTES = 256
_ENTRIES_MAX = 100_000
_SECONDS_MAX = 10 * 366 * 86_400
_DIGITS = 3
_SKEW = timedelta(seconds=2)


class RequestFailure(StrEnum):
    """Reason why there was no answer."""

    NO_CONNECTION = "no-connection"
    """No connection was accepted."""

    BROKEN = "broken"
    """The connection ended before the answer was complete, or the answer was not HTTP."""

    TIME_OUT = "time-out"
    """No answer came in time."""


class EndReason(StrEnum):
    """Reason why a recording ended."""

    SIGNAL = "signal"
    TIME = "time"
    SIZE = "size"


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptEntry:
    """Result of one request.

    Attributes:
        at_s: Time of the request, in seconds since the beginning.
        took_s: Seconds from the request to its result.
        status: HTTP status; 0 without an answer.
        headers: Those of `HEADERS` in the answer, names in lower case.
        body: Body as received.
        failure: Reason why there was no answer; None if there was one.
    """

    at_s: float
    took_s: float = 0.0
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    failure: RequestFailure | None = None

    @property
    def received_s(self) -> float:
        """Time of the result, in seconds since the beginning."""
        return self.at_s + self.took_s

    def has_same_content(self, other: TranscriptEntry | None) -> bool:
        """Return True if a client sees no difference but the time."""
        return other is not None and self.content_without_times == other.content_without_times

    @property
    def content_without_times(self) -> tuple[object, ...]:
        """All values but the times."""
        # The date changes with each answer, and would make every one look new.
        headers = {name: value for name, value in self.headers.items() if name != "date"}
        return (self.failure, self.status, headers, self.body)

    def parse_document(self, version: str) -> Document | None:
        """Return its document; None if it has none, so the previous document still applies."""
        if self.status != 200:  # noqa: PLR2004 - OK
            return None
        try:
            return decode_document(self.body, version)
        except NoDocument:
            return None

    def describe(self, version: str) -> str:
        """Return a short description for people."""
        if self.failure is not None:
            return f"no answer: {self.failure}"
        document = self.parse_document(version)
        if document is None:
            return f"{self.status}, {len(self.body)} bytes, not a document"
        events = [f"{event.type} {event.status}".strip() for event in document.events]
        return f"{self.status}, incarnation {document.incarnation}: {', '.join(events) or 'no events'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """All answers of an endpoint over a period.

    Attributes:
        api_version: The api-version of the requests.
        began: Start of the recording, on the recorder's clock; UTC.
        interval_s: Interval between requests.
        entries: Answers that differ from the previous one, in order of time.
        end_s: End of the recording, in seconds since the beginning.
        end_reason: Reason for the end; None if the recorder was interrupted.
        request_count: Number of requests made; None if unknown.
    """

    api_version: str
    began: datetime
    interval_s: float
    entries: tuple[TranscriptEntry, ...]
    end_s: float
    end_reason: EndReason | None = None
    request_count: int | None = None

    @property
    def began_on_endpoint_clock(self) -> datetime:
        """Start of the recording, on the endpoint's clock if that differed from the recorder's; UTC."""
        first = next((entry for entry in self.entries if _decode_date(entry) is not None), None)
        return self.began if first is None else self.get_answer_time(first) - timedelta(seconds=first.received_s)

    def get_answer_time(self, entry: TranscriptEntry) -> datetime:
        """Return the time of an answer, on the endpoint's clock if that differed from the recorder's; UTC."""
        ours = self.began + timedelta(seconds=entry.received_s)
        theirs = _decode_date(entry)
        # Date has whole seconds, so a small difference says nothing about the endpoint's clock, and ours is finer.
        return ours if theirs is None or abs(theirs - ours) <= _SKEW else theirs


def _decode_date(entry: TranscriptEntry) -> datetime | None:
    return decode_moment(entry.headers.get("date", ""))


# Lines

_AnyLine = TypeVar("_AnyLine", bound=BaseModel)


class _TranscriptLine(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_Seconds = Annotated[float, Field(ge=0, le=_SECONDS_MAX, allow_inf_nan=False)]
_HeaderValue = Annotated[str, Field(max_length=1000, pattern=r"^[\t\x20-\x7e\u0080-\u00ff]*$")]


class _FirstLine(_TranscriptLine):
    """The first line."""

    forewarn_transcript: int
    api_version: Annotated[str, Field(pattern=r"^[A-Za-z0-9.\-]{1,40}$")]
    began: AwareDatetime
    interval_s: Annotated[float, Field(gt=0, le=_SECONDS_MAX, allow_inf_nan=False)] = 1.0


class _EntryLine(_TranscriptLine):
    """A line between the first and the last."""

    at_s: _Seconds
    took_s: _Seconds = 0.0
    status: Annotated[int, Field(ge=200, le=599)] | None = None
    headers: dict[Annotated[str, Field(pattern=f"^({'|'.join(HEADERS)})$")], _HeaderValue] = {}
    body: str = ""
    body_base64: str | None = None
    failure: RequestFailure | None = None

    @model_validator(mode="after")
    def _require_status_or_failure(self) -> Self:
        if (self.status is None) == (self.failure is None):
            raise ValueError("an answer must have either a status or a failure")
        return self

    def to_entry(self) -> TranscriptEntry:
        body = self.body.encode()
        if self.body_base64 is not None:
            try:
                body = base64.b64decode(self.body_base64, validate=True)
            except binascii.Error as error:
                raise ValueError("body_base64 is not valid base64") from error
        same = self.model_dump(include={"at_s", "took_s", "headers", "failure"})
        return TranscriptEntry(**same, status=self.status or 0, body=body)


class _LastLine(_TranscriptLine):
    """The last line."""

    end_s: _Seconds
    reason: EndReason
    asked: Annotated[int, Field(ge=0)] = 0


# Reading


def load_transcript(path: Path) -> Transcript:
    """Read a transcript from a file.

    Raises:
        ConfigError: It cannot be read, is too large, or is not a transcript; with the line.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes > SIZE_BYTES_MAX:
            raise ConfigError(f"{path}: a transcript may have at most {SIZE_BYTES_MAX} bytes, not {size_bytes}")
        with path.open("rb") as file:
            return read_transcript(file, str(path))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def read_transcript(file: BinaryIO, display_name: str) -> Transcript:
    """Read a transcript.

    An incomplete last line is ignored: a crash in the middle of a write leaves one.

    Args:
        file: File open for reading.
        display_name: Name of the file, for errors.

    Raises:
        ConfigError: It is too large, or not a transcript; with the line.
    """
    return _TranscriptReader(display_name).read(file)


class _TranscriptReader:
    """Reader of one file."""

    def __init__(self, display_name: str) -> None:
        self._where = display_name
        self._number = 0
        self._entries: list[TranscriptEntry] = []
        self._end: _LastLine | None = None

    def read(self, file: BinaryIO) -> Transcript:
        lines = self._read_lines(file)
        first = next(lines, b"")
        head = self._parse_first_line(first)
        for line in lines:
            self._add_line(line)
        end_s = self._entries[-1].received_s if self._entries else 0.0
        return Transcript(
            api_version=head.api_version,
            began=head.began.astimezone(UTC),
            interval_s=head.interval_s,
            entries=tuple(self._entries),
            end_s=end_s if self._end is None else self._end.end_s,
            end_reason=None if self._end is None else self._end.reason,
            request_count=None if self._end is None else self._end.asked,
        )

    def _read_lines(self, file: BinaryIO) -> Iterator[bytes]:
        size_bytes = 0
        # One byte more than the limit shows that a line is too long without reading the rest of it.
        while line := file.readline(_LINE_SIZE_BYTES_MAX + 1):
            self._number += 1
            size_bytes += len(line)
            if len(line) > _LINE_SIZE_BYTES_MAX:
                self._raise_error(f"the line has more than {_LINE_SIZE_BYTES_MAX} bytes")
            if size_bytes > SIZE_BYTES_MAX:
                self._raise_error(f"a transcript may have at most {SIZE_BYTES_MAX} bytes")
            if line.endswith(b"\n"):
                yield line
            # The first line is always parsed, so that a file without a line end is reported for what it is.
            elif self._number == 1 or _is_complete(line):
                yield line + b"\n"

    def _parse_first_line(self, line: bytes) -> _FirstLine:
        self._number = 1
        # A file that does not look like JSON is reported as the wrong file, not as a damaged transcript.
        content = self._parse_object(line) if line.lstrip().startswith(b"{") else {}
        if "forewarn_transcript" not in content:
            self._raise_error('not a transcript: the first line must begin with {"forewarn_transcript": 1')
        if content["forewarn_transcript"] != FORMAT:
            self._raise_error(f"unsupported format version {content['forewarn_transcript']!r}: expected {FORMAT}")
        return self._parse_line(_FirstLine, content)

    def _add_line(self, line: bytes) -> None:
        if self._end is not None:
            self._raise_error("the transcript ended on the previous line")
        content = self._parse_object(line)
        if "end_s" in content:
            end = self._parse_line(_LastLine, content)
            self._check_time(end.end_s)
            self._end = end
            return
        entry = self._parse_line(_EntryLine, content)
        self._check_time(entry.at_s)
        if len(self._entries) >= _ENTRIES_MAX:
            self._raise_error(f"a transcript may have at most {_ENTRIES_MAX} answers")
        try:
            self._entries.append(entry.to_entry())
        except ValueError as error:
            self._raise_error(str(error))

    def _check_time(self, at_s: float) -> None:
        before_s = self._entries[-1].at_s if self._entries else 0.0
        if at_s < before_s:
            self._raise_error(f"time goes back from {before_s:g} s to {at_s:g} s")

    def _parse_object(self, line: bytes) -> dict[str, Any]:
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            self._raise_error("not valid JSON: the line may be truncated or damaged")
        if not isinstance(content, dict):
            self._raise_error("expected a JSON object")
        return content

    def _parse_line(self, kind: type[_AnyLine], content: dict[str, Any]) -> _AnyLine:
        try:
            return kind.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"] if part != "[key]")
            words = first["msg"].removeprefix("Value error, ")
            words = words[:1].lower() + words[1:]
            self._raise_error(f"{name}: {words}" if name else words)

    def _raise_error(self, reason: str) -> NoReturn:
        raise ConfigError(f"{self._where}:{self._number}: {reason}", line=self._number)


def _is_complete(line: bytes) -> bool:
    """Return True if a last line without a line end is complete, as an editor may leave it."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


# Writing


class TranscriptWriter:
    """Writes a transcript, line by line: every line written survives a crash of this process.

    Args:
        file: File open for writing, unbuffered.
        api_version: The api-version of the requests.
        began: Current time.
        interval_s: Interval between requests.
        size_bytes_max: Maximum size of the file; at most `SIZE_BYTES_MAX`.

    Raises:
        OSError: It cannot be written.
    """

    def __init__(
        self,
        file: BinaryIO,
        *,
        api_version: str,
        began: datetime,
        interval_s: float,
        size_bytes_max: int = SIZE_BYTES_MAX,
    ) -> None:
        self._file = file
        self._size_bytes = 0
        self._size_bytes_max = size_bytes_max
        self._last_entry: TranscriptEntry | None = None
        self.entries = 0
        head = _FirstLine(forewarn_transcript=FORMAT, api_version=api_version, began=began, interval_s=interval_s)
        self._write_line(_encode_line(head))

    def add_entry(self, entry: TranscriptEntry) -> bool:
        """Write the result of a request if it differs from the previous one.

        Returns:
            True if it differs.

        Raises:
            LimitExceeded: There is no room for it.
            OSError: It cannot be written.
        """
        if entry.has_same_content(self._last_entry):
            return False
        line = _encode_line(_to_line(entry))
        # Keep room for the last line.
        if self._size_bytes + len(line) + _END_SIZE_BYTES > self._size_bytes_max or self.entries >= _ENTRIES_MAX:
            msg = (
                f"the transcript is full after {self._size_bytes} bytes and {self.entries} answers: the limit is "
                f"{self._size_bytes_max} bytes and {_ENTRIES_MAX} answers"
            )
            raise LimitExceeded(msg, limit=self._size_bytes_max)
        self._write_line(line)
        self._last_entry = entry
        self.entries += 1
        return True

    def write_end(self, at_s: float, reason: EndReason, request_count: int) -> None:
        """Write the last line.

        Raises:
            OSError: It cannot be written.
        """
        self._write_line(_encode_line(_LastLine(end_s=round(at_s, _DIGITS), reason=reason, asked=request_count)))

    def _write_line(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[self._file.write(rest) :]  # an unbuffered write may be partial
        self._size_bytes += len(line)
        # Terminals and pipes cannot be synced; files are, so that a line survives a crash of the machine as well.
        if self._file.isatty() or not self._file.seekable():
            return
        os.fsync(self._file.fileno())


def _to_line(entry: TranscriptEntry) -> _EntryLine:
    said: dict[str, Any] = {"at_s": round(entry.at_s, _DIGITS), "took_s": round(entry.took_s, _DIGITS)}
    if entry.failure is not None:
        return _EntryLine(**said, failure=entry.failure)
    said |= {"status": entry.status, "headers": dict(entry.headers)}
    try:
        said["body"] = entry.body.decode()
    except UnicodeDecodeError:
        said["body_base64"] = base64.b64encode(entry.body).decode()
    return _EntryLine(**said)


def _encode_line(line: _TranscriptLine) -> bytes:
    # Most members have their default in most lines, and a recording may have a hundred thousand of them.
    return line.model_dump_json(exclude_unset=True).encode() + b"\n"
