from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from forewarn.core.inventory import (
    HostDeclaration,
    Inventory,
    InventoryChange,
    apply_inventory,
    find_moving_vms,
    merge_host_declaration,
)
from forewarn.core.model import (
    EventType,
    Host,
    MaintenanceState,
    NotificationProfile,
    PowerState,
    Scope,
    ScopeKind,
    VirtualMachine,
)
from forewarn.errors import Conflict
from tests.unit.core.builders import availability_set, maintenance, scale_set, vm

FIVE = NotificationProfile(enable=True, not_before_timeout=timedelta(minutes=5))
NINE = NotificationProfile(enable=True, not_before_timeout=timedelta(minutes=9))


def declared(*vms: VirtualMachine, scopes: tuple[Scope, ...] = ()) -> Inventory:
    return Inventory(hosts=(Host(name="host-1"),), scopes=scopes, vms=vms)


def test_the_declaration_replaces_what_was_declared_before() -> None:
    before = declared(vm("a"), vm("b"), vm("c"))
    after = declared(vm("b"), vm("c", host="host-2"), vm("d"), vm("e"))
    merged, change = apply_inventory(before, after, [])
    assert merged == after
    assert change == InventoryChange(added=2, changed=1, removed=1, unchanged=1)


def test_declaring_the_same_again_changes_nothing() -> None:
    scopes = (replace(scale_set(), terminate_notification=NINE),)
    first, _ = apply_inventory(Inventory(), declared(vm("a", scope="fleet"), vm("b"), scopes=scopes), [])
    second, change = apply_inventory(first, declared(vm("a", scope="fleet"), vm("b"), scopes=scopes), [])
    assert second == first
    assert change == InventoryChange(unchanged=2)


def test_a_new_vm_gets_the_delete_notification_of_its_scope() -> None:
    """R91."""
    scopes = (replace(scale_set(), terminate_notification=NINE),)
    merged, _ = apply_inventory(Inventory(), declared(vm("a", scope="fleet"), scopes=scopes), [])
    assert merged.vms[0].terminate_notification == NINE


def test_a_vm_keeps_the_delete_notification_that_it_was_brought_to() -> None:
    """R91."""
    old, new = (replace(scale_set(), terminate_notification=profile) for profile in (FIVE, NINE))
    before, _ = apply_inventory(Inventory(), declared(vm("a", scope="fleet"), scopes=(old,)), [])
    merged, change = apply_inventory(before, declared(vm("a", scope="fleet"), scopes=(new,)), [])
    assert merged.vms[0].terminate_notification == FIVE
    assert change == InventoryChange(unchanged=1)


def test_a_vm_that_changes_its_scope_gets_the_delete_notification_of_the_new_one() -> None:
    """R91."""
    scopes = tuple(
        replace(scale_set(name), terminate_notification=profile) for name, profile in (("old", FIVE), ("new", NINE))
    )
    before, _ = apply_inventory(Inventory(), declared(vm("a", scope="old"), scopes=scopes), [])
    merged, _ = apply_inventory(before, declared(vm("a", scope="new"), scopes=scopes), [])
    assert merged.vms[0].terminate_notification == NINE


def test_a_lone_vm_has_the_delete_notification_that_it_declares() -> None:
    """R91."""
    merged, _ = apply_inventory(Inventory(), declared(vm("a", terminate_timeout=timedelta(minutes=5))), [])
    assert merged.vms[0].terminate_notification == FIVE


@pytest.mark.parametrize("power_state", [PowerState.DEALLOCATED, PowerState.DELETED])
def test_a_vm_that_was_gone_runs_again_when_it_is_declared(power_state: PowerState) -> None:
    merged, change = apply_inventory(declared(vm("a", power_state=power_state)), declared(vm("a")), [])
    assert merged.vms[0].power_state is PowerState.RUNNING
    assert change == InventoryChange(changed=1)


def test_a_vm_that_a_maintenance_holds_cannot_be_removed() -> None:
    """R58: its audience is still owed the events."""
    held = maintenance(vm("a"))
    with pytest.raises(
        Conflict, match=r"vm a is held by maintenance maintenance-a \(scheduled\) and cannot be removed"
    ):
        apply_inventory(declared(vm("a"), vm("b")), declared(vm("b")), [held])


