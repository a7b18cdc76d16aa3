"""A replica that applies an inventory has shown first what the others had committed before."""

from __future__ import annotations

from datetime import timedelta

import pytest

from forewarn.actuators import Simulate
from forewarn.clock import RealClock
from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.model import VirtualMachine
from forewarn.engine.leader_election import LeasedLeadership
from forewarn.engine.transaction import run_inline
from forewarn.scheduling.scheduler import SchedulerSettings
from forewarn.store import SqlStore
from forewarn.util.ids import SeededIds
from forewarn.wire.imds import Dialect
from tests.support.databases import postgresql
from tests.support.simulated import Simulated, inventory, simulated
from tests.support.spans import GUARD_S

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ON_ONE = inventory(VirtualMachine(name="vm-1", host="host-1", addresses=("10.0.0.1",)), hosts=("host-1", "host-2"))
ON_TWO = inventory(VirtualMachine(name="vm-1", host="host-2", addresses=("10.0.0.1",)), hosts=("host-1", "host-2"))


def leased(made: Simulated, store: SqlStore, name: str) -> None:
    assert store.shared is not None
    made.engine.committer.leadership = LeasedLeadership(
        store.shared, made.clock, name, run_inline, timedelta(seconds=GUARD_S)
    )


async def test_a_vm_that_moves_is_shown_nothing_older_on_its_new_host() -> None:
    """R42, invariant 6: who moves it may have yet to hear of a document that its old host has shown."""
    with postgresql() as server, server.database() as database:
        store, other_store = database.open(busy_timeout_ms=60_000), database.open(busy_timeout_ms=60_000)
        made = await simulated(ON_ONE, store=store, clock=RealClock())
        other = Simulated(
            store=other_store,
            clock=RealClock(),
            actuator=Simulate(),
            rules=DecisionRules(),
            pace=SchedulerSettings(),
            dialect=Dialect(),
            ids=SeededIds(1),
        )
        leased(made, store, "one")
        leased(other, other_store, "two")
        await made.engine.restore_state()
        await other.engine.restore_state()
        await made.schedule_one("host-maintenance", "vm-1")
        wanted = made.channel("vm-1").document
        await other.engine.inventory.apply(ON_TWO, "moved", actor="operator:ann")
        assert other.channel("vm-1").document == wanted
        other_store.close()
