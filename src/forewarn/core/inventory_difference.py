"""Differences between two inventories, and the limit on removals without confirmation."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from forewarn.core.inventory import Inventory
from forewarn.core.model import Host, PowerState, Scope, VirtualMachine
from forewarn.errors import TooManyRemovals

__all__ = [
    "ChangedObject",
    "InventoryDifference",
    "KindDifference",
    "RemovalLimit",
    "check_host_removals",
    "check_removals",
    "compare_inventories",
    "format_removed_counts",
    "format_scope_joins",
]

T = TypeVar("T", Host, Scope, VirtualMachine)

_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedObject:
    """One object before and after, and the fields that differ."""

    before: Any
    after: Any
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KindDifference:
    """Names of the hosts, scopes or VMs that were added and removed, and what changed in the others."""

    added: tuple[str, ...] = ()
    changed: Mapping[str, ChangedObject]
    removed: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if nothing differs."""
        return not (self.added or self.changed or self.removed)


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryDifference:
    """Differences between two inventories, by kind of object."""

    hosts: KindDifference
    scopes: KindDifference
    vms: KindDifference

    @property
    def is_empty(self) -> bool:
        """True if nothing differs."""
        return self.hosts.is_empty and self.scopes.is_empty and self.vms.is_empty


def compare_inventories(before: Inventory, after: Inventory) -> InventoryDifference:
    """Return the objects that `after` adds, changes and removes."""
    return InventoryDifference(
        hosts=_compare_objects(before.hosts, after.hosts),
        scopes=_compare_objects(before.scopes, after.scopes),
        vms=_compare_objects(before.vms, after.vms),
    )


def _compare_objects(before: Iterable[T], after: Iterable[T]) -> KindDifference:
    old = {each.name: each for each in before}
    new = {each.name: each for each in after}
    changed = {}
    for name, now in new.items():
        was = old.get(name)
        if was is not None and was != now:
            names = tuple(field.name for field in fields(now) if getattr(was, field.name) != getattr(now, field.name))
            changed[name] = ChangedObject(before=was, after=now, fields=names)
    return KindDifference(
        added=tuple(sorted(new.keys() - old.keys())),
        changed=changed,
        removed=tuple(sorted(old.keys() - new.keys())),
    )


def format_removed_counts(before: Inventory, after: Inventory) -> str:
    """Return how many hosts, scopes and VMs were removed, as in ``1 host, 28 VMs``; empty if none were."""
    counts = [
        (word, len({each.name for each in old} - {each.name for each in new}))
        for word, old, new in (
            ("host", before.hosts, after.hosts),
            ("scope", before.scopes, after.scopes),
            ("VM", before.vms, after.vms),
        )
    ]
    return ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for word, count in counts if count)


def format_scope_joins(before: Inventory, after: Inventory) -> str:
    """Return the VMs that entered a scope, as in ``web-7 (web)``; empty if none did."""
    scopes = {vm.name: vm.scope for vm in before.vms}
    joined = sorted((vm.name, vm.scope) for vm in after.vms if vm.scope not in {None, scopes.get(vm.name)})
    return _abbreviate_names([f"{name} ({scope})" for name, scope in joined])


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalLimit:
    """Maximum removals by one declaration without confirmation; hosts, scopes and VMs are counted separately.

    Both limits hold: the share protects a small fleet, the number a large one.

    Attributes:
        count_max: Maximum number that may be removed.
        share_max: Maximum share of the existing ones that may be removed, 0 to 1; rounded up, so one of five may go.
            Below 1, the last one is never removed without confirmation.
    """

    count_max: int = 10
    share_max: float = 0.1

    def count_allowed(self, total: int) -> int:
        """Return how many of `total` may be removed."""
        # Rounded first, because floating point makes 0.07 * 100 slightly more than 7.
        return min(self.count_max, math.ceil(round(self.share_max * total, 9)))


def check_removals(before: Inventory, after: Inventory, limit: RemovalLimit) -> None:
    """Check that a declaration does not remove more than is likely to be intended.

    VMs that were deleted on purpose do not count: they are expected to leave the inventory.

    Raises:
        TooManyRemovals: It removes more; carries counts and some of the names.
    """
    for word, old, new in (
        ("VMs", [vm.name for vm in before.vms if vm.power_state is not PowerState.DELETED], _list_names(after.vms)),
        ("hosts", _list_names(before.hosts), _list_names(after.hosts)),
        ("scopes", _list_names(before.scopes), _list_names(after.scopes)),
    ):
        _check_kind(word, old, set(new), limit)


def check_host_removals(host: str, before: Inventory, after: Inventory, limit: RemovalLimit) -> None:
    """Check that a host does not drop more of its VMs than is likely to be intended; its only VM may go.

    Raises:
        TooManyRemovals: It drops more.
    """
    kept = set(_list_names(after.vms))
    old = [vm.name for vm in before.vms if vm.host == host and vm.power_state is not PowerState.DELETED]
    if len(old) > 1:
        _check_kind(f"VMs of host {host}", old, kept, limit)


def _list_names(items: Iterable[T]) -> list[str]:
    return [each.name for each in items]


def _check_kind(label: str, before: Collection[str], after: set[str], limit: RemovalLimit) -> None:
    removed = sorted(name for name in before if name not in after)
    # An empty list is more likely a failed generator than an intended removal. A share of 1 turns this off.
    is_emptied = len(removed) == len(before) and limit.share_max < 1
    if not removed or (len(removed) <= limit.count_allowed(len(before)) and not is_emptied):
        return
    allowed = 0 if is_emptied and len(before) == 1 else limit.count_allowed(len(before))
    msg = (
        f"this inventory removes {len(removed)} of {len(before)} {label} ({_abbreviate_names(removed)}); "
        f"at most {allowed} may be removed without confirmation; "
        "to remove them, pass --remove-missing (in the API remove_missing=true)"
    )
    # The list is cut, because it is sent to the client and a fleet has thousands of VMs.
    raise TooManyRemovals(msg, removed=len(removed), of=len(before), kind=label, names=removed[:100])


def _abbreviate_names(names: Sequence[str]) -> str:
    """Return the first few names, and the number of the others."""
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
