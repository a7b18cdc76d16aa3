"""An event loop on which no time is lost: when nothing is left to do, it jumps to the next timer.

Whatever sleeps, times out or waits for a moment does so on virtual time, in an order that is always the same. Nothing
may come from outside: no threads, no sockets, no processes.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any, TypeVar

from tests.support.world import NOW

__all__ = ["Stuck", "WarpClock", "WarpLoop", "run_warped"]

T = TypeVar("T")


class Stuck(AssertionError):
    """Everybody waits, and no timer is left that could end it."""


class _WarpSelector(selectors.SelectSelector):
    """Never waits: the time that it was to wait for has passed when it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.elapsed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck(f"after {self.elapsed_s:.3f} s everybody waits for somebody else")
        self.elapsed_s += max(timeout, 0.0)
        return []


class WarpLoop(asyncio.SelectorEventLoop):
    """A loop whose time begins at 0 and moves only when nothing else can."""

    def __init__(self) -> None:
        self._warp = _WarpSelector()
        super().__init__(self._warp)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._warp.elapsed_s


class WarpClock:
    """A `Clock` that follows the running loop, set wrong by as much as somebody wants.

    It calls itself real: it goes on by itself, and may be set back and forth.

    Attributes:
        offset: How far it is ahead of the true time.
        on_step: Told each time it steps.
    """

    is_virtual = False

    def __init__(self, loop: asyncio.AbstractEventLoop, offset: timedelta = timedelta(0)) -> None:
        self._loop = loop
        self.offset = offset
        self.on_step: Callable[[], None] = lambda: None
        self._steps: list[tuple[int, timedelta]] = []

    def now(self) -> datetime:
        """What this clock shows."""
        if self._steps:
            looks, by = self._steps.pop(0)
            if looks > 0:
                self._steps.insert(0, (looks - 1, by))
            else:
                self.offset += by
                self.on_step()
        return NOW + timedelta(seconds=self._loop.time()) + self.offset

    def uptime_s(self) -> float:
        """True seconds."""
        return self._loop.time()

    def step(self, by: timedelta, after_looks: int = 0) -> None:
        """Set it by that much, after it has been looked at so often: a clock may step between two looks."""
        self._steps.append((after_looks, by))

    async def wait_until(self, moment: datetime) -> None:
        """Sleep until this clock shows `moment`."""
        while (remaining_s := (moment - self.now()).total_seconds()) > 0:  # noqa: ASYNC110 - nobody tells of time
            await asyncio.sleep(min(remaining_s, 60.0))


def run_warped(work: Coroutine[Any, Any, T]) -> T:
    """Run it to its end on virtual time."""
    with asyncio.Runner(loop_factory=WarpLoop) as runner:
        return runner.run(work)
