"""A lease that ends while an actuator is asked: nothing is begun on it, and all goes on when it is held again."""

from __future__ import annotations

import asyncio
from datetime import datetime

import pytest

from forewarn.actuators import Progress, Simulate
from forewarn.clock import RealClock
from forewarn.core.model import Maintenance, MaintenanceState
from forewarn.engine.leader_election import Leadership
from forewarn.errors import LeaseLost
from forewarn.store.contract import Transaction
from tests.support.simulated import Simulated, inventory, simulated
from tests.support.simulated_world import SCOPES, VMS
from tests.support.spans import GUARD_S

pytestmark = pytest.mark.anyio

_TURNS = 200


class Lent(Leadership):
    """A lease that somebody may take away."""

    is_held = True

    def ensure_leader(self) -> None:
        if not self.is_held:
            raise LeaseLost("the lease has expired")

    def ensure_leader_in(self, tx: Transaction) -> None:
        self.ensure_leader()


class Slow(Simulate):
    """It takes so long to look for what was begun that the lease ends meanwhile, the first time."""

    def __init__(self, lease: Lent) -> None:
        super().__init__()
        self.executed: list[bool] = []
        self.has_begun = asyncio.Event()
        self.has_looked = asyncio.Event()
        self._lease = lease

    async def observe(  # type: ignore[override] # nothing was begun at first, as the contract allows
        self, maintenance: Maintenance, now: datetime
    ) -> Progress | None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        if not self.has_looked.is_set():
            self._lease.is_held = False
        self.has_looked.set()
        return await super().observe(maintenance, now) if self.executed else None

    async def execute(self, maintenance: Maintenance, now: datetime) -> Progress:
        self.executed.append(self._lease.is_held)
        self.has_begun.set()
        return await super().execute(maintenance, now)


async def _begun() -> tuple[Simulated, Lent, Slow, Maintenance]:
    lease = Lent()
    actuator = Slow(lease)
    made = await simulated(inventory(*VMS, scopes=SCOPES), clock=RealClock(), actuator=actuator)
    made.engine.committer.leadership = lease
    maintenance = await made.schedule_one("hardware-failure", "db")
    return made, lease, actuator, maintenance


async def test_nothing_is_begun_when_the_lease_ended_while_it_was_looked_for() -> None:
    """Invariant 3: another replica may have begun it by then."""
    made, _, actuator, maintenance = await _begun()
    task = asyncio.create_task(made.scheduler.run())
    try:
        await asyncio.wait_for(actuator.has_looked.wait(), GUARD_S)
        await asyncio.sleep(0.05)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await made.scheduler.stop()
    assert actuator.executed == []
    assert made.get_maintenance(maintenance).state is MaintenanceState.STARTED


async def test_it_is_carried_out_when_the_lease_is_held_again() -> None:
    """Invariant 9: it does not wait for word that never comes."""
    made, lease, actuator, _ = await _begun()
    task = asyncio.create_task(made.scheduler.run())
    try:
        await asyncio.wait_for(actuator.has_looked.wait(), GUARD_S)
        await asyncio.sleep(0.05)
        lease.is_held = True
        made.scheduler.wake()
        await asyncio.wait_for(actuator.has_begun.wait(), GUARD_S)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await made.scheduler.stop()
    assert actuator.executed == [True]
