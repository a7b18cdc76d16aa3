"""Deadlines are in the database's time: setting a machine's clock makes no wait shorter or longer."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import pytest

from forewarn.actuators import Simulate
from forewarn.clock import RealClock, replace_uptime, uptime_s
from forewarn.config.loading import load_settings
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import MaintenanceState
from forewarn.engine.leader_election import LeasedLeadership
from forewarn.engine.shared_clock import SharedClock
from forewarn.engine.transaction import run_inline
from forewarn.server.backend import Backend
from forewarn.testing.simulation.database import Database, LinkState, ReplicaStore
from forewarn.testing.simulation.machine_clock import START, MachineClock
from tests.support.simulated import inventory
from tests.support.simulated_world import SCOPES, VMS
from tests.support.spans import GUARD_S

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)
_TURNS = 2000


@pytest.mark.parametrize("ahead", [HOUR * 2, HOUR * -2])
async def test_a_machine_clock_that_is_set_makes_no_deadline_come(
    ahead: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 4: the leader waits; it does not ask the database again and again."""
    loop = asyncio.get_running_loop()
    database, clock = Database(MachineClock(loop)), MachineClock(loop)
    store = ReplicaStore(database, LinkState(lambda: 1.0))
    backend = Backend(load_settings(None), store=store, clock=clock, actuator=Simulate())
    leadership = backend.engine.leadership
    assert isinstance(leadership, LeasedLeadership)
    await leadership._renew_or_take_lease()
    await backend.engine.restore_state()
    await backend.engine.inventory.apply(inventory(*VMS, scopes=SCOPES), "f", actor="operator:ann")
    [made] = await backend.engine.maintenances.schedule(
        MaintenanceRequest(cause="host-maintenance", vms=("db",), notice=HOUR), actor="operator:ann"
    )
    clock.offset = ahead
    transactions: list[object] = []
    write = database.write

    def write_and_count() -> AbstractContextManager[Any]:
        transactions.append(transaction := write())
        return transaction

    monkeypatch.setattr(database, "write", write_and_count)
    task = asyncio.create_task(backend.scheduler.run())
    try:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        assert 0 < len(transactions) < 10
        # The wait is neither over nor longer by what the machine's clock was set.
        assert abs(backend.scheduler._clock.now() - database.clock.now()) < HOUR
        with store.read() as reader:
            kept = reader.get_maintenance(made.id)
        assert kept is not None
        assert kept.state is MaintenanceState.SCHEDULED
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await backend.scheduler.stop()
        await leadership.release()


async def test_a_long_transaction_is_no_jump_and_makes_nothing_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction has one time: what it reads again at its end is long ago by then."""
    loop = asyncio.get_running_loop()
    database = Database(MachineClock(loop))
    store = ReplicaStore(database, LinkState(lambda: 1.0))
    backend = Backend(load_settings(None), store=store, clock=MachineClock(loop), actuator=Simulate())
    committer = backend.engine.committer
    passed_s = 0.0
    with replace_uptime(lambda: loop.time() + passed_s), store.write() as tx:
        moment = tx.now()
        monkeypatch.setattr(tx, "now", lambda: moment)
        assert committer.read_now(tx) == moment
        passed_s = 100.0
        assert committer.read_now(tx) == moment
        assert committer.clock.now() >= moment + timedelta(seconds=passed_s)
    assert committer.clock_guard.jump is None
    assert committer.clock_guard.jumps == 0


def make_clock() -> SharedClock:
    return SharedClock(RealClock())


def test_before_the_first_reading_the_machine_counts() -> None:
    before = RealClock().now()
    assert before <= make_clock().now() <= RealClock().now()


async def test_after_a_reading_the_time_goes_on_from_it() -> None:
    clock = make_clock()
    clock.observe(START, uptime_s(), uptime_s())
    await clock.wait_until(START + timedelta(milliseconds=2))
    assert START + timedelta(milliseconds=2) <= clock.now() < START + HOUR


@pytest.mark.parametrize(
    ("now_s", "asked_s", "answered_s", "shown_s"),
    [
        (110, 10, 10.5, 110),  # as expected
        (110, 2, 18, 110),  # the answer took long, so it says little
        (111, 10, 10.5, 110.5),  # the clock is late by half a second or more
        (109, 10, 10.5, 109),  # the database's clock was set back
    ],
)
def test_a_reading_corrects_the_clock_as_far_as_it_is_sure(
    now_s: float, asked_s: float, answered_s: float, shown_s: float
) -> None:
    """At second 0 it was 100: so at second 10 it is 110, unless the reading excludes that."""
    clock = make_clock()
    with replace_uptime(lambda: 10.0):
        clock.observe(START + timedelta(seconds=100), 0.0, 0.0)
        clock.observe(START + timedelta(seconds=now_s), asked_s, answered_s)
        assert clock.now() == START + timedelta(seconds=shown_s)


async def test_a_renewal_of_the_lease_is_a_reading() -> None:
    """While nothing is committed, it is the only one."""
    loop = asyncio.get_running_loop()
    database = Database(MachineClock(loop))
    store, clock = ReplicaStore(database, LinkState(lambda: 1.0)), make_clock()
    clock.observe(START - HOUR, uptime_s(), uptime_s())
    leased = LeasedLeadership(store, MachineClock(loop), "one", run_inline, shared_clock=clock)
    for _ in range(2):  # it is taken, then renewed
        await leased._renew_or_take_lease()
        assert abs(clock.now() - database.clock.now()) < timedelta(seconds=GUARD_S)
        clock.observe(START - HOUR, uptime_s(), uptime_s())
