"""When somebody ought to look at a maintenance again, to see whether all goes as announced.

Two things are worth a word that no transition says: that a VM has not seen what was announced to it while the notice
runs out, and that a maintenance is late. Each is looked for once, at a moment that is known beforehand; so there is a
deadline for it, as for everything else, and nobody scans.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from forewarn.core.model import Maintenance, MaintenanceState

__all__ = ["SEEN_LAG", "AlertThresholds", "Look", "look_after"]

SEEN_LAG = timedelta(seconds=90)
"""How long it may take until it is known here that a VM has asked: other replicas write it down once a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertThresholds:
    """What is looked for; None: that is not.

    Attributes:
        unseen_before: So long before NotBefore, or when half of the notice is over if that is later, a VM ought to have
            asked since it was announced.
        late_start_after: So long after NotBefore it ought to have started.
        late_end_after: So long after the announced duration it ought to be over.
    """

    unseen_before: timedelta | None = None
    late_start_after: timedelta | None = None
    late_end_after: timedelta | None = None

    @property
    def is_on(self) -> bool:
        """Whether anything is looked for at all."""
        return any(span is not None for span in (self.unseen_before, self.late_start_after, self.late_end_after))


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """When to look at a maintenance.

    Attributes:
        announced_at: From when a request of a VM means that it has seen it.
        at: When to look.
    """

    maintenance_id: str
    announced_at: datetime
    at: datetime


def look_after(
    maintenance: Maintenance, announced_at: datetime, now: datetime, alert_thresholds: AlertThresholds
) -> Look | None:
    """The first look after now; None: there is nothing to look for any more."""
    moments = [at for at in _moments(maintenance, announced_at, alert_thresholds) if at is not None and at > now]
    if not moments:
        return None
    return Look(maintenance_id=maintenance.id, announced_at=announced_at, at=min(moments))


def _moments(
    maintenance: Maintenance, announced_at: datetime, alert_thresholds: AlertThresholds
) -> list[datetime | None]:
    not_before, started_at = maintenance.not_before, maintenance.started_at
    if maintenance.state is MaintenanceState.SCHEDULED and not_before is not None:
        late_at = None if alert_thresholds.late_start_after is None else not_before + alert_thresholds.late_start_after
        return [_unseen_at(not_before, announced_at, alert_thresholds.unseen_before), late_at]
    if maintenance.state is MaintenanceState.STARTED and started_at is not None:
        if alert_thresholds.late_end_after is None:
            return []
        return [started_at + timedelta(seconds=max(maintenance.duration_s, 0)) + alert_thresholds.late_end_after]
    return []


def _unseen_at(not_before: datetime, announced_at: datetime, before: timedelta | None) -> datetime | None:
    """None where the notice is too short for anybody to know who has asked."""
    if before is None:
        return None
    half = announced_at + (not_before - announced_at) / 2
    at = max(not_before - before, half, announced_at + SEEN_LAG)
    return at if at < not_before else None
