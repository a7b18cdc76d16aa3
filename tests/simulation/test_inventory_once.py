"""An inventory that is repeated under its key is applied once: what came after it stays."""

from __future__ import annotations

import pytest

from forewarn.core.inventory import HostDeclaration, InventoryChange
from forewarn.core.model import VirtualMachine
from forewarn.engine.idempotency import IdempotencyKey
from forewarn.errors import IdempotencyMismatch
from tests.support.simulated import inventory, simulated

pytestmark = pytest.mark.anyio

ON_ONE = inventory(VirtualMachine(name="vm-1", host="host-1"), hosts=("host-1", "host-2"))
ON_TWO = inventory(VirtualMachine(name="vm-1", host="host-2"), hosts=("host-1", "host-2"))
FIRST, SECOND = IdempotencyKey(key="ann/first", fingerprint="1"), IdempotencyKey(key="ann/second", fingerprint="2")


async def test_one_that_comes_late_undoes_nothing() -> None:
    """So does a replica that was halted, and wakes with a request that another one has answered meanwhile."""
    made = await simulated(ON_ONE, enabled=())
    moved = await made.engine.inventory.apply(ON_TWO, "two", actor="operator:ann", key=FIRST)
    await made.engine.inventory.apply(ON_ONE, "one", actor="operator:ann", key=SECOND)
    assert await made.engine.inventory.apply(ON_TWO, "two", actor="operator:ann", key=FIRST) == moved
    assert [vm.host for vm in made.read(lambda reader: reader.get_inventory()).vms] == ["host-1"]


async def test_a_host_s_declaration_that_comes_late_undoes_nothing() -> None:
    made = await simulated(ON_ONE, enabled=())
    empty = HostDeclaration(host="host-1", vms=())
    await made.engine.inventory.apply_host(empty, actor="operator:ann", key=FIRST)
    await made.engine.inventory.apply(ON_ONE, "one", actor="operator:ann", key=SECOND)
    await made.engine.inventory.apply_host(empty, actor="operator:ann", key=FIRST)
    assert [vm.name for vm in made.read(lambda reader: reader.get_inventory()).vms] == ["vm-1"]


async def test_a_key_stands_for_one_request() -> None:
    made = await simulated(ON_ONE, enabled=())
    await made.engine.inventory.apply(ON_TWO, "two", actor="operator:ann", key=FIRST)
    other = IdempotencyKey(key=FIRST.key, fingerprint="another")
    with pytest.raises(IdempotencyMismatch):
        await made.engine.inventory.apply(ON_ONE, "one", actor="operator:ann", key=other)


async def test_a_sample_takes_the_place_of_nothing_only() -> None:
    """Another replica may have been told an inventory since this one looked."""
    made = await simulated(ON_TWO, enabled=())
    change = await made.engine.inventory.apply(ON_ONE, "sample", actor="forewarn", is_first=True)
    assert change == InventoryChange(unchanged=1)
    assert [vm.host for vm in made.read(lambda reader: reader.get_inventory()).vms] == ["host-2"]
