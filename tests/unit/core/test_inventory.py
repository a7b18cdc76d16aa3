from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from forewarn.core.inventory import Inventory, InventoryChange, apply_inventory
from forewarn.core.model import Host, NotificationProfile, PowerState, Scope, VirtualMachine
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
