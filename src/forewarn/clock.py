"""The only place that reads the time.

All other code receives *now*, or a `Clock`, as an argument. A `RealClock` follows the machine; a `VirtualClock`
stands still until it is advanced, so that a simulated day runs in milliseconds and always the same way.

All times are aware `datetime` in UTC.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Protocol

__all__ = [
    "VIRTUAL_START",
    "Clock",
    "RealClock",
    "ScaledClock",
    "VirtualClock",
    "replace_uptime",
    "uptime_s",
    "wait_until_or_event",
]

VIRTUAL_START = datetime(2030, 1, 1, tzinfo=UTC)
"""Default start of a virtual clock."""


def uptime_s() -> float:
    """Return the seconds since some moment; they go on while this process is halted and while the machine sleeps.

    Not the time of an event loop: a loop reads that once in each iteration, so it may be old.
    """
    return _read_uptime_s()


def _read_machine_uptime_s() -> float:
    # Only Linux has CLOCK_BOOTTIME, which goes on during suspension.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


_read_uptime_s: Callable[[], float] = _read_machine_uptime_s


@contextmanager
def replace_uptime(read_s: Callable[[], float]) -> Iterator[None]:
    """Have `uptime_s` return what this function returns while the block runs: for simulations only."""
    global _read_uptime_s  # noqa: PLW0603 - one clock for the whole process
    before, _read_uptime_s = _read_uptime_s, read_s
    try:
        yield
    finally:
        _read_uptime_s = before


class Clock(Protocol):
    """Source of the time that can wait for a later moment."""

    @property
    def is_virtual(self) -> bool:
        """True if the time moves only when it is advanced."""

    def now(self) -> datetime:
        """Return the current time, aware, in UTC."""

    def uptime_s(self) -> float:
        """Return the seconds since some moment, at the pace of this clock, unaffected by setting it."""

    async def wait_until(self, moment: datetime) -> None:
        """Return when `moment` has come; may be cancelled. Never returns early."""


class RealClock:
    """The machine's clock.

    A step of the wall clock is noticed within `recheck_s`, since long waits are divided into sleeps of that length: a
    single timer would sleep through it.
    """

    is_virtual = False

    def __init__(self, recheck_s: float = 1.0) -> None:
        self._recheck_s = recheck_s

    def now(self) -> datetime:
        """Return the wall clock's time, in UTC."""
        return datetime.fromtimestamp(time.time(), UTC)

    def uptime_s(self) -> float:
        """Return the seconds since the machine started, including those in which it slept."""
        return uptime_s()

    async def wait_until(self, moment: datetime) -> None:
        """Sleep until the wall clock shows `moment`."""
        while (remaining_s := (moment - self.now()).total_seconds()) > 0:  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(min(remaining_s, self._recheck_s))


class ScaledClock:
    """A clock that runs at a multiple of real time.

    Args:
        speed: Seconds of this clock in one real second; more than 0.
        start: Initial time; None for the wall clock's.
    """

    is_virtual = False

    def __init__(self, speed: float = 1.0, start: datetime | None = None) -> None:
        self._speed = speed
        self._began_s = time.monotonic()
        self._start = start or datetime.fromtimestamp(time.time(), UTC)

    def now(self) -> datetime:
        """Return this clock's time, in UTC."""
        return self._start + timedelta(seconds=self.uptime_s())

    def uptime_s(self) -> float:
        """Return the seconds since it was created, at its own pace."""
        return (time.monotonic() - self._began_s) * self._speed

    async def wait_until(self, moment: datetime) -> None:
        """Sleep until this clock shows `moment`."""
        while (remaining_s := (moment - self.now()).total_seconds()) > 0:  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(remaining_s / self._speed)


class VirtualClock:
    """A clock that stands still until `set` moves it forward.

    Attributes:
        listeners: Functions called each time it has moved.
    """

    is_virtual = True

    def __init__(self, start: datetime = VIRTUAL_START) -> None:
        self._now = self._began_at = start
        self.listeners: list[Callable[[], None]] = []
        self._waiters: dict[asyncio.Future[None], datetime] = {}

    def now(self) -> datetime:
        """Return the moment to which the clock was last set."""
        return self._now

    def uptime_s(self) -> float:
        """Return the seconds since it was created: it is only advanced, so it never jumps."""
        return (self._now - self._began_at).total_seconds()

    def set(self, moment: datetime) -> None:
        """Move the clock to `moment` and release everything that waits for it.

        Raises:
            ValueError: `moment` is before now. A virtual clock never goes back.
        """
        if moment < self._now:
            raise ValueError(f"a virtual clock cannot go back from {self._now.isoformat()} to {moment.isoformat()}")
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
        """Wait until the clock is moved to `moment` or past it."""
        if moment <= self._now:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = moment
        try:
            await waiter
        finally:
            del self._waiters[waiter]


async def wait_until_or_event(clock: Clock, moment: datetime, event: asyncio.Event) -> None:
    """Return when `moment` has come by that clock or `event` is set, whichever is first; may be cancelled."""
    waiting = {asyncio.ensure_future(clock.wait_until(moment)), asyncio.ensure_future(event.wait())}
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
