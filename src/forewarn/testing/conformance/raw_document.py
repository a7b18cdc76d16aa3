"""A document exactly as received: nothing is filled in, unlike in `forewarn.wire.document`, which serves handlers."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from forewarn.testing.conformance.raw_reply import RawReply

__all__ = ["RawDocument", "parse_raw_document"]

_MEMBERS = {"DocumentIncarnation", "Events"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RawDocument:
    """The answer to a GET that is a document.

    Attributes:
        content: The parsed object.
        events: Those elements of Events that are objects.
        at_s: Time of receipt, on the clock of `time.perf_counter`.
    """

    version: str
    reply: RawReply
    content: dict[str, Any]
    events: tuple[dict[str, Any], ...]
    at_s: float

    @property
    def incarnation(self) -> Any:  # noqa: ANN401 - any JSON value
        """DocumentIncarnation."""
        return self.content.get("DocumentIncarnation")

    def events_by_id(self) -> dict[str, dict[str, Any]]:
        """Return the events by their ids in upper case, without those whose id is not text."""
        return {event["EventId"].upper(): event for event in self.events if isinstance(event.get("EventId"), str)}


def parse_raw_document(version: str, reply: RawReply, at_s: float) -> RawDocument | None:
    """Return the document; None for another status, no object, or an object with neither member of a document."""
    content = reply.content
    if reply.status != HTTPStatus.OK or not isinstance(content, dict) or not content.keys() & _MEMBERS:
        return None
    events = content.get("Events")
    found = [event for event in events if isinstance(event, dict)] if isinstance(events, list) else []
    return RawDocument(version=version, reply=reply, content=content, events=tuple(found), at_s=at_s)
