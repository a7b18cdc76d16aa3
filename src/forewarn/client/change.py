"""What became of the events between two documents.

Spec: R100, A19
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from forewarn.wire.document import Document, Event

__all__ = ["Change", "ChangeKind", "diff"]


class ChangeKind(StrEnum):
    """What became of an event."""

    PREPARE = "prepare"
    """It is new: get ready, then approve."""

    STARTED = "started"
    """Its impact may happen at any moment. Also where it was not seen before: there was no notice."""

    UPDATED = "updated"
    """It is still there, and some other member than its status has changed."""

    RECOVERED = "recovered"
    """It had started and is gone: it is over, and so is the need to hold still."""

    CANCELED = "canceled"
    """It is gone and had not been seen to start: undo what was prepared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One event, and what became of it.

    Attributes:
        event: As it is now; as it was last, when it is gone.
        previous: As it was before; None when it is new.
        document: The whole document in which this was seen.
    """

    kind: ChangeKind
    event: Event
    previous: Event | None
    document: Document


def diff(previous: Document | None, current: Document) -> tuple[Change, ...]:
    """The changes from one document to the next: first what ended, then what is there, in the document's order.

    Args:
        previous: None for the first document that was ever seen: all its events are new.
        current: The document after it.
    """
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
        if (kind := _kind(before.get(event.key), event)) is not None
    ]
    return (*ended, *present)


def _kind(before: Event | None, now: Event) -> ChangeKind | None:
    if now.is_started:
        has_just_started = before is None or not before.is_started
        return ChangeKind.STARTED if has_just_started else _updated(before, now)
    return ChangeKind.PREPARE if before is None else _updated(before, now)


def _updated(before: Event | None, now: Event) -> ChangeKind | None:
    return None if before == now else ChangeKind.UPDATED
