"""What a host with its own token may put into a scope, and what the audit log keeps of it."""

from __future__ import annotations

import pytest

from forewarn.core.inventory import HostDeclaration
from forewarn.core.inventory_difference import RemovalLimit
from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.model import EntryKind
from forewarn.errors import Conflict
from tests.support.simulated import Simulated, inventory, simulated
from tests.unit.core.builders import availability_set, vm

pytestmark = pytest.mark.anyio

WEB = availability_set()
DECLARED = inventory(vm("web-0", scope="web"), hosts=("host-1", "host-2"), scopes=(WEB,))
INTRUDER = HostDeclaration(host="host-2", vms=(vm("thief", host="host-2", scope="web"),), scopes=(WEB,))


def members(made: Simulated) -> list[str]:
    return [vm.name for vm in made.read(lambda reader: reader.get_inventory()).vms if vm.scope == "web"]


async def test_a_host_joins_no_scope_of_others_where_the_setting_is_off() -> None:
    made = await simulated(DECLARED, enabled=(), rules=DecisionRules(hosts_may_join_scopes=False))
    with pytest.raises(Conflict, match="may not add vm thief to scope web"):
        await made.engine.inventory.apply_host(INTRUDER, actor="host:host-2", is_host=True)
    assert members(made) == ["web-0"]
    await made.engine.inventory.apply_host(INTRUDER, actor="operator:ann")
    assert members(made) == ["thief", "web-0"]
    await made.engine.inventory.apply_host(INTRUDER, actor="host:host-2", is_host=True)


async def test_the_audit_log_names_the_vms_that_a_host_puts_into_a_scope() -> None:
    made = await simulated(DECLARED, enabled=())
    await made.engine.inventory.apply_host(INTRUDER, actor="host:host-2", is_host=True)
    entry = made.entries()[-1]
    assert (entry.kind, entry.actor) == (EntryKind.INVENTORY_APPLIED, "host:host-2")
    assert entry.reason == "host host-2: 1 added, 0 changed, 0 removed; joined scopes: thief (web)"
    many = tuple(vm(f"web-{n}", scope="web") for n in range(8))
    await made.engine.inventory.apply_host(HostDeclaration(host="host-1", vms=many, scopes=(WEB,)), actor="host:host-1")
    reason = made.entries()[-1].reason or ""
    names = "web-1 (web), web-2 (web), web-3 (web), web-4 (web), web-5 (web) and 2 more"
    assert reason == f"host host-1: 7 added, 0 changed, 0 removed; joined scopes: {names}"


async def test_the_audit_log_tells_a_confirmed_removal_from_others() -> None:
    declared = inventory(
        *(vm(f"vm-{n}", host=f"host-{n % 2}") for n in range(3)),
        vm("web-0", scope="web", host="host-1"),
        hosts=("host-0", "host-1"),
        scopes=(WEB,),
    )
    made = await simulated(declared, enabled=())
    less = inventory(vm("vm-1", host="host-1"), hosts=("host-1",))
    await made.engine.inventory.apply(less, "less", actor="operator:ann", removals=RemovalLimit(share_max=1))
    assert made.entries()[-1].reason == "0 added, 0 changed, 3 removed"
    await made.engine.inventory.apply(declared, "all", actor="operator:ann")
    assert made.entries()[-1].reason == "3 added, 0 changed, 0 removed"
    await made.engine.inventory.apply(less, "less", actor="operator:ann")
    removed = "1 host, 1 scope, 3 VMs"
    assert made.entries()[-1].reason == f"0 added, 0 changed, 3 removed; removal confirmed: {removed}"


async def test_the_audit_log_marks_a_removal_that_was_confirmed_for_one_host() -> None:
    made = await simulated(inventory(*(vm(f"vm-{n}") for n in range(3)), hosts=("host-1",)), enabled=())
    await made.engine.inventory.apply_host(HostDeclaration(host="host-1", vms=(vm("vm-0"),)), actor="operator:ann")
    reason = "host host-1: 0 added, 0 changed, 2 removed; removal confirmed: 2 VMs"
    assert made.entries()[-1].reason == reason
