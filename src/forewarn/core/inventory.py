"""Declared inventory: hosts, scopes, VMs; and the effect of a new declaration."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from forewarn.core.fast_replace import replace
from forewarn.core.model import (
    EventType,
    Host,
    Maintenance,
    MaintenanceState,
    PowerState,
    Scope,
    ScopeKind,
    VirtualMachine,
    audience_key,
)
from forewarn.errors import Conflict

__all__ = [
    "HostDeclaration",
    "Inventory",
    "InventoryChange",
    "apply_inventory",
    "check_held_vms",
    "extract_changes",
    "find_moving_vms",
    "merge_host_declaration",
]

N = TypeVar("N", bound=Host | Scope)
M = TypeVar("M", Host, Scope, VirtualMachine)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All declared hosts, scopes and VMs."""

    hosts: tuple[Host, ...] = ()
    scopes: tuple[Scope, ...] = ()
    vms: tuple[VirtualMachine, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryChange:
    """Number of VMs that a declaration added, changed, removed and left unchanged."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDeclaration:
    """Everything that one host runs, as far as it knows.

    Attributes:
        host: Name of the host.
        scopes: Scopes of its VMs. A scope that is declared already stays as it is.
        vms: All VMs defined on the host.
        known_fields: Fields that the host knows, by name of the VM; the others keep what was declared before.
        idle_vms: VMs that are defined on the host but do not run: if another host declares one, it remains that host's.
    """

    host: str
    scopes: tuple[Scope, ...] = ()
    vms: tuple[VirtualMachine, ...] = ()
    known_fields: Mapping[str, frozenset[str]] = field(default_factory=dict)
    idle_vms: frozenset[str] = frozenset()


_MOVES = frozenset({EventType.FREEZE, EventType.REDEPLOY})
"""Maintenance after which a VM may be on another host: a live migration is a Freeze."""

_BEGUN = frozenset({MaintenanceState.STARTED, MaintenanceState.COMPLETED, MaintenanceState.FAILED})


def find_moving_vms(maintenances: Iterable[Maintenance]) -> frozenset[str]:
    """Return the VMs that may be moving to another host, given the active and the just ended maintenances."""
    # A finished one counts too, because the new host may declare the VM only after the end.
    begun = (m for m in maintenances if m.type in _MOVES and m.state in _BEGUN)
    return frozenset(vm for maintenance in begun for vm in maintenance.vms)


def merge_host_declaration(
    current: Inventory,
    declared: HostDeclaration,
    active: Iterable[Maintenance],
    may_take: Collection[str] | None = None,
    *,
    may_join: bool = True,
) -> Inventory:
    """Return the inventory that results if one host runs `declared` and all others run what they ran before.

    A VM that moved to the host is taken over. A VM that is no longer on the host is removed, unless a maintenance holds
    it: a VM may be on no host for a moment while it is redeployed.

    Args:
        current: Inventory declared before.
        declared: Declaration of the host, valid in itself.
        active: The active maintenances.
        may_take: VMs of other hosts that it may take over; None for all. A host that uses its own token learns nothing
            about others, so if this is set, errors name no other host and no VM that it did not declare.
        may_join: True if it may put a VM into a declared scope of which it ran no VM before. Every member of a scope
            sees and approves its events.

    Returns:
        The inventory to declare; see `apply_inventory`.

    Raises:
        Conflict: An address belongs to a VM of another host, a scope is of another kind, or a VM may not be taken over
            or not be put into its scope.
    """
    held = {vm for maintenance in active for vm in maintenance.vms}
    before = {vm.name: vm for vm in current.vms}
    # A migration may leave the VM defined on its old host, which must not take it back.
    elsewhere = {name for name in declared.idle_vms if name in before and before[name].host != declared.host}
    on_host = {vm.name: _merge_vm(vm, before.get(vm.name), declared) for vm in declared.vms if vm.name not in elsewhere}
    _refuse_foreign_vms(declared.host, on_host, before, may_take)
    if not may_join:
        _refuse_foreign_scopes(declared.host, on_host.values(), before, current.scopes)
    kept = [vm for vm in current.vms if vm.name in on_host or vm.host != declared.host or vm.name in held]
    # Replaced in place, so that the order of the inventory does not depend on which host declared last.
    vms = [on_host.pop(vm.name, vm) for vm in kept]
    _refuse_foreign_addresses(declared.host, vms, on_host.values(), may_name_owner=may_take is None)
    return Inventory(
        hosts=_append_new(current.hosts, [Host(name=declared.host)]),
        scopes=_append_new(current.scopes, _check_scopes(declared, current.scopes)),
        vms=(*vms, *on_host.values()),
    )


def _merge_vm(vm: VirtualMachine, before: VirtualMachine | None, declared: HostDeclaration) -> VirtualMachine:
    """Overlay the old declaration with the fields that the host knows. A VM that runs is not deallocated."""
    if before is None:
        return vm
    known_values = {name: getattr(vm, name) for name in declared.known_fields.get(vm.name, ())}
    power_state = before.power_state if vm.name in declared.idle_vms else PowerState.RUNNING
    return replace(before, host=vm.host, power_state=power_state, **known_values)


def _append_new(before: tuple[N, ...], additions: Iterable[N]) -> tuple[N, ...]:
    names = {one.name for one in before}
    return (*before, *(one for one in additions if one.name not in names))


def _check_scopes(declared: HostDeclaration, current: Iterable[Scope]) -> tuple[Scope, ...]:
    kinds = {scope.name: scope.kind for scope in current}
    for scope in declared.scopes:
        kind = kinds.get(scope.name, scope.kind)
        if kind is not scope.kind:
            msg = f"host {declared.host} declares scope {scope.name} as {scope.kind}, but it is {kind}: make them agree"
            raise Conflict(msg, host=declared.host, scope=scope.name)
    return declared.scopes


def _refuse_foreign_vms(
    host: str, vm_names: Iterable[str], before: Mapping[str, VirtualMachine], may_take: Collection[str] | None
) -> None:
    if may_take is None:
        return
    for name in vm_names:
        if name in before and before[name].host != host and name not in may_take:
            msg = (
                f"host {host} may not take over vm {name}, which is declared for another host: "
                "a VM moves with a Freeze or Redeploy, or when an operator declares it here"
            )
            raise Conflict(msg, vm=name, host=host)


def _refuse_foreign_scopes(
    host: str, vms: Iterable[VirtualMachine], before: Mapping[str, VirtualMachine], scopes: Iterable[Scope]
) -> None:
    """Allow a VM to stay in its scope, or to enter one that is new or of which the host has VMs."""
    own = {vm.scope for vm in before.values() if vm.host == host}
    # Joining a standalone scope reveals nothing, because its VMs do not see each other's events.
    foreign = {scope.name for scope in scopes if scope.kind is not ScopeKind.STANDALONE} - own
    for vm in vms:
        if vm.scope in foreign and (vm.name not in before or before[vm.name].scope != vm.scope):
            msg = (
                f"host {host} may not add vm {vm.name} to scope {vm.scope}, because it runs no other VM of the scope "
                "(hosts_may_join_scopes is off): declare the VM with an operator's token first"
            )
            raise Conflict(msg, vm=vm.name, host=host, scope=vm.scope)


def _refuse_foreign_addresses(
    host: str, kept: Iterable[VirtualMachine], new: Iterable[VirtualMachine], *, may_name_owner: bool
) -> None:
    owners: dict[str, VirtualMachine] = {}
    for vm in (*kept, *new):
        for address in vm.addresses:
            other = owners.setdefault(address, vm)
            if other is not vm:
                # The message names the VM of this host, whichever of the two came first.
                own = vm if vm.host == host else other
                owner = f"vm {other.name} on {other.host}" if may_name_owner else "another vm"
                msg = f"host {host}: address {address} of vm {own.name} belongs to {owner}"
                raise Conflict(msg, vm=vm.name, host=host)


def apply_inventory(
    current: Inventory, declared: Inventory, active: Iterable[Maintenance]
) -> tuple[Inventory, InventoryChange]:
    """Replace the declared inventory.

    A VM that stays in its scope keeps its delete notification profile (R91); one that enters a scope gets the
    scope's. A VM that was preempted or deleted runs again if it is still declared. A host that has failed stays failed.

    Returns:
        The inventory to store, and the number of changes.

    Raises:
        Conflict: A VM of an active maintenance would vanish, or be seen by another audience.
    """
    before = {vm.name: vm for vm in current.vms}
    scopes_before = {scope.name: scope for scope in current.scopes}
    scopes = {scope.name: scope for scope in declared.scopes}
    vms = {vm.name: _apply_profile(vm, before.get(vm.name), scopes) for vm in declared.vms}
    check_held_vms(active, (before, scopes_before), (vms, scopes))
    kept = [name for name in vms if name in before]
    changed = sum(vms[name] != before[name] for name in kept)
    change = InventoryChange(
        added=len(vms) - len(kept),
        changed=changed,
        removed=len(before) - len(kept),
        unchanged=len(kept) - changed,
    )
    hosts_before = {host.name: host for host in current.hosts}
    hosts = tuple(
        replace(hosts_before[host.name], labels=host.labels) if host.name in hosts_before else host
        for host in declared.hosts
    )
    return Inventory(hosts=hosts, scopes=declared.scopes, vms=tuple(vms.values())), change


Named = tuple[Mapping[str, VirtualMachine], Mapping[str, Scope]]
"""VMs and scopes by name."""


def check_held_vms(active: Iterable[Maintenance], before: Named, after: Named) -> None:
    """Check that no VM of an active maintenance vanishes or changes its audience. VMs in no mapping are unchanged.

    Raises:
        Conflict: A VM would vanish or change its audience.
    """
    (vms_before, scopes_before), (vms, scopes) = before, after
    hint = "cancel it or wait until it ends, then apply the inventory again"
    for maintenance in active:
        # The caller may pass only what changed, so a missing VM is one that did not change.
        for was in (vms_before[name] for name in maintenance.vms if name in vms_before):
            prefix = f"vm {was.name} is held by maintenance {maintenance.id} ({maintenance.state})"
            now = vms.get(was.name)
            if now is None:
                raise Conflict(f"{prefix} and cannot be removed: {hint}", vm=was.name, id=maintenance.id)
            key = audience_key(now, scopes.get(now.scope or ""))
            if key != audience_key(was, scopes_before.get(was.scope or "")):
                raise Conflict(f"{prefix} and cannot change its scope: {hint}", vm=was.name, id=maintenance.id)


def extract_changes(before: Inventory, after: Inventory) -> tuple[Inventory, Inventory]:
    """Return both inventories without what they have in common, so that a small change costs little.

    A VM whose scope differs counts as changed, because its audience may differ.
    """
    hosts = _extract_changed(before.hosts, after.hosts)
    scopes = _extract_changed(before.scopes, after.scopes)
    vms = _extract_changed(before.vms, after.vms)
    names = {scope.name for side in scopes for scope in side}
    if names:
        changed = {vm.name for side in vms for vm in side}
        more = [[vm for vm in side.vms if vm.scope in names and vm.name not in changed] for side in (before, after)]
        vms = (*vms[0], *more[0]), (*vms[1], *more[1])
    return (
        Inventory(hosts=hosts[0], scopes=scopes[0], vms=vms[0]),
        Inventory(hosts=hosts[1], scopes=scopes[1], vms=vms[1]),
    )


def _extract_changed(before: tuple[M, ...], after: tuple[M, ...]) -> tuple[tuple[M, ...], tuple[M, ...]]:
    old, new = {one.name: one for one in before}, {one.name: one for one in after}
    return (
        tuple(one for one in before if new.get(one.name) != one),
        tuple(one for one in after if old.get(one.name) != one),
    )


def _apply_profile(vm: VirtualMachine, before: VirtualMachine | None, scopes: dict[str, Scope]) -> VirtualMachine:
    if vm.scope is None:
        return vm
    if before is not None and before.scope == vm.scope:
        return replace(vm, terminate_notification=before.terminate_notification)
    return replace(vm, terminate_notification=scopes[vm.scope].terminate_notification)
