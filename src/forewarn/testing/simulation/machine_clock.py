"""Clock of a simulated machine: wrong, fast or slow, and set while it runs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

__all__ = ["START", "MachineClock"]

START = datetime(2030, 1, 1, tzinfo=UTC)
"""True time at which every simulation starts."""

_RECHECK_S = 1.0


class MachineClock:
    """A `Clock` that follows the running loop. It counts as real: it never stops, and may be set.

    Args:
        loop: Loop whose time is the true time.
        offset: Lead over the true time.
        drift: Additional seconds per true second; negative for a slow clock.

    Attributes:
        offset: Lead over the true time; may be set.
    """

    is_virtual = False

    def __init__(self, loop: asyncio.AbstractEventLoop, offset: timedelta = timedelta(0), drift: float = 0.0) -> None:
        self._loop = loop
        self.offset = offset
        self._drift = drift

    def now(self) -> datetime:
        """Return the time that this clock shows."""
        return START + timedelta(seconds=self.uptime_s()) + self.offset

    def uptime_s(self) -> float:
        """Return the seconds since the start, at the pace of this clock, unaffected by setting it."""
        return self._loop.time() * (1 + self._drift)

    async def wait_until(self, moment: datetime) -> None:
        """Sleep until this clock shows `moment`."""
        while (remaining_s := (moment - self.now()).total_seconds()) > 0:  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(min(remaining_s, _RECHECK_S))
