"""The document as its readers see it, decoded tolerantly from the answer of any endpoint (R105).

`imds` encodes documents and defines the content of each api-version. This module decodes them, also those of endpoints
that are not Forewarn's: unknown members and types are accepted, missing ones get a default, and a body without readable
events raises `NoDocument`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

__all__ = ["Document", "Event", "NoDocument", "decode_document", "decode_moment", "encode_approval", "event_key"]

T = TypeVar("T")

_PREVIEW = "2017-03-01"
_UNKNOWN_DURATION_S = -1
_DIGITS_MAX = 18
_DURATION_S_MAX = timedelta.max // timedelta(seconds=1)
_EVENTS_MAX = 10_000


class NoDocument(ValueError):
    """A body that does not say which events there are; the message is the reason.

    It must not be read as "no events": a reader that does takes every event for ended.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A scheduled event, as its document shows it.

    Attributes:
        id: EventId exactly as the endpoint shows it, as some compare an approval with it character by character; the
            same for the whole life of the event (R30). To tell events apart, use `key`.
        type: EventType: ``Freeze``, ``Reboot``, ``Redeploy``, ``Preempt``, ``Terminate``, or one that is not known
            yet (R31).
        status: EventStatus: ``Scheduled`` or ``Started`` (R35).
        resources: Names of the affected VMs (R33).
        not_before: Earliest start, UTC; None once it has started, or if the document does not give it (R36).
        description: Description; empty if the api-version has none (R37).
        source: ``Platform`` or ``User``; empty if the api-version has none (R38).
        duration_s: Expected impact in seconds; 0 none, -1 unknown (R39).
        resource_type: ``VirtualMachine`` (R32).
    """

    id: str
    type: str
    status: str
    resources: tuple[str, ...] = ()
    not_before: datetime | None = None
    description: str = ""
    source: str = ""
    duration_s: int = _UNKNOWN_DURATION_S
    resource_type: str = "VirtualMachine"

    @property
    def key(self) -> str:
        """Canonical form of the id, for comparing; see `event_key`."""
        return event_key(self.id)

    @property
    def is_started(self) -> bool:
        """True if the impact may happen at any moment."""
        return self.status == "Started"

    @property
    def duration(self) -> timedelta | None:
        """Expected impact; None if it is unknown."""
        return timedelta(seconds=min(self.duration_s, _DURATION_S_MAX)) if self.duration_s >= 0 else None

    def affects(self, vm: str) -> bool:
        """Return True if it affects that VM; names are compared as written (R60, W7)."""
        return vm in self.resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """All current events of the VM's scope.

    Attributes:
        incarnation: Number that differs when something has changed; it may start over (R42, R46). None: not given.
        events: The events, in the order of the document.
    """

    incarnation: int | None
    events: tuple[Event, ...] = ()

    def get(self, event_id: str) -> Event | None:
        """Return the event with that id, in any case; None if there is none."""
        wanted = event_key(event_id)
        return next((event for event in self.events if event.key == wanted), None)

    def affecting(self, vm: str) -> tuple[Event, ...]:
        """Return the events that affect that VM, in document order; empty: none is pending or under way (R60)."""
        return tuple(event for event in self.events if event.affects(vm))


def event_key(event_id: str) -> str:
    """Return the EventId in canonical form for comparing: upper case, without surrounding spaces (R53, A8)."""
    return event_id.strip().upper()


def decode_document(body: bytes, version: str = "2020-07-01") -> Document:
    """Decode the body of a GET response.

    Args:
        body: Body as received; UTF-8 with or without BOM, whatever its Content-Type.
        version: The requested api-version: names in 2017-03-01 carry a ``_`` that is removed (R20).

    Raises:
        NoDocument: It is empty, not JSON, has no array ``Events``, has more than 10,000 events, or none is readable.

    Spec: R25, R41, R105
    """
    if not body.strip():
        raise NoDocument("the body is empty")
    try:
        content = json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise NoDocument("the body is not JSON") from error
    events = content.get("Events") if isinstance(content, dict) else None
    if not isinstance(events, list):
        raise NoDocument("the body has no array Events")
    if len(events) > _EVENTS_MAX:
        raise NoDocument(f"the body has {len(events)} events, at most {_EVENTS_MAX} are read")
    found: dict[str, Event] = {}
    for item in events:
        event = _decode_event(item, version)
        if event is not None:
            # Readers tell events apart by this key, so of two events with one id only the first counts.
            found.setdefault(event.key, event)
    if events and not found:
        raise NoDocument("none of its Events has an EventId")
    return Document(
        incarnation=_decode_whole_number(content.get("DocumentIncarnation"), None), events=tuple(found.values())
    )


def _decode_event(item: Any, version: str) -> Event | None:  # noqa: ANN401 - whatever stood in the JSON
    """Decode one event; None if it has no EventId, as it could be neither approved nor identified."""
    event_id = _decode_text(item.get("EventId")) if isinstance(item, dict) else ""
    if not event_id.strip():
        return None
    names = item.get("Resources")
    resources = [_decode_text(name) for name in names if isinstance(name, str)] if isinstance(names, list) else []
    if version == _PREVIEW:
        resources = [name.removeprefix("_") for name in resources]
    return Event(
        id=event_id,
        type=_decode_text(item.get("EventType")),
        status=_decode_text(item.get("EventStatus")),
        resources=tuple(dict.fromkeys(resources)),
        not_before=decode_moment(_decode_text(item.get("NotBefore"))),
        description=_decode_text(item.get("Description")),
        source=_decode_text(item.get("EventSource")),
        duration_s=_decode_whole_number(item.get("DurationInSeconds"), _UNKNOWN_DURATION_S),
        resource_type=_decode_text(item.get("ResourceType")) or "VirtualMachine",
    )


def _decode_text(value: object) -> str:
    """Return the text; a lone surrogate or a NUL, which no file or environment can hold, becomes a question mark."""
    return value.encode("utf-8", "replace").replace(b"\0", b"?").decode() if isinstance(value, str) else ""


def _decode_whole_number(value: object, otherwise: T) -> int | T:
    """Return the whole number, also if it is given as digits or with a decimal point; otherwise the default."""
    if isinstance(value, str):
        digits = value.strip()
        # `int` raises for thousands of digits; eighteen fit into 64 bits.
        is_whole = digits.removeprefix("-").isdecimal() and len(digits) <= _DIGITS_MAX
        return int(digits) if is_whole else otherwise
    if isinstance(value, float):
        return int(value) if value.is_integer() else otherwise
    # In Python, a bool is an int.
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def decode_moment(text: str) -> datetime | None:
    """Decode a moment in RFC 1123 or ISO 8601, to UTC; None for any other text, as an empty NotBefore (R21, R36)."""
    text = text.strip()
    if not text:
        return None
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            moment = read(text)
        # For odd text, `parsedate_to_datetime` raises other errors than ValueError, depending on the version of Python.
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
        try:
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        except OverflowError:
            return None
    return None


def encode_approval(event_ids: Iterable[str]) -> bytes:
    """Encode the body of a POST that approves these events (R47)."""
    return json.dumps({"StartRequests": [{"EventId": event_id} for event_id in event_ids]}).encode()
