"""Actuator that only lets time pass.

The progress of a maintenance follows from its start time, so a repeated call cannot do anything twice.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from forewarn.actuators.contract import Progress
from forewarn.core.model import Maintenance
from forewarn.util.duration import format_duration

__all__ = ["Simulate"]


class Simulate:
    """Impact and completion after fixed times.

    Args:
        impact_after: Time from start to impact; 7 s in the reference timeline (R98).
        complete_after: Time from start to completion, 10 min there; None to wait for ``forewarn maintenance complete``.
    """

    is_observable = True

    def __init__(
        self,
        impact_after: timedelta = timedelta(seconds=7),
        complete_after: timedelta | None = timedelta(minutes=10),
    ) -> None:
        self._impact_after = impact_after if complete_after is None else min(impact_after, complete_after)
        self._complete_after = complete_after

    def plan(self, maintenance: Maintenance) -> tuple[str, ...]:
        """Return how long it would take."""
        after = self._complete_after
        end = "an operator marks it complete" if after is None else f"{format_duration(after)} have passed"
        return (f"nothing happens to {', '.join(maintenance.vms)} until {end}",)

    async def check(self) -> None:
        """Do nothing: it can always run."""

    async def execute(self, maintenance: Maintenance, now: datetime) -> Progress:
        """Return the simulated progress."""
        return await self.observe(maintenance, now)

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress:
        """Return the simulated progress; it begins with the start of the maintenance."""
        started_at = maintenance.started_at or now
        impact_at = started_at + self._impact_after
        complete_at = None if self._complete_after is None else started_at + self._complete_after
        if now < impact_at:
            return Progress(check_at=impact_at)
        is_complete = complete_at is not None and now >= complete_at
        return Progress(is_impacted=True, is_complete=is_complete, check_at=None if is_complete else complete_at)

    async def abort(self, maintenance: Maintenance, now: datetime) -> None:
        """Do nothing: there is nothing to stop."""

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""