def test_a_vm_that_a_maintenance_holds_cannot_change_its_audience() -> None:
    """R51, R58."""
    scopes = (availability_set(),)
    held = maintenance(vm("a", scope="web"))
    with pytest.raises(Conflict, match="and cannot change its scope") as caught:
        apply_inventory(declared(vm("a", scope="web"), scopes=scopes), declared(vm("a"), scopes=scopes), [held])
    assert caught.value.details == {"vm": "a", "id": "maintenance-a"}


def test_a_vm_that_a_maintenance_holds_may_change_otherwise() -> None:
    held = maintenance(vm("a"), vm("forgotten"))
    _, change = apply_inventory(declared(vm("a")), declared(vm("a", size="Standard_D4s_v3")), [held])
    assert change == InventoryChange(changed=1)


# What one host says


def says(*vms: VirtualMachine, **more: object) -> HostDeclaration:
    return replace(HostDeclaration(host="host-1", vms=vms), **more)  # type: ignore[arg-type]


def test_a_host_declares_its_own_vms_and_leaves_those_of_others() -> None:
    before = declared(vm("a"), vm("gone"), vm("elsewhere", host="host-2"))
    after = merge_host_declaration(before, says(vm("a"), vm("new")), [])
    assert after.vms == (vm("a"), vm("elsewhere", host="host-2"), vm("new"))
    assert after.hosts == before.hosts


def test_saying_the_same_again_changes_nothing() -> None:
    before = declared(vm("b"), vm("a"), vm("c", host="host-2"), scopes=(availability_set(),))
    assert merge_host_declaration(before, says(vm("a"), vm("b"), scopes=(availability_set(),)), []) == before


def test_a_host_and_a_scope_that_are_new_are_added() -> None:
    after = merge_host_declaration(Inventory(), says(vm("a", scope="web"), scopes=(availability_set(),)), [])
    assert after == Inventory(hosts=(Host(name="host-1"),), scopes=(availability_set(),), vms=(vm("a", scope="web"),))


def test_a_vm_that_moved_here_is_here() -> None:
    after = merge_host_declaration(
        declared(vm("a", host="host-2", size="D4")), says(vm("a"), known_fields={"a": frozenset()}), []
    )
    assert after.vms == (vm("a", host="host-1", size="D4"),)


def test_a_vm_that_does_not_run_here_stays_where_it_is() -> None:
    """A migration leaves a definition behind, and a cold one defines before it undefines."""
    before = declared(vm("a", host="host-2"))
    assert merge_host_declaration(before, says(vm("a"), idle_vms=frozenset({"a"})), []).vms == before.vms
    assert merge_host_declaration(declared(), says(vm("a"), idle_vms=frozenset({"a"})), []).vms == (vm("a"),)


def test_what_a_host_does_not_know_of_a_vm_keeps_its_declared_value() -> None:
    before = declared(vm("a", scope="web", size="old", addresses=("10.0.0.1",)), scopes=(availability_set(),))
    said = says(vm("a", size="new"), known_fields={"a": frozenset({"size"})})
    assert merge_host_declaration(before, said, []).vms == (vm("a", scope="web", size="new", addresses=("10.0.0.1",)),)


def test_a_vm_that_was_deallocated_runs_again_when_its_host_says_so() -> None:
    before = declared(vm("a", power_state=PowerState.DEALLOCATED))
    idle = says(vm("a"), known_fields={"a": frozenset()}, idle_vms=frozenset({"a"}))
    assert merge_host_declaration(before, idle, []) == before
    assert merge_host_declaration(before, replace(idle, idle_vms=frozenset()), []).vms == (vm("a"),)


def test_a_vm_that_a_maintenance_holds_is_kept_though_its_host_has_it_no_more() -> None:
    """R58: while it is being redeployed it may be nowhere for a moment."""
    before = declared(vm("a"), vm("b"))
    assert merge_host_declaration(before, says(), [maintenance(vm("a"))]).vms == (vm("a"),)


