"""What is declared: hosts, scopes, VMs; and what a new declaration changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from forewarn.core.model import Host, Maintenance, Scope, VirtualMachine, audience_key
from forewarn.errors import Conflict

__all__ = ["Inventory", "InventoryChange", "apply_inventory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Everything that is declared."""

    hosts: tuple[Host, ...] = ()
    scopes: tuple[Scope, ...] = ()
    vms: tuple[VirtualMachine, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryChange:
    """How many VMs a declaration added, changed, removed and left as they were."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0


def apply_inventory(
    current: Inventory, declared: Inventory, active: Iterable[Maintenance]
) -> tuple[Inventory, InventoryChange]:
    """Replace what is declared.

    A VM keeps the delete notification that it was last brought to (R91); a new one gets its scope's. A VM that was
    preempted or deleted runs again when it is still declared.

    Args:
        current: What was declared before.
        declared: What is declared now, valid in itself.
        active: The active maintenances.

    Returns:
        What to keep, and what it changes.

    Raises:
        Conflict: A VM of an active maintenance would vanish, or be seen by another audience.
    """
    before = {vm.name: vm for vm in current.vms}
    scopes_before = {scope.name: scope for scope in current.scopes}
    scopes = {scope.name: scope for scope in declared.scopes}
    vms = {vm.name: _with_profile(vm, before.get(vm.name), scopes) for vm in declared.vms}
    for maintenance in active:
        for name in maintenance.vms:
            _refuse_if_held(maintenance, before.get(name), vms.get(name), scopes_before, scopes)
    kept = [name for name in vms if name in before]
    changed = sum(vms[name] != before[name] for name in kept)
    change = InventoryChange(
        added=len(vms) - len(kept),
        changed=changed,
        removed=len(before) - len(kept),
        unchanged=len(kept) - changed,
    )
    return Inventory(hosts=declared.hosts, scopes=declared.scopes, vms=tuple(vms.values())), change


def _with_profile(vm: VirtualMachine, before: VirtualMachine | None, scopes: dict[str, Scope]) -> VirtualMachine:
    if vm.scope is None:
        return vm
    if before is not None and before.scope == vm.scope:
        return replace(vm, terminate_notification=before.terminate_notification)
    return replace(vm, terminate_notification=scopes[vm.scope].terminate_notification)


def _refuse_if_held(
    maintenance: Maintenance,
    before: VirtualMachine | None,
    after: VirtualMachine | None,
    scopes_before: dict[str, Scope],
    scopes: dict[str, Scope],
) -> None:
    if before is None:
        return
    words = f"vm {before.name} is held by maintenance {maintenance.id} ({maintenance.state})"
    hint = "cancel it or wait until it is over, then apply the inventory again"
    if after is None:
        msg = f"{words} and cannot be removed: {hint}"
        raise Conflict(msg, vm=before.name, id=maintenance.id)
    if audience_key(before, scopes_before.get(before.scope or "")) != audience_key(
        after, scopes.get(after.scope or "")
    ):
        msg = f"{words} and cannot change its scope: {hint}"
        raise Conflict(msg, vm=before.name, id=maintenance.id)
