"""Clock of a simulated machine: it may be wrong, may be set while it runs, and may run too fast or too slowly."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from forewarn.clock import RealClock

__all__ = ["START", "MachineClock"]

START = datetime(2030, 1, 1, tzinfo=UTC)
"""True time at which every simulation starts."""


class MachineClock(RealClock):
    """A clock that follows the running loop. Like a real one, it never stops, and may be set.

    Args:
        loop: Loop whose time is the true time.
        offset: Lead over the true time.

    Attributes:
        offset: Lead over the true time; may be set.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, offset: timedelta = timedelta(0)) -> None:
        super().__init__()
        self._loop = loop
        self.offset = offset
        self._drift = 0.0
        self._drifts_since_s = 0.0
        self._drifted_s = 0.0

    def now(self) -> datetime:
        """Return the time that this clock shows."""
        return START + timedelta(seconds=self.uptime_s()) + self.offset

    def uptime_s(self) -> float:
        """Return the seconds since the start, unaffected by setting it."""
        true_s = self._loop.time()
        return true_s + self._drifted_s + self._drift * (true_s - self._drifts_since_s)

    def set_drift(self, drift: float) -> None:
        """Have the clock gain time from now on; what it has gained stays.

        Args:
            drift: Seconds gained in each second; negative for a clock that loses time, above -1.
        """
        true_s = self._loop.time()
        self._drifted_s, self._drifts_since_s = self.uptime_s() - true_s, true_s
        self._drift = drift

    def correct(self) -> None:
        """Set the clock to the true time, at which it then runs; the uptime keeps what it has gained."""
        self.set_drift(0.0)
        self.offset = -timedelta(seconds=self._drifted_s)
