"""The only place that reads the time.

Everything else is handed *now* as an argument, or a `Clock` to ask. A `RealClock` follows the machine; a
`VirtualClock` stands still until somebody advances it, so that a simulated day runs in milliseconds and always the
same way.

All times are aware `datetime` in UTC.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

__all__ = ["VIRTUAL_START", "Clock", "RealClock", "SpedClock", "VirtualClock", "uptime_s"]

VIRTUAL_START = datetime(2030, 1, 1, tzinfo=UTC)
"""Where a virtual clock begins unless told otherwise."""


def uptime_s() -> float:
    """Seconds since some moment, read now; they go on while this process is halted and while the machine sleeps.

    The time of an event loop is taken once in each turn, and may be old.
    """
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Clock(Protocol):
    """Something that knows the time and can wait for a later one."""

    @property
    def is_virtual(self) -> bool:
        """Whether the time moves only when somebody advances it."""
        ...

    def now(self) -> datetime:
        """The present moment, aware, in UTC."""
        ...

    def uptime_s(self) -> float:
        """Seconds since some moment, at the pace of this clock, that go on however it is set."""
        ...

    async def wait_until(self, moment: datetime) -> None:
        """Return when `moment` has come; may be cancelled. Never returns early."""
        ...


class RealClock:
    """The machine's clock.

    A step of the wall clock is noticed within `recheck_s`, since long waits are cut into pieces of that length: a
    timer alone would sleep through it.
    """

    is_virtual = False

    def __init__(self, recheck_s: float = 1.0) -> None:
        self._recheck_s = recheck_s

    def now(self) -> datetime:
        """The wall clock, in UTC."""
        return datetime.fromtimestamp(time.time(), UTC)

    def uptime_s(self) -> float:
        """Seconds since the machine started, those among them in which it slept."""
        return uptime_s()

    async def wait_until(self, moment: datetime) -> None:
        """Sleep until the wall clock shows `moment`."""
        while (remaining_s := (moment - self.now()).total_seconds()) > 0:  # noqa: ASYNC110 - nobody tells of time
            await asyncio.sleep(min(remaining_s, self._recheck_s))


class SpedClock:
    """The wall clock from a moment on, so many times as fast.

    Args:
        speed: Seconds of this clock in one real second; more than 0.
        start: What it shows at first; None: the wall clock's time.
    """

    is_virtual = False

    def __init__(self, speed: float = 1.0, start: datetime | None = None) -> None:
        self._speed = speed
        self._began_s = time.monotonic()
        self._start = start or datetime.fromtimestamp(time.time(), UTC)

    def now(self) -> datetime:
        """Its time, in UTC."""
        return self._start + timedelta(seconds=self.uptime_s())

    def uptime_s(self) -> float:
        """Seconds since it was made, so many times as fast."""
        return (time.monotonic() - self._began_s) * self._speed

    async def wait_until(self, moment: datetime) -> None:
        """Sleep until it shows `moment`."""
        while (remaining_s := (moment - self.now()).total_seconds()) > 0:  # noqa: ASYNC110 - nobody tells of time
            await asyncio.sleep(remaining_s / self._speed)


class VirtualClock:
    """A clock that stands still until `set` moves it forward.

    Attributes:
        listeners: Called each time it has moved.
    """

    is_virtual = True

    def __init__(self, start: datetime = VIRTUAL_START) -> None:
        self._now = self._began_at = start
        self.listeners: list[Callable[[], None]] = []
        self._waiters: dict[asyncio.Future[None], datetime] = {}

    def now(self) -> datetime:
        """The moment the clock was last set to."""
        return self._now

    def uptime_s(self) -> float:
        """Seconds since it was made: it is only advanced, so it never jumps."""
        return (self._now - self._began_at).total_seconds()

    def set(self, moment: datetime) -> None:
        """Move the clock to `moment` and release who waited for it.

        Raises:
            ValueError: `moment` lies before now. A virtual clock never goes back.
        """
        if moment < self._now:
            msg = f"a virtual clock cannot go back from {self._now.isoformat()} to {moment.isoformat()}"
            raise ValueError(msg)
        self._now = moment
        for listener in self.listeners:
            listener()
        for waiter, due_at in list(self._waiters.items()):
            if due_at <= moment and not waiter.done():
                waiter.set_result(None)

    def advance(self, by: timedelta) -> None:
        """Move the clock forward by `by`."""
        self.set(self._now + by)

    async def wait_until(self, moment: datetime) -> None:
        """Wait until somebody moves the clock to `moment` or past it."""
        if moment <= self._now:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = moment
        try:
            await waiter
        finally:
            del self._waiters[waiter]
