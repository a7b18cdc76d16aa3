"""Forecast of a maintenance: what it waits for, and what happens next, for people on call.

Nothing is decided here. The forecast predicts `settlement` and the scheduler, using the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from forewarn.core.fast_replace import replace
from forewarn.core.maintenance.alert_schedule import AlertThresholds, find_unseen_events, get_announcement_time, is_late
from forewarn.core.maintenance.conflicts import find_blockers, is_held
from forewarn.core.model import Event, Maintenance, MaintenanceState

__all__ = [
    "Forecast",
    "MaintenanceProblem",
    "MissingVote",
    "MissingVoteReason",
    "NextStep",
    "forecast_maintenance",
    "restrict_forecast",
]

PRESSING = 4
"""Divisor of the notice: a missing vote becomes urgent when only this fraction (one quarter) is left."""


class NextStep(StrEnum):
    """Next step of a maintenance."""

    ANNOUNCED = "announced"
    STARTED = "started"
    OVER = "over"
    NOTHING = "nothing"


class MissingVoteReason(StrEnum):
    """Reason why a vote is missing."""

    NEVER_SEEN = "never-seen"
    NOT_APPROVED = "not-approved"


class MaintenanceProblem(StrEnum):
    """Problem of a maintenance, worst first. `alert_schedule` defines when it is late, overrun or unseen."""

    FAILED = "failed"
    FAILING = "failing"
    LATE = "late"
    OVERRUN = "overrun"
    UNSEEN = "unseen"
    UNAPPROVED = "unapproved"
    """Missing votes in the last part of the notice; see `PRESSING`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingVote:
    """An event whose approval is missing.

    Attributes:
        reason: The audience should have asked since the announcement, but has not, or has not approved.
    """

    event_id: str
    audience: str
    reason: MissingVoteReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Conditions that hold a maintenance up, and its next step.

    Attributes:
        at: Latest time of the next step; None if unknown.
        is_due: True if that time has come, so that nothing but `blocked_by` and the service itself delays the step.
        votes: Missing approvals; with all of them it starts at once.
        blocked_by: Ids of the maintenances that must end first, the oldest 20 at most.
        problems: Problems that need attention, worst first.
        has_hidden_blockers: True if it also waits for something not listed here; see `restrict_forecast`.
    """

    next_step: NextStep
    at: datetime | None = None
    is_due: bool = False
    votes: tuple[MissingVote, ...] = ()
    blocked_by: tuple[str, ...] = ()
    problems: tuple[MaintenanceProblem, ...] = ()
    has_hidden_blockers: bool = False


def forecast_maintenance(  # noqa: PLR0913 - all that it depends on
    maintenance: Maintenance,
    events: Iterable[Event],
    neighbours: Iterable[Maintenance],
    get_last_poll: Callable[[str], datetime | None],
    now: datetime,
    alert_thresholds: AlertThresholds,
    unavailable_max: Mapping[str, int] | None = None,
) -> Forecast:
    """Return what a maintenance waits for, what happens next, and what is wrong.

    `neighbours` are the other active maintenances that hold a VM or a scope of it; `get_last_poll` returns the time of
    an audience's last known request, None if none is known; `unavailable_max` has the limits of its scopes on
    unavailable VMs (see `tenancy.get_unavailable_max`), None if there are none.
    """
    others = sorted(neighbours, key=lambda other: other.sequence)
    match maintenance.state:
        case MaintenanceState.QUEUED:
            # The same condition decides when it leaves the queue, so the two cannot disagree.
            found = find_blockers(maintenance, others, unavailable_max or {})
            return Forecast(next_step=NextStep.ANNOUNCED, blocked_by=tuple(m.id for m in found))
        case MaintenanceState.SCHEDULED:
            return _forecast_scheduled(maintenance, list(events), others, get_last_poll, now, alert_thresholds)
        case MaintenanceState.STARTED:
            return _forecast_started(maintenance, now, alert_thresholds)
        case MaintenanceState.FAILED:
            return Forecast(next_step=NextStep.NOTHING, problems=(MaintenanceProblem.FAILED,))
        case _:
            return Forecast(next_step=NextStep.NOTHING)


def _forecast_scheduled(  # noqa: PLR0913 - as forecast_maintenance
    maintenance: Maintenance,
    events: Collection[Event],
    others: list[Maintenance],
    get_last_poll: Callable[[str], datetime | None],
    now: datetime,
    alert_thresholds: AlertThresholds,
) -> Forecast:
    waiting = [event for event in events if event.is_listed and not event.is_approved]
    unseen = find_unseen_events(maintenance, waiting, get_last_poll, now, alert_thresholds)
    reasons = {event.id: MissingVoteReason.NEVER_SEEN for event in unseen}
    votes = tuple(
        MissingVote(
            event_id=event.id,
            audience=event.audience,
            reason=reasons.get(event.id, MissingVoteReason.NOT_APPROVED),
        )
        for event in waiting
    )
    at = maintenance.not_before
    is_pressing = at is not None and at - now <= (at - get_announcement_time(maintenance)) / PRESSING
    problems = {
        MaintenanceProblem.LATE: is_late(maintenance, now, alert_thresholds),
        MaintenanceProblem.UNSEEN: bool(unseen),
        MaintenanceProblem.UNAPPROVED: bool(votes) and is_pressing,
    }
    if not waiting and any(event.is_listed for event in events):
        at = maintenance.due_at or at  # with all votes in, it starts before NotBefore
    return Forecast(
        next_step=NextStep.STARTED,
        at=at,
        is_due=at is not None and at <= now,
        votes=votes,
        blocked_by=tuple(other.id for other in others if is_held(maintenance, [other])),
        problems=_list_present(problems),
    )


def _forecast_started(maintenance: Maintenance, now: datetime, alert_thresholds: AlertThresholds) -> Forecast:
    # The announced duration is that of the impact, which may begin long after the start.
    begun = maintenance.impacted_at or maintenance.started_at
    expected = None if begun is None or maintenance.duration_s < 0 else begun + maintenance.known_duration
    problems = {
        MaintenanceProblem.FAILING: bool(maintenance.attempts),
        MaintenanceProblem.OVERRUN: is_late(maintenance, now, alert_thresholds),
    }
    is_due = expected is not None and expected <= now
    return Forecast(next_step=NextStep.OVER, at=expected, is_due=is_due, problems=_list_present(problems))


def _list_present(problems: Mapping[MaintenanceProblem, bool]) -> tuple[MaintenanceProblem, ...]:
    return tuple(problem for problem, is_present in problems.items() if is_present)


def restrict_forecast(forecast: Forecast, event_ids: Collection[str], maintenance_ids: Collection[str]) -> Forecast:
    """Return the part of a forecast that a caller limited to these events and maintenances may see."""
    votes = tuple(vote for vote in forecast.votes if vote.event_id in event_ids)
    behind = tuple(each for each in forecast.blocked_by if each in maintenance_ids)
    # These two are about missing votes, and a tenant must not learn that other tenants have not voted.
    visible = {
        MaintenanceProblem.UNAPPROVED: bool(votes),
        MaintenanceProblem.UNSEEN: any(vote.reason is MissingVoteReason.NEVER_SEEN for vote in votes),
    }
    return replace(
        forecast,
        votes=votes,
        blocked_by=behind,
        problems=tuple(each for each in forecast.problems if visible.get(each, True)),
        has_hidden_blockers=len(votes) < len(forecast.votes) or len(behind) < len(forecast.blocked_by),
    )
