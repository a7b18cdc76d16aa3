"""The trace of a run: a list of facts, for which one may wait."""

from __future__ import annotations

import asyncio

from forewarn.testing.simulation.trace import Trace
from forewarn.testing.simulation.virtual_loop import VirtualLoop


def run_for(timeout_s: float, kinds: frozenset[str]) -> float:
    """Return when the wait ended; a fact of the kind `a` is noted after 1 s and one of the kind `b` after 2 s."""

    async def run() -> float:
        trace, loop = Trace(), asyncio.get_running_loop()
        loop.call_later(1, trace.note, "vm-0", "a")
        loop.call_later(2, trace.note, "vm-0", "b")
        await trace.wait_for(kinds, timeout_s)
        return loop.time()

    loop = VirtualLoop()
    try:
        return loop.run_until_complete(run())
    finally:
        loop.close()


def test_a_wait_ends_with_the_next_fact_of_its_kinds() -> None:
    assert run_for(10, frozenset({"b"})) == 2
    assert run_for(10, frozenset({"a", "b"})) == 1


def test_a_wait_ends_at_its_time_limit() -> None:
    assert run_for(1.5, frozenset({"b"})) == 1.5
