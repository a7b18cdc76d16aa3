"""Publication: a change of the inventory costs what it changes, however it arrives."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from forewarn.core.inventory import Inventory
from forewarn.core.model import Host, VirtualMachine
from forewarn.engine.publisher import InventoryUpdate, Publisher, plan_update
from forewarn.observability.tracing import Tracing
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity
from forewarn.publishing.inventory_index import InventoryDelta, InventoryIndex
from forewarn.store import MemoryStore
from forewarn.wire.imds import Dialect
from tests.unit.core.builders import vm

VMS = tuple(vm(f"vm-{number}", host=f"host-{number}") for number in range(600))
FIRST = Inventory(hosts=tuple(Host(name=f"host-{number}") for number in range(600)), vms=VMS)


class Replica:
    """A process that publishes what others write into the store."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.identity = Identity(Feed(Dialect()))
        self.publisher = Publisher(self.identity.feed, self.identity, Tracing())
        self.heard: list[InventoryDelta | None] = []
        self.write(FIRST)
        with self.store.read() as reader:
            self.publisher.publish_snapshot(self.publisher.read_snapshot(reader))
        self.identity.listeners.append(self.heard.append)

    def write(self, inventory: Inventory, before: Inventory | None = None) -> None:
        with self.store.write() as tx:
            tx.replace_inventory(inventory, None, before)

    def follow(self) -> None:
        with self.store.read() as reader:
            changes = self.publisher.read_remote_changes(reader)
        self.publisher.publish_remote_changes(changes)


@pytest.fixture
def replica() -> Replica:
    return Replica()


def change(vms: tuple[VirtualMachine, ...]) -> tuple[VirtualMachine, ...]:
    return tuple(replace(each, size="D4") for each in vms)


def test_a_small_change_of_another_replica_is_all_that_differs(replica: Replica) -> None:
    caller = replica.identity.find_caller("vm-7")
    changed = change(VMS[:1])
    replica.write(Inventory(vms=changed), Inventory(vms=VMS[:1]))
    replica.follow()
    [delta] = replica.heard
    assert delta == InventoryDelta(
        before=Inventory(vms=VMS[:1]), after=Inventory(vms=changed), hosts=frozenset({"host-0"})
    )
    assert caller is not None
    assert caller.is_current


@pytest.mark.parametrize("count", [501, 600])
def test_a_change_of_many_hosts_is_read_whole_and_published_as_what_differs(count: int, replica: Replica) -> None:
    """Connections of unchanged VMs go on; those of changed ones find out who they are."""
    kept, stale = replica.identity.find_caller("vm-599"), replica.identity.find_caller("vm-0")
    changed = change(VMS[:count])
    replica.write(Inventory(vms=changed), Inventory(vms=VMS[:count]))
    replica.follow()
    [delta] = replica.heard
    assert delta is not None
    assert set(delta.after.vms) == set(changed)
    assert replica.identity.find_declared("vm-0") == (changed[0], None)
    assert kept is not None
    assert stale is not None
    assert (kept.is_current, stale.is_current) == (count < 600, False)


def test_what_is_published_already_is_not_published_again(replica: Replica) -> None:
    replica.identity.replace_part(Inventory(vms=VMS[:1]), Inventory(vms=change(VMS[:1])))
    replica.heard.clear()
    replica.write(Inventory(vms=change(VMS[:1])), Inventory(vms=VMS[:1]))
    replica.follow()
    assert replica.heard == []
    with replica.store.read() as reader:
        assert replica.publisher.position == reader.get_position()


def test_a_new_host_without_vms_is_known(replica: Replica) -> None:
    replica.write(Inventory(hosts=(Host(name="new"),)), Inventory())
    replica.follow()
    assert "new" in replica.identity.hosts


def test_only_a_large_change_needs_an_index() -> None:
    index = InventoryIndex.of(FIRST)
    small = InventoryUpdate(before=Inventory(vms=VMS), after=Inventory(vms=VMS))
    assert plan_update(small, lambda: index) is small
    large = replace(small, after=Inventory(vms=tuple(vm(f"new-{number}") for number in range(1500))))
    assert plan_update(large, lambda: index) == replace(large, index=index)


def test_a_reload_of_the_same_inventory_invalidates_no_connection(replica: Replica) -> None:
    """Invariant 9: after a commit in doubt everything is read again."""
    caller = replica.identity.find_caller("vm-7")
    with replica.store.read() as reader:
        replica.publisher.publish_snapshot(replica.publisher.read_snapshot(reader))
    assert caller is not None
    assert caller.is_current
    assert replica.heard == [InventoryDelta(before=Inventory(), after=Inventory(), hosts=frozenset())]


def test_a_difference_counts_only_if_nothing_has_changed_since(replica: Replica) -> None:
    """After a commit in doubt, a whole state is published in between: what VMs are known as must not stay there."""
    index = replica.publisher.index_inventory(FIRST)
    replica.identity.replace_part(Inventory(vms=VMS[:1]), Inventory(vms=change(VMS[:1])))
    caller = replica.identity.find_caller("vm-0")
    replica.publisher.publish_inventory(InventoryUpdate(before=Inventory(), after=Inventory(), index=index))
    assert replica.heard[-1] is None
    assert replica.identity.find_declared("vm-0") == (VMS[0], None)
    assert caller is not None
    assert not caller.is_current


def test_a_large_inventory_is_freed_entry_by_entry(replica: Replica) -> None:
    """The event loop goes on meanwhile; freeing a whole table of a million VMs would halt it."""
    large = Inventory(vms=tuple(vm(f"vm-{number}", host="host-0") for number in range(10_001)))
    replica.publisher.publish_inventory(
        InventoryUpdate(before=Inventory(), after=Inventory(), index=InventoryIndex.of(large))
    )
    before = replica.identity.index
    replica.publisher.publish_inventory(
        InventoryUpdate(before=Inventory(), after=Inventory(), index=InventoryIndex.of(FIRST))
    )
    for thread in threading.enumerate():
        if thread.name == "forewarn-free":
            thread.join()
    assert (before.vms, before.name_by_address, before.vms_by_host) == ({}, {}, {})
    assert replica.identity.vm_count == len(VMS)
