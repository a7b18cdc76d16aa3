"""What an endpoint showed, with times, as a file: a transcript.

JSON Lines. The first line describes it, one line follows for each answer that differs from the one before, and the last
one says when and why it ended. Neither the first nor the last names a machine; what the endpoint itself said stands in
the bodies as it came.

::

    {"forewarn_transcript": 1, "api_version": "2020-07-01", "began": "2030-01-01T00:00:00Z", "interval_s": 1.0}
    {"at_s": 0.0, "took_s": 0.002, "status": 200, "headers": {"content-type": "application/json"}, "body": "..."}
    {"at_s": 61.0, "took_s": 10.0, "failure": "time-out"}
    {"end_s": 3600.0, "reason": "time", "asked": 3561}

A file without a last line was written by a recorder that did not come to its end; everything that it saw is there.
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
"""The version of the format that is written, and the only one that is read."""

HEADERS = ("content-type", "date", "etag", "retry-after")
"""The headers that are kept of an answer: those that a client reads, and the endpoint's time."""

SIZE_BYTES_MAX = 64 << 20
"""The largest file that is written or read."""

BODY_SIZE_BYTES_MAX = 1 << 20
"""The longest body that is kept."""

_LINE_SIZE_BYTES_MAX = 8 << 20
_END_SIZE_BYTES = 256
_ENTRIES_MAX = 100_000
_SECONDS_MAX = 10 * 366 * 86_400
_DIGITS = 3
_SKEW = timedelta(seconds=2)


class Failure(StrEnum):
    """Why there was no answer."""

    NO_CONNECTION = "no-connection"
    """Nobody accepted one."""

    BROKEN = "broken"
    """It ended before the answer was whole, or what came was no HTTP."""

    TIME_OUT = "time-out"
    """Nothing came in time."""


class EndReason(StrEnum):
    """Why a recording ended."""

    SIGNAL = "signal"
    TIME = "time"
    SIZE = "size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What one request came to.

    Attributes:
        at_s: When it was asked, in seconds since the beginning.
        took_s: How long it took until it was known.
        status: HTTP status; 0 where there was no answer.
        headers: Those of `HEADERS` that it had, names in lower case.
        body: As it came.
        failure: Why there was no answer; None: there was one.
    """

    at_s: float
    took_s: float = 0.0
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    failure: Failure | None = None

    @property
    def seen_s(self) -> float:
        """When it was known, in seconds since the beginning."""
        return self.at_s + self.took_s

    def says_the_same(self, other: Entry | None) -> bool:
        """Whether a client sees no difference but the time."""
        return other is not None and self.substance == other.substance

    @property
    def substance(self) -> tuple[object, ...]:
        """All of it but the times."""
        headers = {name: value for name, value in self.headers.items() if name != "date"}
        return (self.failure, self.status, headers, self.body)

    def document(self, version: str) -> Document | None:
        """What it says about events; None: nothing, so what was known before still stands."""
        if self.status != 200:  # noqa: PLR2004 - OK
            return None
        try:
            return decode_document(self.body, version)
        except NoDocument:
            return None

    def describe(self, version: str) -> str:
        """In a few words, for people."""
        if self.failure is not None:
            return f"no answer: {self.failure}"
        document = self.document(version)
        if document is None:
            return f"{self.status}, {len(self.body)} bytes that are no document"
        events = [f"{event.type} {event.status}".strip() for event in document.events]
        return f"{self.status}, incarnation {document.incarnation}: {', '.join(events) or 'no events'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """Everything that an endpoint showed for a time.

    Attributes:
        api_version: What was asked for.
        began: When the recording began, on the clock of whoever recorded; UTC.
        interval_s: From one question to the next.
        entries: Each differs from the one before; in order of time.
        end_s: When it ended, in seconds since the beginning.
        end_reason: None: the recorder did not come to its end.
        asked: How many requests were made; None: not known.
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
        """When the recording began, on the endpoint's clock where that told another time than ours; UTC."""
        first = next((entry for entry in self.entries if _served_at(entry) is not None), None)
        return self.began if first is None else self.moment(first) - timedelta(seconds=first.seen_s)

    def moment(self, entry: Entry) -> datetime:
        """When an answer was seen, on the endpoint's clock where it told another time than ours; UTC."""
        ours = self.began + timedelta(seconds=entry.seen_s)
        theirs = _served_at(entry)
        return ours if theirs is None or abs(theirs - ours) <= _SKEW else theirs


def _served_at(entry: Entry) -> datetime | None:
    return decode_moment(entry.headers.get("date", ""))


# The lines

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
        ConfigError: It cannot be read, is too large, or is no transcript; with the line.
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

    A last line that was cut off is left out: it is what a crash in the middle of writing leaves.

    Args:
        file: Open for reading.
        where: Its name, for errors.

    Raises:
        ConfigError: It is too large, or no transcript; with the line.
    """
    return _Reading(where).read(file)


class _Reading:
    """One file, being read."""

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
    """Whether a last line without its end is all there, as an editor may leave it."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


# Writing


class TranscriptWriter:
    """Writes a transcript, line by line: what has been written stays, whatever becomes of this process.

    Args:
        file: Open for writing, unbuffered.
        api_version: What is asked for.
        began: Now.
        interval_s: From one question to the next.
        size_bytes_max: How large it may get; at most `SIZE_BYTES_MAX`.

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
        """Write down what a request came to, if it differs from what the one before came to.

        Returns:
            Whether it does.

        Raises:
            LimitExceeded: There is no room for it.
            OSError: It cannot be written.
        """
        if entry.says_the_same(self._last):
            return False
        line = _encoded(_line_of(entry))
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
            rest = rest[self._file.write(rest) :]
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
