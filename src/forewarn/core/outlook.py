"""What holds a maintenance up, and what happens to it next: the first thing that somebody on call wants to know.

Nothing is decided here. It says what `settlement` and the scheduler are going to do, from the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from forewarn.core.conflicts import excludes, is_held
from forewarn.core.model import Event, Maintenance, MaintenanceState
from forewarn.core.value import replace

__all__ = ["Missing", "Next", "Outlook", "Trouble", "Vote", "outlook", "seen_by"]

LATE_AFTER = timedelta(seconds=30)
"""So long after its moment a step counts as late; the scheduler needs a second at most."""


UNSEEN_AFTER = timedelta(seconds=90)
"""Who has not looked for so long cannot know. Before, word of it may not have come here from the replica that saw."""

PRESSING = 4
"""A vote that is missing is nothing to worry about until one part in so many of the notice is left."""


class Next(StrEnum):
    """What happens next."""

    ANNOUNCED = "announced"
    STARTED = "started"
    OVER = "over"
    NOTHING = "nothing"


class Missing(StrEnum):
    """Why a vote is missing."""

    NEVER_SEEN = "never-seen"
    NOT_APPROVED = "not-approved"


class Trouble(StrEnum):
    """What is wrong, worst first."""

    FAILED = "failed"
    FAILING = "failing"
    LATE = "late"
    OVERRUN = "overrun"
    UNSEEN = "unseen"
    UNAPPROVED = "unapproved"
    """In the last part of the notice; see `PRESSING`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """An event whose approval is waited for.

    Attributes:
        event_id: Its id.
        audience: Who would approve it.
        why: Whether anybody there has asked since it was announced.
    """

    event_id: str
    audience: str
    why: Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What holds a maintenance up.

    Attributes:
        next: What happens next.
        at: When at the latest; None: nobody can say.
        votes: Approvals that are waited for; with all of them it starts at once.
        behind: Ids of the maintenances that have to be over first.
        troubles: What somebody should look at, worst first.
        has_others: Whether somebody or something is waited for that is not named here; see `seen_by`.
    """

    next: Next
    at: datetime | None = None
    votes: tuple[Vote, ...] = ()
    behind: tuple[str, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    has_others: bool = False


def outlook(
    maintenance: Maintenance,
    events: Iterable[Event],
    neighbours: Iterable[Maintenance],
    asked_at: Callable[[str], datetime | None],
    now: datetime,
) -> Outlook:
    """What holds it up, what happens next, and what is wrong.

    Args:
        maintenance: The one.
        events: Its own.
        neighbours: Other active maintenances that hold a VM or a scope of it.
        asked_at: When an audience asked last, as far as known.
        now: The time.
    """
    others = sorted(neighbours, key=lambda other: other.sequence)
    match maintenance.state:
        case MaintenanceState.QUEUED:
            older = (m for m in others if m.sequence < maintenance.sequence and excludes(maintenance, m))
            return Outlook(next=Next.ANNOUNCED, behind=tuple(m.id for m in older))
        case MaintenanceState.SCHEDULED:
            return _of_scheduled(maintenance, events, others, asked_at, now)
        case MaintenanceState.STARTED:
            return _of_started(maintenance, now)
        case MaintenanceState.FAILED:
            return Outlook(next=Next.NOTHING, troubles=(Trouble.FAILED,))
        case _:
            return Outlook(next=Next.NOTHING)


def _of_scheduled(
    maintenance: Maintenance,
    events: Iterable[Event],
    others: list[Maintenance],
    asked_at: Callable[[str], datetime | None],
    now: datetime,
) -> Outlook:
    waiting = [event for event in events if event.is_listed and not event.is_approved]
    announced = maintenance.announced_at or maintenance.created_at
    votes = tuple(_missing(event, asked_at(event.audience), announced, now) for event in waiting)
    behind = tuple(other.id for other in others if is_held(maintenance, [other]))
    troubles = []
    if maintenance.not_before is not None and now - maintenance.not_before > LATE_AFTER:
        troubles.append(Trouble.LATE)
    if any(vote.why is Missing.NEVER_SEEN for vote in votes):
        troubles.append(Trouble.UNSEEN)
    at = maintenance.not_before
    if votes and at is not None and at - now <= (at - announced) / PRESSING:
        troubles.append(Trouble.UNAPPROVED)
    return Outlook(next=Next.STARTED, at=at, votes=votes, behind=behind, troubles=tuple(troubles))


def _of_started(maintenance: Maintenance, now: datetime) -> Outlook:
    begun = maintenance.impacted_at or maintenance.started_at
    expected = None
    if maintenance.duration_s >= 0 and begun is not None:
        expected = begun + timedelta(seconds=maintenance.duration_s)
    troubles = [Trouble.FAILING] if maintenance.attempts else []
    if expected is not None and now - expected > LATE_AFTER:
        troubles.append(Trouble.OVERRUN)
    return Outlook(next=Next.OVER, at=expected, troubles=tuple(troubles))


def _missing(event: Event, asked: datetime | None, announced: datetime, now: datetime) -> Vote:
    is_unseen = (asked is None or asked < announced) and now - announced > UNSEEN_AFTER
    why = Missing.NEVER_SEEN if is_unseen else Missing.NOT_APPROVED
    return Vote(event_id=event.id, audience=event.audience, why=why)


def seen_by(found: Outlook, event_ids: Collection[str], maintenance_ids: Collection[str]) -> Outlook:
    """What of it may be told to somebody for whom only these events and maintenances exist.

    Args:
        found: The whole of it.
        event_ids: What they may know of.
        maintenance_ids: As above.
    """
    votes = tuple(vote for vote in found.votes if vote.event_id in event_ids)
    behind = tuple(each for each in found.behind if each in maintenance_ids)
    whose = {Trouble.UNAPPROVED: bool(votes), Trouble.UNSEEN: any(vote.why is Missing.NEVER_SEEN for vote in votes)}
    return replace(
        found,
        votes=votes,
        behind=behind,
        troubles=tuple(each for each in found.troubles if whose.get(each, True)),
        has_others=len(votes) < len(found.votes) or len(behind) < len(found.behind),
    )
