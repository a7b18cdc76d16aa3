"""What a replica has committed itself is no news to it, unless another one has committed something in between."""

from __future__ import annotations

import pytest

from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import VirtualMachine
from tests.support.simulated import Simulated, inventory, simulated

pytestmark = pytest.mark.anyio

DECLARED = inventory(
    VirtualMachine(name="vm-1", host="host-1", addresses=("10.0.0.1",)),
    VirtualMachine(name="vm-2", host="host-1", addresses=("10.0.0.2",)),
)


async def schedule(made: Simulated, vm: str) -> None:
    request = MaintenanceRequest(cause="user-restart", vms=(vm,))
    await made.engine.maintenances.schedule(request, actor="operator:ann")


async def test_a_replica_finds_nothing_new_after_its_own_commits() -> None:
    """Invariant 9. The database announces them to it as well; it must not check all deadlines for each approval."""
    made = await simulated(DECLARED)
    await made.engine.committer.catch_up()
    told: list[bool] = []

    async def listen() -> None:
        told.append(True)

    made.engine.committer.remote_listeners.append(listen)
    await schedule(made, "vm-1")
    await schedule(made, "vm-2")
    assert not await made.engine.committer.catch_up()
    assert not told


async def test_a_commit_of_another_replica_before_its_own_is_still_news() -> None:
    """Invariant 9."""
    made = await simulated(DECLARED, enabled=("vm-2",))
    other = await simulated(DECLARED, store=made.store, clock=made.clock, enabled=())
    await made.engine.committer.catch_up()
    await other.engine.authority.enable("vm:vm-1", None)
    await schedule(made, "vm-2")
    assert not made.channel("vm-1").is_enabled
    assert await made.engine.committer.catch_up()
    assert made.channel("vm-1").is_enabled
    await schedule(made, "vm-1")
    assert not await made.engine.committer.catch_up()
