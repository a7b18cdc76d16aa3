"""Strikes at named points in the code: the process that reaches an armed point is killed or halted there."""

from __future__ import annotations

import asyncio
import random

import pytest

from forewarn.testing.simulation.machine import Machine
from forewarn.testing.simulation.machine_clock import MachineClock
from forewarn.testing.simulation.network import Network
from forewarn.testing.simulation.strikes import Strikes
from forewarn.testing.simulation.trace import Trace
from forewarn.testing.simulation.virtual_loop import VirtualLoop
from forewarn.util.failpoint import FailPoint, listen_to_failpoints, reach_failpoint


class Writer(Machine):
    """Reaches a point between two writes to its disk, each second."""

    disk: list[str]

    async def run(self) -> None:
        while True:
            self.disk.append("before")
            reach_failpoint(FailPoint.COMMITTED)
            self.disk.append("after")
            await asyncio.sleep(1)


async def strike_writer(loop: VirtualLoop, *, is_halt: bool) -> list[str]:
    """Let the writer run for half a second unharmed, strike it, and return what is on its disk ten seconds later."""
    network, trace = Network(random.Random(1)), Trace()
    writer = Writer(network.add_node("writer", "10.0.0.1"), network, MachineClock(loop), trace)
    writer.disk = []
    strikes = Strikes({"writer": writer}.__getitem__)
    with listen_to_failpoints(strikes.reach):
        writer.start()
        await asyncio.sleep(0.5)
        with strikes.arm(FailPoint.COMMITTED, is_halt=is_halt) as struck:
            assert await struck is writer
        await asyncio.sleep(10)
        assert strikes.reached == {FailPoint.COMMITTED: 2}
        assert strikes.struck == {FailPoint.COMMITTED: 1}
    network.close()
    return writer.disk


@pytest.mark.parametrize(
    ("is_halt", "disk"),
    [(False, ["before", "after", "before"]), (True, ["before", "after", "before", "after"])],
    ids=["killed", "halted"],
)
def test_an_armed_point_ends_a_process_where_it_is(is_halt: bool, disk: list[str]) -> None:
    """Killed, it does nothing any more; halted, it goes on to where it waits."""
    loop = VirtualLoop()
    try:
        assert loop.run_until_complete(strike_writer(loop, is_halt=is_halt)) == disk
    finally:
        loop.drop_tasks()
        loop.close()


def test_a_point_that_was_not_reached_is_armed_no_longer() -> None:
    loop = VirtualLoop()

    async def run() -> None:
        machines: dict[str, Machine] = {}
        strikes = Strikes(machines.__getitem__)
        with strikes.arm(FailPoint.EXECUTED, is_halt=True) as struck:
            pass
        strikes.reach(FailPoint.EXECUTED)
        assert not struck.done()
        assert not strikes.struck

    loop.run_until_complete(run())
    loop.close()


def test_nothing_happens_at_a_point_to_which_no_one_listens() -> None:
    reached: list[FailPoint] = []
    reach_failpoint(FailPoint.COMMITTED)
    with listen_to_failpoints(reached.append):
        reach_failpoint(FailPoint.EXECUTED)
    reach_failpoint(FailPoint.NOTIFIED)
    assert reached == [FailPoint.EXECUTED]
