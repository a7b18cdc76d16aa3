"""Conditions of a maintenance that no transition reports: a VM has not seen its event, the maintenance is late.

Each begins at a time known in advance. The audit log records it then, by a check that is a deadline like any other, so
nothing polls. The forecast reports it from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from forewarn.core.model import Event, Maintenance, MaintenanceState

__all__ = [
    "SEEN_LAG",
    "AlertCheck",
    "AlertThresholds",
    "find_unseen_events",
    "get_announcement_time",
    "get_next_check",
    "is_late",
]

SEEN_LAG = timedelta(seconds=90)
"""Maximum delay until a VM's request to another replica is known here: replicas record requests once a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertThresholds:
    """Thresholds of the conditions; with None there is no such condition.

    Attributes:
        unseen_before: Time before NotBefore by which a VM of each audience must have polled, but never in the
            first half of the notice.
        late_start_after: Time after NotBefore by which it must have started.
        late_end_after: Time after the announced duration by which it must be over.
    """

    unseen_before: timedelta | None = None
    late_start_after: timedelta | None = None
    late_end_after: timedelta | None = None

    @property
    def is_on(self) -> bool:
        """True if any threshold is set."""
        return any(span is not None for span in (self.unseen_before, self.late_start_after, self.late_end_after))


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertCheck:
    """One check of a maintenance."""

    maintenance_id: str
    at: datetime


def get_announcement_time(maintenance: Maintenance) -> datetime:
    """Return the time from which a request of a VM means that it has seen its event."""
    assert maintenance.announced_at is not None  # noqa: S101 - only what is queued has not been announced
    return maintenance.announced_at


def get_next_check(maintenance: Maintenance, now: datetime, alert_thresholds: AlertThresholds) -> AlertCheck | None:
    """Return the first check after now; None if there is none left."""
    moments = (_get_unseen_time(maintenance, alert_thresholds), _get_late_time(maintenance, alert_thresholds))
    at = min((moment for moment in moments if moment is not None and moment > now), default=None)
    return None if at is None else AlertCheck(maintenance_id=maintenance.id, at=at)


def find_unseen_events(
    maintenance: Maintenance,
    events: Iterable[Event],
    get_last_poll: Callable[[str], datetime | None],
    now: datetime,
    alert_thresholds: AlertThresholds,
) -> list[Event]:
    """Return the events that their audience should have seen by now, but has not.

    `get_last_poll` returns the time of an audience's last known request; None if none is known.
    """
    unseen_at = _get_unseen_time(maintenance, alert_thresholds)
    if unseen_at is None or now < unseen_at:
        return []
    # A request from before the announcement cannot have shown the event.
    announced_at = get_announcement_time(maintenance)
    return [
        event
        for event in events
        if event.is_listed
        and not event.is_approved
        and ((polled_at := get_last_poll(event.audience)) is None or polled_at < announced_at)
    ]


def is_late(maintenance: Maintenance, now: datetime, alert_thresholds: AlertThresholds) -> bool:
    """Return True if the maintenance should have started or ended by now, but has not."""
    late_at = _get_late_time(maintenance, alert_thresholds)
    return late_at is not None and now >= late_at


def _get_unseen_time(maintenance: Maintenance, alert_thresholds: AlertThresholds) -> datetime | None:
    """Return the time by which all VMs should have asked; None if the notice is too short to know which have."""
    not_before, before = maintenance.not_before, alert_thresholds.unseen_before
    if maintenance.state is not MaintenanceState.SCHEDULED or not_before is None or before is None:
        return None
    announced_at = get_announcement_time(maintenance)
    # With a short notice, a VM that polls rarely would otherwise be reported before its first poll was due.
    half = announced_at + (not_before - announced_at) / 2
    at = max(not_before - before, half, announced_at + SEEN_LAG)
    return at if at < not_before else None


def _get_late_time(maintenance: Maintenance, alert_thresholds: AlertThresholds) -> datetime | None:
    """Return the time at which the start or the end is late; None if it never is."""
    if maintenance.state is MaintenanceState.SCHEDULED:
        expected_at, grace = maintenance.not_before, alert_thresholds.late_start_after
    elif maintenance.state is MaintenanceState.STARTED:
        # The announced duration is that of the impact, which may begin long after the start.
        begun_at = maintenance.impacted_at or maintenance.started_at
        # An unknown duration counts as 0, so that an endless maintenance is still reported.
        expected_at = None if begun_at is None else begun_at + maintenance.known_duration
        grace = alert_thresholds.late_end_after
    else:
        return None
    return None if expected_at is None or grace is None else expected_at + grace
