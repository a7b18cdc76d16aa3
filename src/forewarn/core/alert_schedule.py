"""Times at which a maintenance must be checked for conditions that no transition reports.

There are two: a VM has not seen its event while the notice runs out, and a maintenance is late. Each is checked once,
at a time known in advance, so it is a deadline like any other, and nothing polls.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from forewarn.core.model import Maintenance, MaintenanceState

__all__ = ["SEEN_LAG", "AlertCheck", "AlertThresholds", "get_next_check"]

SEEN_LAG = timedelta(seconds=90)
"""Maximum delay until a VM's request to another replica is known here: replicas record requests once a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertThresholds:
    """Thresholds of the checks; None turns a check off.

    Attributes:
        unseen_before: Time before NotBefore by which a VM must have asked since the announcement, but never in the
            first half of the notice.
        late_start_after: Time after NotBefore by which it must have started.
        late_end_after: Time after the announced duration by which it must be over.
    """

    unseen_before: timedelta | None = None
    late_start_after: timedelta | None = None
    late_end_after: timedelta | None = None

    @property
    def is_on(self) -> bool:
        """True if any check is on."""
        return any(span is not None for span in (self.unseen_before, self.late_start_after, self.late_end_after))


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertCheck:
    """One check of a maintenance.

    Attributes:
        announced_at: Time from which a request of a VM means that it has seen the event.
        at: Time of the check.
    """

    maintenance_id: str
    announced_at: datetime
    at: datetime


def get_next_check(
    maintenance: Maintenance, announced_at: datetime, now: datetime, alert_thresholds: AlertThresholds
) -> AlertCheck | None:
    """Return the first check after now; None if there is none left."""
    moments = [
        at for at in _list_check_times(maintenance, announced_at, alert_thresholds) if at is not None and at > now
    ]
    if not moments:
        return None
    return AlertCheck(maintenance_id=maintenance.id, announced_at=announced_at, at=min(moments))


def _list_check_times(
    maintenance: Maintenance, announced_at: datetime, alert_thresholds: AlertThresholds
) -> list[datetime | None]:
    not_before, started_at = maintenance.not_before, maintenance.started_at
    if maintenance.state is MaintenanceState.SCHEDULED and not_before is not None:
        late_at = None if alert_thresholds.late_start_after is None else not_before + alert_thresholds.late_start_after
        return [_get_unseen_check_time(not_before, announced_at, alert_thresholds.unseen_before), late_at]
    if maintenance.state is MaintenanceState.STARTED and started_at is not None:
        if alert_thresholds.late_end_after is None:
            return []
        # An unknown duration counts as 0, so that an endless maintenance is still reported.
        return [started_at + timedelta(seconds=max(maintenance.duration_s, 0)) + alert_thresholds.late_end_after]
    return []


def _get_unseen_check_time(not_before: datetime, announced_at: datetime, before: timedelta | None) -> datetime | None:
    """Return the time of the check for unseen events; None if the notice is too short to know which VMs have asked."""
    if before is None:
        return None
    # With a short notice, a VM that polls rarely would otherwise be reported before its first poll was due.
    half = announced_at + (not_before - announced_at) / 2
    at = max(not_before - before, half, announced_at + SEEN_LAG)
    return at if at < not_before else None
