"""The inventory with its lookup tables, and the difference between two of them.

They are made on the thread that read the inventory, since a million VMs take seconds, in which the event loop must
answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TypeVar

from forewarn.core.inventory import Inventory
from forewarn.core.model import Scope, VirtualMachine

__all__ = ["InventoryDelta", "InventoryIndex", "compare_with_index"]

N = TypeVar("N", Scope, VirtualMachine)


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryDelta:
    """Replacement of a part of the inventory.

    Attributes:
        before: Part that was replaced.
        after: Part in its place.
        hosts: Names of the hosts whose VMs may differ; None for all hosts, since a scope differs.
    """

    before: Inventory
    after: Inventory
    hosts: frozenset[str] | None

    @classmethod
    def of_parts(cls, before: Inventory, after: Inventory) -> InventoryDelta:
        """Return the replacement of one part by another."""
        # A scope may have VMs on any host.
        has_scopes = bool(before.scopes or after.scopes)
        hosts = None if has_scopes else frozenset(vm.host for side in (before, after) for vm in side.vms)
        return cls(before=before, after=after, hosts=hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryIndex:
    """Inventory with its lookup tables. `Identity.load_inventory` takes ownership and changes them in place.

    Attributes:
        scopes, vms: Scopes and VMs by name.
        name_by_address: VM names by address.
        vms_by_host: VMs by host name.
        hosts: Names of all hosts.
        change_count: Number of changes that the `Identity` had taken over when it had this inventory. An inventory that
            is to replace it has the number of the one that it was compared with.
        delta: Difference from the inventory that it was compared with; None if it was compared with none.
    """

    scopes: dict[str, Scope] = field(default_factory=dict)
    vms: dict[str, VirtualMachine] = field(default_factory=dict)
    name_by_address: dict[str, str] = field(default_factory=dict)
    vms_by_host: dict[str, list[VirtualMachine]] = field(default_factory=dict)
    hosts: frozenset[str] = frozenset()
    change_count: int = 0
    delta: InventoryDelta | None = None

    @classmethod
    def of(cls, inventory: Inventory, before: InventoryIndex | None = None) -> InventoryIndex:
        """Index an inventory, on any thread; 100,000 VMs take a quarter of a second.

        Args:
            inventory: The inventory.
            before: Index that it will replace, and that nothing changes meanwhile. What is equal in both is shared, so
                that an inventory of which little has changed is neither twice in memory nor freed at once.
        """
        vms, delta, change_count = {vm.name: vm for vm in inventory.vms}, None, 0
        scopes = {scope.name: scope for scope in inventory.scopes}
        if before is not None:
            change_count = before.change_count
            vms_before, vms_after = _share(before.vms, vms)
            scopes_before, scopes_after = _share(before.scopes, scopes)
            delta = InventoryDelta.of_parts(
                Inventory(scopes=scopes_before, vms=vms_before), Inventory(scopes=scopes_after, vms=vms_after)
            )
        vms_by_host: dict[str, list[VirtualMachine]] = {}
        for vm in vms.values():
            vms_by_host.setdefault(vm.host, []).append(vm)
        for on_host in vms_by_host.values():
            on_host.sort(key=attrgetter("name"))  # so that an unchanged host compares equal in its watches
        return cls(
            scopes=scopes,
            vms=vms,
            name_by_address={address: vm.name for vm in vms.values() for address in vm.addresses},
            vms_by_host=vms_by_host,
            hosts=frozenset(host.name for host in inventory.hosts),
            change_count=change_count,
            delta=delta,
        )


def compare_with_index(index: InventoryIndex, inventory: Inventory) -> InventoryDelta:
    """Return what an inventory replaces of an indexed one, on any thread.

    Needs no table of all VMs, unless some are gone: to enlarge a table of a million VMs halts all threads.

    Args:
        index: Index of the inventory before, which nothing changes meanwhile.
        inventory: The inventory; most of its VMs are the same objects as those of the index.
    """
    vms_before, vms_after = _compare(index.vms, inventory.vms)
    scopes_before, scopes_after = _compare(index.scopes, inventory.scopes)
    return InventoryDelta.of_parts(
        Inventory(scopes=scopes_before, vms=vms_before), Inventory(scopes=scopes_after, vms=vms_after)
    )


def _compare(before: Mapping[str, N], after: Iterable[N]) -> tuple[tuple[N, ...], tuple[N, ...]]:
    """Return the values of both sides that differ."""
    added: list[N] = []
    kept = 0
    for value in after:
        known = before.get(value.name)
        kept += known is not None
        if known is not value and known != value:
            added.append(value)
    replaced = [before[value.name] for value in added if value.name in before]
    if kept < len(before):
        names = {value.name for value in after}
        replaced += [value for name, value in before.items() if name not in names]
    return tuple(replaced), tuple(added)


def _share(before: Mapping[str, N], after: dict[str, N]) -> tuple[tuple[N, ...], tuple[N, ...]]:
    """Replace each value of `after` by an equal one of `before`, and return the values of both that differ."""
    added: list[N] = []
    for name, value in after.items():
        known = before.get(name)
        if known is value:
            continue
        if known is not None and known == value:
            after[name] = known
        else:
            added.append(value)
    return _list_others(before, after), tuple(added)


def _list_others(before: Mapping[str, N], after: Mapping[str, N]) -> tuple[N, ...]:
    """Return the values that are not the same in `after`."""
    values: Iterable[N] = before.values()
    return tuple(value for value in values if after.get(value.name) is not value)
