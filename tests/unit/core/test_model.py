from __future__ import annotations

import pytest

from forewarn.core.model import ACTIVE_STATES, MaintenanceState, Scope, ScopeKind, audience_key
from tests.unit.core.builders import availability_set, maintenance, scale_set, vm


@pytest.mark.parametrize(
    ("size", "series"),
    [
        ("Standard_D2s_v3", "D"),
        ("Standard_NC6", "NC"),
        ("standard_nc6", "NC"),
        ("Basic_A1", "A"),
        ("Standard_m64", "M"),
        ("Standard_DS", "DS"),
        ("", ""),
        ("large", ""),
    ],
)
def test_the_series_of_a_size_is_its_leading_letters(size: str, series: str) -> None:
    assert vm("a", size=size).size_series == series


@pytest.mark.parametrize(("priority", "is_spot"), [("Spot", True), ("spot", True), ("Regular", False), ("", False)])
def test_a_vm_is_a_spot_vm_by_its_priority(priority: str, is_spot: bool) -> None:
    """R90."""
    assert vm("a", priority=priority).is_spot is is_spot


def test_a_vm_without_scope_is_an_audience_by_itself() -> None:
    """R58."""
    assert audience_key(vm("db"), None) == "vm:db"


def test_vms_of_a_standalone_scope_are_audiences_by_themselves() -> None:
    """R58."""
    alone = Scope(name="zone", kind=ScopeKind.STANDALONE)
    assert audience_key(vm("db", scope="zone"), alone) == "vm:db"


@pytest.mark.parametrize("kind", [ScopeKind.CLOUD_SERVICE, ScopeKind.AVAILABILITY_SET, ScopeKind.SCALE_SET])
def test_all_vms_of_a_group_are_one_audience(kind: ScopeKind) -> None:
    """R44, R58."""
    group = Scope(name="web", kind=kind)
    keys = {audience_key(vm(f"web-{i}", scope="web", fault_domain=i, update_domain=i), group) for i in range(3)}
    assert keys == {"scope:web"}


def test_zones_neither_narrow_a_group_nor_join_lone_vms() -> None:
    """R59."""
    group = availability_set()
    assert audience_key(vm("web-0", scope="web", zone="1"), group) == audience_key(
        vm("web-1", scope="web", zone="2"), group
    )
    assert audience_key(vm("a", zone="1"), None) != audience_key(vm("b", zone="1"), None)


def test_gpu_vms_of_a_scale_set_with_one_fault_domain_are_audiences_by_themselves() -> None:
    """R58."""
    group = scale_set(fault_domain_count=1)
    assert audience_key(vm("fleet_0", scope="fleet", size="Standard_NC6"), group) == "vm:fleet_0"
    assert audience_key(vm("fleet_1", scope="fleet", size="Standard_D2s_v3"), group) == "scope:fleet"


@pytest.mark.parametrize("fault_domain_count", [None, 2, 5])
def test_gpu_vms_of_a_scale_set_with_more_fault_domains_share_one_audience(fault_domain_count: int | None) -> None:
    """R58."""
    group = scale_set(fault_domain_count=fault_domain_count)
    assert audience_key(vm("fleet_0", scope="fleet", size="Standard_NC6"), group) == "scope:fleet"


def test_gpu_vms_of_an_availability_set_share_one_audience() -> None:
    """R58."""
    group = Scope(name="web", kind=ScopeKind.AVAILABILITY_SET, fault_domain_count=1)
    assert audience_key(vm("web-0", scope="web", size="Standard_NC6"), group) == "scope:web"


def test_a_maintenance_is_active_until_it_ends() -> None:
    active = {state for state in MaintenanceState if maintenance(state=state).is_active}
    assert active == ACTIVE_STATES
    assert set(MaintenanceState) - active == {
        MaintenanceState.COMPLETED,
        MaintenanceState.CANCELED,
        MaintenanceState.FAILED,
    }


def test_a_maintenance_names_the_vms_that_it_holds_in_order() -> None:
    """R33."""
    assert maintenance(vm("b"), vm("a")).vms == ("b", "a")
