"""Changes of events between two documents.

Spec: R100, A19
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from forewarn.wire.document import Document, Event

__all__ = ["Change", "ChangeKind", "diff"]


class ChangeKind(StrEnum):
    """Kind of change of an event."""

    PREPARE = "prepare"
    """The event is new: get ready, then approve."""

    STARTED = "started"
    """The impact may happen at any moment. Also used if the event was not seen before: there was no notice."""

    UPDATED = "updated"
    """The event is still there; a member other than its status has changed."""

    RECOVERED = "recovered"
    """The event had started and is gone: the impact is over, resume work."""

    CANCELED = "canceled"
    """The event is gone and was not seen to start: undo the preparation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An event, and how it changed since the previous document.

    Attributes:
        event: Its current state; its last known state if it is gone.
        previous: Its state before; None if it is new.
        document: Whole document that shows the change.
    """

    kind: ChangeKind
    event: Event
    previous: Event | None
    document: Document


def diff(previous: Document | None, current: Document) -> tuple[Change, ...]:
    """Return the changes between two documents: ended events first, then new and changed ones in document order.

    Args:
        previous: Document before; None for the first document ever: all its events are new.
        current: Document after it.
    """
    # Compared by key, the canonical form of the id, since endpoints differ in how they write the same id.
    before = {event.key: event for event in previous.events} if previous else {}
    after = {event.key for event in current.events}
    ended = [
        Change(
            kind=ChangeKind.RECOVERED if event.is_started else ChangeKind.CANCELED,
            event=event,
            previous=event,
            document=current,
        )
        for event in before.values()
        if event.key not in after
    ]
    present = [
        Change(kind=kind, event=event, previous=before.get(event.key), document=current)
        for event in current.events
        if (kind := _classify_change(before.get(event.key), event)) is not None
    ]
    # The reverse order would put a VM back into service that has just prepared for a new event.
    return (*ended, *present)


def _classify_change(before: Event | None, now: Event) -> ChangeKind | None:
    # An event may be missed before its start, or start between two polls: both count as started.
    if now.is_started and (before is None or not before.is_started):
        return ChangeKind.STARTED
    if before is None:
        return ChangeKind.PREPARE
    return None if before == now else ChangeKind.UPDATED
