"""An inventory that replaces another one shares with it what is equal, and knows what is not."""

from __future__ import annotations

from dataclasses import replace

from forewarn.core.inventory import Inventory
from forewarn.core.model import Host
from forewarn.publishing.inventory_index import InventoryDelta, InventoryIndex, compare_with_index
from tests.unit.core.builders import availability_set, vm

WEB, DB, OLD = vm("web"), vm("db", host="h2"), vm("old", host="h3")
FIRST = Inventory(hosts=(Host(name="h1"),), scopes=(availability_set("set"),), vms=(WEB, DB, OLD))


def copy(inventory: Inventory) -> Inventory:
    """The same, read from the database again."""
    return replace(
        inventory,
        scopes=tuple(replace(scope) for scope in inventory.scopes),
        vms=tuple(replace(each) for each in inventory.vms),
    )


def test_an_equal_inventory_differs_in_nothing_and_takes_no_memory() -> None:
    first = InventoryIndex.of(FIRST)
    second = InventoryIndex.of(copy(FIRST), first)
    assert second.delta == InventoryDelta(before=Inventory(), after=Inventory(), hosts=frozenset())
    assert replace(second, delta=None) == first
    assert all(second.vms[name] is first.vms[name] for name in first.vms)
    assert second.scopes["set"] is first.scopes["set"]
    assert second.vms_by_host["h2"][0] is first.vms["db"]


def test_what_was_added_changed_and_removed_is_the_difference() -> None:
    first = InventoryIndex.of(FIRST)
    moved, new = replace(DB, host="h4"), vm("new", host="h5")
    second = InventoryIndex.of(replace(copy(FIRST), vms=(replace(WEB), moved, new)), first)
    assert second.delta == InventoryDelta(
        before=Inventory(vms=(DB, OLD)),
        after=Inventory(vms=(moved, new)),
        hosts=frozenset({"h2", "h3", "h4", "h5"}),
    )
    assert second.vms["web"] is WEB
    assert set(second.vms) == {"web", "db", "new"}


def test_a_changed_scope_may_affect_any_host() -> None:
    other = replace(availability_set("set"), couples_deletes=True)
    delta = InventoryIndex.of(replace(FIRST, scopes=(other,)), InventoryIndex.of(FIRST)).delta
    assert delta == InventoryDelta(before=Inventory(scopes=FIRST.scopes), after=Inventory(scopes=(other,)), hosts=None)


def test_without_an_inventory_before_the_difference_is_not_known() -> None:
    assert InventoryIndex.of(FIRST).delta is None


def test_a_comparison_without_an_index_finds_the_same_difference() -> None:
    first, moved, new = InventoryIndex.of(FIRST), replace(DB, host="h4"), vm("new", host="h5")
    scope = replace(availability_set("set"), couples_deletes=True)
    for second in (
        copy(FIRST),
        replace(FIRST, vms=(WEB, moved, OLD)),
        replace(FIRST, vms=(*FIRST.vms, new)),
        replace(FIRST, vms=(WEB, moved, new)),
        replace(FIRST, scopes=(scope, availability_set("more"))),
        replace(FIRST, scopes=(), vms=()),
    ):
        assert compare_with_index(first, second) == InventoryIndex.of(second, first).delta