def test_an_address_of_a_vm_elsewhere_cannot_be_taken() -> None:
    before = declared(vm("a", host="host-2", addresses=("10.0.0.1",)))
    with pytest.raises(Conflict, match=r"address 10\.0\.0\.1 of vm b belongs to vm a on host-2"):
        merge_host_declaration(before, says(vm("b", addresses=("10.0.0.1",))), [])


def test_a_scope_of_another_kind_is_refused() -> None:
    before = declared(scopes=(availability_set(),))
    with pytest.raises(Conflict, match="declares scope web as scale-set, but it is availability-set"):
        merge_host_declaration(before, says(scopes=(scale_set("web"),)), [])


# What a host says with its own token


def test_a_host_takes_over_only_those_vms_of_others_that_it_may() -> None:
    before = declared(vm("a", host="host-2"))
    said = says(vm("a"), known_fields={"a": frozenset()})
    with pytest.raises(Conflict, match="may not take over vm a"):
        merge_host_declaration(before, said, [], may_take=())
    assert merge_host_declaration(before, said, [], may_take={"a"}).vms == (vm("a"),)
    assert merge_host_declaration(before, replace(said, idle_vms=frozenset({"a"})), [], may_take=()).vms == before.vms
    assert merge_host_declaration(declared(), said, [], may_take=()).vms == (vm("a"),)


def test_a_host_that_may_not_join_scopes_adds_vms_only_to_scopes_that_it_runs_vms_of() -> None:
    elsewhere = vm("a", host="host-2", scope="web")
    before = declared(elsewhere, vm("lone"), scopes=(availability_set(),))
    new = says(vm("lone"), vm("b", scope="web"), scopes=(availability_set(),))
    with pytest.raises(Conflict, match="may not add vm b to scope web, because it runs no other VM") as refused:
        merge_host_declaration(before, new, [], may_take=(), may_join=False)
    assert refused.value.details == {"vm": "b", "host": "host-1", "scope": "web"}
    assert "host-2" not in str(refused.value)
    changed = says(vm("lone", scope="web"), scopes=(availability_set(),), known_fields={"lone": frozenset({"scope"})})
    with pytest.raises(Conflict, match="may not add vm lone to scope web"):
        merge_host_declaration(before, changed, [], may_take=(), may_join=False)
    here = replace(before, vms=(*before.vms, vm("c", scope="web")))
    assert vm("b", scope="web") in merge_host_declaration(here, new, [], may_take=(), may_join=False).vms
    assert vm("b", scope="web") in merge_host_declaration(before, new, [], may_take=()).vms


def test_a_host_that_may_not_join_scopes_takes_over_a_member_and_makes_scopes_of_its_own() -> None:
    before = declared(vm("a", host="host-2", scope="web"), scopes=(availability_set(),))
    said = says(vm("a", scope="web"), scopes=(availability_set(),), known_fields={"a": frozenset({"scope"})})
    assert merge_host_declaration(before, said, [], may_take={"a"}, may_join=False).vms == (vm("a", scope="web"),)
    assert merge_host_declaration(Inventory(), said, [], may_take=(), may_join=False).vms == (vm("a", scope="web"),)
    alone = Scope(name="alone", kind=ScopeKind.STANDALONE)
    said = says(vm("b", scope="alone"), scopes=(alone,))
    before = declared(vm("a", host="host-2", scope="alone"), scopes=(alone,))
    assert vm("b", scope="alone") in merge_host_declaration(before, said, [], may_take=(), may_join=False).vms


@pytest.mark.parametrize("kind", EventType)
@pytest.mark.parametrize("state", MaintenanceState)
def test_a_vm_moves_by_a_freeze_or_a_redeploy_that_has_started(kind: EventType, state: MaintenanceState) -> None:
    moves = kind in {EventType.FREEZE, EventType.REDEPLOY}
    has_begun = state in {MaintenanceState.STARTED, MaintenanceState.COMPLETED, MaintenanceState.FAILED}
    found = find_moving_vms([replace(maintenance(vm("a")), type=kind, state=state)])
    assert found == ({"a"} if moves and has_begun else set())
