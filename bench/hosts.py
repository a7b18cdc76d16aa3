"""Many hosts that watch one replica, divided among several processes: one process may not open enough files."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.process import LOAD_CORE, BenchError, python_child

__all__ = ["Hosts", "count_allowed", "divide", "merge_joined"]

_HELD_MAX = 5000
"""Most watches of one process. Each process has a source address, so that ports do not run out."""

_OTHER_FILES = 600
"""Files that a replica needs besides the connections of hosts: its own 512, and callers such as the operator."""


class Hosts:
    """Child processes that hold the watches of hosts; a context manager.

    Args:
        port: Port of the control API on this machine.
        count: Number of hosts.
        patience_s: Longest time for any answer of a child process.
    """

    def __init__(self, port: int, count: int, log: Path, *, patience_s: float) -> None:
        self._parts = divide(count, _HELD_MAX)
        self._patience_s = patience_s
        self._children = [
            python_child(
                "bench.watchers",
                str(port),
                str(len(part)),
                str(part.start),
                f"127.0.0.{number}",
                core=LOAD_CORE,
                log=log,
            )
            for number, part in enumerate(self._parts, start=2)
        ]
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for child in self._children:
            self._stack.enter_context(child)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def join(self, *, window: int) -> dict[str, Any]:
        """Connect all hosts, at most about `window` of them at a time.

        Returns:
            `joined_s`, `took_s` of each host in order, and `state_bytes`, the mean size of a state.
        """
        return merge_joined(self._ask_all(do="join", window=max(1, window // len(self._children))))

    def expect(self, hosts: Sequence[int]) -> None:
        """Begin to wait for a change that these hosts will receive."""
        for child, part in zip(self._children, self._parts, strict=True):
            child.ask(do="expect", count=sum(host in part for host in hosts), timeout_s=self._patience_s)

    def hear(self) -> list[float]:
        """Return when each of the expected hosts received the change, in order.

        Raises:
            BenchError: Some of them did not.
        """
        moments_s: list[float] = []
        for child in self._children:
            heard = child.hear(self._patience_s)
            moments_s += heard["moments_s"]
            if len(heard["moments_s"]) != heard["count"]:
                raise BenchError(f"{len(heard['moments_s'])} of {heard['count']} hosts have heard of a change")
        return sorted(moments_s)

    def rest(self, seconds: float) -> int:
        """Receive for `seconds`; return the number of messages."""
        return sum(found["lines"] for found in self._ask_all(do="rest", seconds=seconds))

    def leave(self) -> None:
        """End all watches."""
        self._ask_all(do="leave")

    def _ask_all(self, **message: object) -> list[dict[str, Any]]:
        """Ask all of them at the same time."""
        for child in self._children:
            child.tell(**message)
        return [child.hear(self._patience_s) for child in self._children]


def divide(count: int, held_max: int) -> list[range]:
    """Divide hosts into as few parts as possible, of about the same size."""
    parts = max(1, -(-count // held_max))
    return [range(count * number // parts, count * (number + 1) // parts) for number in range(parts)]


def merge_joined(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the processes together measured while their hosts connected."""
    took_s = sorted(took for one in found for took in one["took_s"])
    state_bytes = sum(one["state_bytes"] * len(one["took_s"]) for one in found)
    return {
        "joined_s": max(one["joined_s"] for one in found),
        "took_s": took_s,
        "state_bytes": state_bytes / len(took_s),
    }


def count_allowed(wanted: int, *, files: int | None = None) -> int:
    """Return how many of the wanted watches one replica can hold here.

    Args:
        wanted: Number of watches to measure.
        files: Most files that a process may open; None: the hard limit of this process, which its children inherit.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if files is None else files
    if hard == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, hard - _OTHER_FILES))
