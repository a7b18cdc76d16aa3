"""Time limit for a handler's reaction, measured in time that the handler could use.

On a busy machine, a correct handler may take several times as long as elsewhere, because it has to wait for a
processor. Linux counts that time for each thread, so it can be distinguished from time in which a handler sleeps or
works.
"""

from __future__ import annotations

import contextlib
import os

__all__ = ["ProcessorWait", "ReactionTimer"]

_COUNTED_MAX_S = 0.25
"""Maximum part of one round that counts; a round takes less than half of that."""

_EXTENSION = 12.0
"""Maximum real time, as a multiple of the limit."""


class ReactionTimer:
    """Counts down the time that a handler has for a reaction.

    Two kinds of time do not count: time in which the handler waited for a processor, and time in which the event loop
    that looks at it was itself delayed. The second may be the loop's own fault, so it extends the limit at most by
    itself: otherwise a handler that is really slow would pass on a busy machine.

    Args:
        limit_s: Seconds that the handler has.
    """

    def __init__(self, limit_s: float) -> None:
        self._left_s = limit_s
        self._excusable_s = limit_s
        self._real_s = limit_s * _EXTENSION

    @property
    def is_over(self) -> bool:
        """True if the time is used up."""
        return self._left_s <= 0 or self._real_s <= 0

    def count_round(self, real_s: float, waited_s: float) -> None:
        """Count one round of looking at the handler.

        Args:
            real_s: Real seconds since the last round.
            waited_s: Seconds of these in which the handler waited for a processor; several threads may together have
                waited for longer than the round took.
        """
        self._real_s -= real_s
        usable_s = max(0.0, real_s - waited_s)
        excused_s = min(max(0.0, usable_s - _COUNTED_MAX_S), self._excusable_s)
        self._excusable_s -= excused_s
        self._left_s -= usable_s - excused_s


class ProcessorWait:
    """Measures how long a process and its descendants wait for a processor, on Linux; elsewhere it measures 0."""

    def __init__(self) -> None:
        self._waited_ns: dict[str, int] = {}

    def measure(self, pid: int) -> float:
        """Return the seconds that all threads have waited since the last call; since their start if they are new.

        A process that has ended since the last call, or has left its parent, is not counted.

        Args:
            pid: Process at the head of the tree.
        """
        waited_ns: dict[str, int] = {}
        pids = [str(pid)]
        while pids:
            folder = f"/proc/{pids.pop()}/task"
            with contextlib.suppress(OSError, IndexError):  # it has ended, or the kernel does not count
                for thread in os.listdir(folder):  # noqa: PTH208 - much cheaper, and done often
                    waited_ns[thread] = int(_read(f"{folder}/{thread}/schedstat").split()[1])
                    pids += _read(f"{folder}/{thread}/children").split()
        before, self._waited_ns = self._waited_ns, waited_ns
        # A thread's number may have been given to another one, which has waited for less.
        return sum(max(0, now_ns - before.get(thread, 0)) for thread, now_ns in waited_ns.items()) / 1e9


def _read(file: str) -> str:
    with open(file, encoding="ascii") as opened:  # noqa: PTH123 - much cheaper, and done often
        return opened.read()
