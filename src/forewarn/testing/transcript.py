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
from types import TracebackType
from typing import Annotated, Any, BinaryIO, NoReturn, Self, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from forewarn.errors import ConfigError, LimitExceeded
from forewarn.wire.document import Document, NoDocument, decode_document, decode_moment

__all__ = [
    "BODY_SIZE_BYTES_MAX",
    "HEADERS",
    "SIZE_BYTES_MAX",
    "EndReason",
    "Entry",
    "Failure",
    "Transcript",
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


class Failure(StrEnum):
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
class Entry:
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
    failure: Failure | None = None

    @property
    def seen_s(self) -> float:
        """Time of the result, in seconds since the beginning."""
        return self.at_s + self.took_s

    def says_the_same(self, other: Entry | None) -> bool:
        """Return True if a client sees no difference but the time."""
        return other is not None and self.substance == other.substance

    @property
    def substance(self) -> tuple[object, ...]:
        """All values but the times."""
        headers = {name: value for name, value in self.headers.items() if name != "date"}
        return (self.failure, self.status, headers, self.body)

    def document(self, version: str) -> Document | None:
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
        document = self.document(version)
        if document is None:
            return f"{self.status}, {len(self.body)} bytes that are no document"
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
        asked: Number of requests made; None if unknown.
    """

    api_version: str
    began: datetime
    interval_s: float
    entries: tuple[Entry, ...]
    end_s: float
    end_reason: EndReason | None = None
    asked: int | None = None

    @property
    def began_there(self) -> datetime:
        """Start of the recording, on the endpoint's clock if that differed from the recorder's; UTC."""
        first = next((entry for entry in self.entries if _served_at(entry) is not None), None)
        return self.began if first is None else self.moment(first) - timedelta(seconds=first.seen_s)

    def moment(self, entry: Entry) -> datetime:
        """Return the time of an answer, on the endpoint's clock if that differed from the recorder's; UTC."""
        ours = self.began + timedelta(seconds=entry.seen_s)
        theirs = _served_at(entry)
        return ours if theirs is None or abs(theirs - ours) <= _SKEW else theirs


def _served_at(entry: Entry) -> datetime | None:
    return decode_moment(entry.headers.get("date", ""))


# Lines

_AnyLine = TypeVar("_AnyLine", bound=BaseModel)


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_Seconds = Annotated[float, Field(ge=0, le=_SECONDS_MAX, allow_inf_nan=False)]
_HeaderValue = Annotated[str, Field(max_length=1000, pattern=r"^[\t\x20-\x7e\u0080-\u00ff]*$")]


class _Head(_Line):
    """The first line."""

    forewarn_transcript: int
    api_version: Annotated[str, Field(pattern=r"^[A-Za-z0-9.\-]{1,40}$")]
    began: AwareDatetime
    interval_s: Annotated[float, Field(gt=0, le=_SECONDS_MAX, allow_inf_nan=False)] = 1.0


class _EntryLine(_Line):
    """A line between the first and the last."""

    at_s: _Seconds
    took_s: _Seconds = 0.0
    status: Annotated[int, Field(ge=200, le=599)] | None = None
    headers: dict[Annotated[str, Field(pattern=f"^({'|'.join(HEADERS)})$")], _HeaderValue] = {}
    body: str = ""
    body_base64: str | None = None
    failure: Failure | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.status is None) == (self.failure is None):
            msg = "an answer has a status or a failure, and not both"
            raise ValueError(msg)
        return self

    def to_entry(self) -> Entry:
        body = self.body.encode()
        if self.body_base64 is not None:
            try:
                body = base64.b64decode(self.body_base64, validate=True)
            except binascii.Error as error:
                msg = "body_base64 is no base64"
                raise ValueError(msg) from error
        return Entry(
            at_s=self.at_s,
            took_s=self.took_s,
            status=self.status or 0,
            headers=dict(self.headers),
            body=body,
            failure=self.failure,
        )


class _End(_Line):
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
            msg = f"{path}: {size_bytes} bytes are more than the {SIZE_BYTES_MAX} that a transcript may have"
            raise ConfigError(msg)
        with path.open("rb") as file:
            return read_transcript(file, str(path))
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror}"
        raise ConfigError(msg) from error


def read_transcript(file: BinaryIO, where: str) -> Transcript:
    """Read a transcript.

    An incomplete last line is ignored: a crash in the middle of a write leaves one.

    Args:
        file: File open for reading.
        where: Name of the file, for errors.

    Raises:
        ConfigError: It is too large, or not a transcript; with the line.
    """
    return _Reading(where).read(file)


class _Reading:
    """Reader of one file."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._number = 0
        self._entries: list[Entry] = []
        self._end: _End | None = None

    def read(self, file: BinaryIO) -> Transcript:
        lines = self._lines(file)
        first = next(lines, b"")
        head = self._head(first)
        for line in lines:
            self._take(line)
        end_s = self._entries[-1].seen_s if self._entries else 0.0
        return Transcript(
            api_version=head.api_version,
            began=head.began.astimezone(UTC),
            interval_s=head.interval_s,
            entries=tuple(self._entries),
            end_s=end_s if self._end is None else self._end.end_s,
            end_reason=None if self._end is None else self._end.reason,
            asked=None if self._end is None else self._end.asked,
        )

    def _lines(self, file: BinaryIO) -> Iterator[bytes]:
        size_bytes = 0
        while line := file.readline(_LINE_SIZE_BYTES_MAX + 1):
            self._number += 1
            size_bytes += len(line)
            if len(line) > _LINE_SIZE_BYTES_MAX:
                self._refuse(f"the line has more than {_LINE_SIZE_BYTES_MAX} bytes")
            if size_bytes > SIZE_BYTES_MAX:
                self._refuse(f"a transcript may have {SIZE_BYTES_MAX} bytes, and this is more")
            if line.endswith(b"\n"):
                yield line
            elif self._number == 1 or _is_whole(line):
                yield line + b"\n"

    def _head(self, line: bytes) -> _Head:
        self._number = 1
        content = self._object(line) if line.lstrip().startswith(b"{") else {}
        if "forewarn_transcript" not in content:
            self._refuse('this is no transcript: the first line is expected to begin with {"forewarn_transcript": 1')
        if content["forewarn_transcript"] != FORMAT:
            self._refuse(f"the format's version is {content['forewarn_transcript']!r}, and only {FORMAT} is known")
        return self._parse(_Head, content)

    def _take(self, line: bytes) -> None:
        if self._end is not None:
            self._refuse("the transcript has ended on the line above")
        content = self._object(line)
        if "end_s" in content:
            end = self._parse(_End, content)
            self._check_time(end.end_s)
            self._end = end
            return
        entry = self._parse(_EntryLine, content)
        self._check_time(entry.at_s)
        if len(self._entries) >= _ENTRIES_MAX:
            self._refuse(f"at most {_ENTRIES_MAX} answers are read")
        try:
            self._entries.append(entry.to_entry())
        except ValueError as error:
            self._refuse(str(error))

    def _check_time(self, at_s: float) -> None:
        before_s = self._entries[-1].at_s if self._entries else 0.0
        if at_s < before_s:
            self._refuse(f"time goes back from {before_s:g} s to {at_s:g} s")

    def _object(self, line: bytes) -> dict[str, Any]:
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            self._refuse("this is no JSON: the line may be cut off or damaged")
        if not isinstance(content, dict):
            self._refuse("a JSON object is expected")
        return content

    def _parse(self, kind: type[_AnyLine], content: dict[str, Any]) -> _AnyLine:
        try:
            return kind.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"] if part != "[key]")
            words = first["msg"].removeprefix("Value error, ")
            words = words[:1].lower() + words[1:]
            self._refuse(f"{name}: {words}" if name else words)

    def _refuse(self, words: str) -> NoReturn:
        msg = f"{self._where}:{self._number}: {words}"
        raise ConfigError(msg, line=self._number)


def _is_whole(line: bytes) -> bool:
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
        self._last: Entry | None = None
        self.entries = 0
        head = _Head(forewarn_transcript=FORMAT, api_version=api_version, began=began, interval_s=interval_s)
        self._put(_encoded(head))

    def add(self, entry: Entry) -> bool:
        """Write the result of a request if it differs from the previous one.

        Returns:
            True if it differs.

        Raises:
            LimitExceeded: There is no room for it.
            OSError: It cannot be written.
        """
        if entry.says_the_same(self._last):
            return False
        line = _encoded(_line_of(entry))
        # Keep room for the last line.
        if self._size_bytes + len(line) + _END_SIZE_BYTES > self._size_bytes_max or self.entries >= _ENTRIES_MAX:
            msg = (
                f"the transcript is full after {self._size_bytes} bytes and {self.entries} answers: the limit is "
                f"{self._size_bytes_max} bytes and {_ENTRIES_MAX} answers"
            )
            raise LimitExceeded(msg, limit=self._size_bytes_max)
        self._put(line)
        self._last = entry
        self.entries += 1
        return True

    def end(self, at_s: float, reason: EndReason, asked: int) -> None:
        """Write the last line.

        Raises:
            OSError: It cannot be written.
        """
        self._put(_encoded(_End(end_s=round(at_s, _DIGITS), reason=reason, asked=asked)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _put(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[self._file.write(rest) :]  # an unbuffered write may be partial
        self._size_bytes += len(line)
        if self._file.isatty() or not self._file.seekable():
            return
        os.fsync(self._file.fileno())


def _line_of(entry: Entry) -> _EntryLine:
    said: dict[str, Any] = {"at_s": round(entry.at_s, _DIGITS), "took_s": round(entry.took_s, _DIGITS)}
    if entry.failure is not None:
        return _EntryLine(**said, failure=entry.failure)
    said |= {"status": entry.status, "headers": dict(entry.headers)}
    try:
        said["body"] = entry.body.decode()
    except UnicodeDecodeError:
        said["body_base64"] = base64.b64encode(entry.body).decode()
    return _EntryLine(**said)


def _encoded(line: _Line) -> bytes:
    return line.model_dump_json(exclude_unset=True).encode() + b"\n"
