"""What an inventory changes, and how much it may remove without confirmation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forewarn.core.inventory import Inventory
from forewarn.core.inventory_difference import RemovalLimit, check_host_removals, check_removals, compare_inventories
from forewarn.core.model import Host, PowerState
from forewarn.errors import TooManyRemovals
from tests.unit.core.builders import availability_set, vm


def fleet(count: int, *, hosts: int = 1, first: int = 0) -> Inventory:
    return Inventory(
        hosts=tuple(Host(name=f"host-{n}") for n in range(hosts)),
        vms=tuple(vm(f"vm-{n}", host="host-0") for n in range(first, count)),
    )


def test_a_difference_names_what_is_added_changed_and_removed() -> None:
    before = Inventory(
        hosts=(Host(name="old"), Host(name="kept")), scopes=(availability_set("web"),), vms=(vm("a"), vm("b"), vm("c"))
    )
    after = replace(before, hosts=(Host(name="kept"),), scopes=(), vms=(vm("b", host="kept"), vm("c"), vm("d")))
    found = compare_inventories(before, after)
    assert (found.hosts.added, found.hosts.removed) == ((), ("old",))
    assert found.scopes.removed == ("web",)
    assert (found.vms.added, found.vms.removed) == (("d",), ("a",))
    (name, change), *rest = found.vms.changed.items()
    assert (name, change.fields, change.before.host, change.after.host, rest) == ("b", ("host",), "host-1", "kept", [])
    assert not found.is_empty
    assert compare_inventories(before, before).is_empty


@pytest.mark.parametrize(
    ("total", "allowed"),
    [(1, 0), (2, 1), (5, 1), (10, 1), (11, 2), (30, 3), (100, 10), (101, 10), (1000, 10)],
)
def test_a_small_fleet_is_kept_by_the_share_and_a_large_one_by_the_number(total: int, allowed: int) -> None:
    limit = RemovalLimit(count_max=10, share_max=0.1)
    check_removals(fleet(total), fleet(total, first=allowed), limit)
    with pytest.raises(TooManyRemovals, match=rf"removes {allowed + 1} of {total} VMs \(vm-0"):
        check_removals(fleet(total), fleet(total, first=allowed + 1), limit)


def test_the_refusal_counts_and_names_and_says_what_to_do() -> None:
    with pytest.raises(TooManyRemovals) as caught:
        check_removals(fleet(200), fleet(0), RemovalLimit())
    assert caught.value.message == (
        "this inventory removes 200 of 200 VMs (vm-0, vm-1, vm-10, vm-100, vm-101 and 195 more); at most 10 may be "
        "removed without confirmation; to remove them, pass --remove-missing (in the API remove_missing=true)"
    )
    assert caught.value.details["removed"] == 200
    assert len(caught.value.details["names"]) == 100


def test_hosts_and_scopes_are_counted_apart() -> None:
    with pytest.raises(TooManyRemovals, match="2 of 4 hosts"):
        check_removals(fleet(50, hosts=4), fleet(50, hosts=2), RemovalLimit())
    scopes = tuple(availability_set(f"s-{n}") for n in range(3))
    with pytest.raises(TooManyRemovals, match="3 of 3 scopes"):
        check_removals(Inventory(scopes=scopes), Inventory(), RemovalLimit())


def test_a_vm_that_was_deleted_may_leave() -> None:
    gone = tuple(vm(f"gone-{n}", power_state=PowerState.DELETED) for n in range(50))
    check_removals(Inventory(vms=(*gone, vm("a"))), Inventory(vms=(vm("a"),)), RemovalLimit())


def test_the_limits_can_allow_everything_or_nothing() -> None:
    check_removals(fleet(5), fleet(0), RemovalLimit(count_max=100, share_max=1.0))
    with pytest.raises(TooManyRemovals):
        check_removals(fleet(5), fleet(5, first=1), RemovalLimit(count_max=100, share_max=0))


def test_a_host_that_suddenly_declares_none_is_refused_and_one_with_a_single_vm_may() -> None:
    before = Inventory(vms=(*(vm(f"a-{n}", host="h") for n in range(3)), vm("b", host="i"), vm("c", host="k")))
    check_host_removals("i", before, Inventory(vms=before.vms[:3]), RemovalLimit())
    check_host_removals("h", before, Inventory(vms=before.vms[1:]), RemovalLimit())
    with pytest.raises(TooManyRemovals, match=r"removes 3 of 3 VMs of host h \(a-0, a-1, a-2\)"):
        check_host_removals("h", before, Inventory(vms=before.vms[3:]), RemovalLimit())
