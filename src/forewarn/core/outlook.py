"""Outlook of a maintenance: what it waits for, and what happens next, for people on call.

Nothing is decided here. The outlook predicts `settlement` and the scheduler, using the same functions.
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
"""Time after which a step counts as late; the scheduler needs at most one second."""


UNSEEN_AFTER = timedelta(seconds=90)
"""Time after the announcement before an audience without a request counts as not having seen it. A request to another
replica may be reported this late.
"""

PRESSING = 4
"""Divisor of the notice: a missing vote becomes urgent when only this fraction (one quarter) is left."""


class Next(StrEnum):
    """Next step of a maintenance."""

    ANNOUNCED = "announced"
    STARTED = "started"
    OVER = "over"
    NOTHING = "nothing"


class Missing(StrEnum):
    """Reason why a vote is missing."""

    NEVER_SEEN = "never-seen"
    NOT_APPROVED = "not-approved"


class Trouble(StrEnum):
    """Problem of a maintenance, worst first."""

    FAILED = "failed"
    FAILING = "failing"
    LATE = "late"
    OVERRUN = "overrun"
    UNSEEN = "unseen"
    UNAPPROVED = "unapproved"
    """Missing votes in the last part of the notice; see `PRESSING`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """An event whose approval is missing.

    Attributes:
        event_id: Id of the event.
        audience: Audience that would approve it.
        why: Reason: the audience has not asked since the announcement, or has not approved.
    """

    event_id: str
    audience: str
    why: Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Conditions that hold a maintenance up, and its next step.

    Attributes:
        next: Next step.
        at: Latest time of the next step; None if unknown.
        votes: Missing approvals; with all of them it starts at once.
        behind: Ids of the maintenances that must end first.
        troubles: Problems that need attention, worst first.
        has_others: True if it also waits for something not listed here; see `seen_by`.
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
    """Return what a maintenance waits for, what happens next, and what is wrong.

    Args:
        maintenance: The maintenance.
        events: Events of the maintenance.
        neighbours: Other active maintenances that hold a VM or a scope of it.
        asked_at: Time of an audience's last known request; None if none is known.
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
    """Return the part of an outlook that a caller limited to these events and maintenances may see.

    Args:
        found: The whole outlook.
        event_ids: Events visible to the caller.
        maintenance_ids: Maintenances visible to the caller.
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
