"""Strikes at the points in the code that are named as worth it: see `FailPoint`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forewarn.testing.simulation.machine import Machine
from forewarn.testing.simulation.virtual_loop import ProcessKilled, get_running_process
from forewarn.util.failpoint import FailPoint

__all__ = ["Strikes"]


class Strikes:
    """Kills or halts processes at the points that are armed.

    Args:
        find_machine: Returns the machine of that name.

    Attributes:
        reached: How often each point was reached.
        struck: At how many of them a process was struck.
    """

    def __init__(self, find_machine: Callable[[str], Machine]) -> None:
        self.reached: Counter[FailPoint] = Counter()
        self.struck: Counter[FailPoint] = Counter()
        self._find_machine = find_machine
        self._armed: dict[FailPoint, tuple[bool, asyncio.Future[Machine]]] = {}

    @contextmanager
    def arm(self, point: FailPoint, *, is_halt: bool) -> Iterator[asyncio.Future[Machine]]:
        """Strike the next process that reaches a point, if it does while the block runs.

        Args:
            point: The point.
            is_halt: True to halt the process, False to kill it.

        Returns:
            Future of the machine that was struck.
        """
        future: asyncio.Future[Machine] = asyncio.get_running_loop().create_future()
        self._armed[point] = is_halt, future
        try:
            yield future
        finally:
            if self._armed.get(point) == (is_halt, future):
                del self._armed[point]

    def reach(self, point: FailPoint) -> None:
        """Count that the running process has reached a point, and strike it if the point is armed."""
        process = get_running_process()
        self.reached[point] += 1
        if process is None or point not in self._armed:
            return
        is_halt, future = self._armed.pop(point)
        machine = self._find_machine(process.name)
        machine.note("struck", point=point.value)
        self.struck[point] += 1
        future.set_result(machine)
        if is_halt:
            machine.halt()
            return
        machine.kill()
        # Otherwise the code would go on until it waits for something, and might write to its disk.
        raise ProcessKilled
