"""What is declared: hosts, scopes, VMs; and what a new declaration changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

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
from forewarn.core.value import replace
from forewarn.errors import Conflict

__all__ = [
    "HostDeclaration",
    "Inventory",
    "InventoryChange",
    "apply_inventory",
    "check_held",
    "moving_vms",
    "only_changes",
    "with_host",
]

N = TypeVar("N", bound=Host | Scope)
M = TypeVar("M", Host, Scope, VirtualMachine)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDeclaration:
    """Everything that one host runs, as far as it knows.

    Attributes:
        host: Its name.
        scopes: Of its VMs. One that is declared already stays as it is.
        vms: All that are defined there.
        known: Which fields of a VM it knows, by name; the others keep what was declared before.
        idle: VMs that are defined there and do not run: while another host has one, it is that host's.
    """

    host: str
    scopes: tuple[Scope, ...] = ()
    vms: tuple[VirtualMachine, ...] = ()
    known: Mapping[str, frozenset[str]] = field(default_factory=dict)
    idle: frozenset[str] = frozenset()


_MOVES = frozenset({EventType.FREEZE, EventType.REDEPLOY})
"""Maintenance after which a VM may be on another host: a live migration is a Freeze."""

_BEGUN = frozenset({MaintenanceState.STARTED, MaintenanceState.COMPLETED, MaintenanceState.FAILED})


def moving_vms(maintenances: Iterable[Maintenance]) -> frozenset[str]:
    """VMs that may be on their way to another host, by these maintenances: active ones, or ended a moment ago."""
    begun = (m for m in maintenances if m.type in _MOVES and m.state in _BEGUN)
    return frozenset(vm for maintenance in begun for vm in maintenance.vms)


def with_host(
    current: Inventory,
    declared: HostDeclaration,
    active: Iterable[Maintenance],
    may_take: Collection[str] | None = None,
    *,
    may_join: bool = True,
) -> Inventory:
    """The inventory when one host runs that, and all others what they ran before.

    A VM that moved here is here. A VM that is no longer here is gone, unless a maintenance holds it: while a machine is
    being redeployed it may be nowhere for a moment.

    Args:
        current: What was declared before.
        declared: What the host says, valid in itself.
        active: The active maintenances.
        may_take: VMs of other hosts that it may take over; None: all. A host that speaks for itself, with its own
            token, is not told of others, so an error names none of them.
        may_join: Whether it may put a VM into a declared scope of which it ran no VM before. Whoever is in a scope
            sees and approves its events.

    Returns:
        What to declare; see `apply_inventory`.

    Raises:
        Conflict: An address belongs to a VM of another host, a scope is of another kind, or a VM may not be taken over
            or not be put into its scope.
    """
    held = {vm for maintenance in active for vm in maintenance.vms}
    before = {vm.name: vm for vm in current.vms}
    elsewhere = {name for name in declared.idle if name in before and before[name].host != declared.host}
    here = {
        vm.name: _with_unknown(vm, before.get(vm.name), declared) for vm in declared.vms if vm.name not in elsewhere
    }
    _refuse_foreign_vms(declared.host, here, before, may_take)
    if not may_join:
        _refuse_foreign_scopes(declared.host, here.values(), before, current.scopes)
    kept = [vm for vm in current.vms if vm.name in here or vm.host != declared.host or vm.name in held]
    vms = [here.pop(vm.name, vm) for vm in kept]
    _refuse_foreign_addresses(declared.host, vms, here.values(), is_told=may_take is None)
    return Inventory(
        hosts=_with_named(current.hosts, [Host(name=declared.host)]),
        scopes=_with_named(current.scopes, _checked_scopes(declared, current.scopes)),
        vms=(*vms, *here.values()),
    )


def _with_unknown(vm: VirtualMachine, before: VirtualMachine | None, declared: HostDeclaration) -> VirtualMachine:
    """What the host says of it, and of the rest what was declared before. A VM that runs is not deallocated."""
    if before is None:
        return vm
    said = {name: getattr(vm, name) for name in declared.known.get(vm.name, ())}
    power_state = before.power_state if vm.name in declared.idle else PowerState.RUNNING
    return replace(before, host=vm.host, power_state=power_state, **said)


def _with_named(before: tuple[N, ...], more: Iterable[N]) -> tuple[N, ...]:
    names = {one.name for one in before}
    return (*before, *(one for one in more if one.name not in names))


def _checked_scopes(declared: HostDeclaration, current: Iterable[Scope]) -> tuple[Scope, ...]:
    kinds = {scope.name: scope.kind for scope in current}
    for scope in declared.scopes:
        kind = kinds.get(scope.name, scope.kind)
        if kind is not scope.kind:
            msg = f"host {declared.host} has scope {scope.name} as {scope.kind}, declared is {kind}: make them agree"
            raise Conflict(msg, host=declared.host, scope=scope.name)
    return declared.scopes


def _refuse_foreign_vms(
    host: str, here: Iterable[str], before: Mapping[str, VirtualMachine], may_take: Collection[str] | None
) -> None:
    if may_take is None:
        return
    for name in here:
        if name in before and before[name].host != host and name not in may_take:
            msg = (
                f"host {host} may not take over vm {name}, which is declared for another host: "
                "it moves while a Freeze or Redeploy carries it over, or when an operator declares it here"
            )
            raise Conflict(msg, vm=name, host=host)


def _refuse_foreign_scopes(
    host: str, here: Iterable[VirtualMachine], before: Mapping[str, VirtualMachine], scopes: Iterable[Scope]
) -> None:
    """A VM stays in the scope that it was in, and may go into one that is new or that the host has VMs of."""
    own = {vm.scope for vm in before.values() if vm.host == host}
    foreign = {scope.name for scope in scopes if scope.kind is not ScopeKind.STANDALONE} - own
    for vm in here:
        if vm.scope in foreign and (vm.name not in before or before[vm.name].scope != vm.scope):
            msg = (
                f"host {host} may not put vm {vm.name} into scope {vm.scope}, of which it runs no VM "
                "(hosts_may_join_scopes is off): declare the VM with an operator's token first"
            )
            raise Conflict(msg, vm=vm.name, host=host, scope=vm.scope)


def _refuse_foreign_addresses(
    host: str, kept: Iterable[VirtualMachine], new: Iterable[VirtualMachine], *, is_told: bool
) -> None:
    owners: dict[str, VirtualMachine] = {}
    for vm in (*kept, *new):
        for address in vm.addresses:
            other = owners.setdefault(address, vm)
            if other is not vm:
                own = vm if vm.host == host else other
                owner = f"vm {other.name} on {other.host}" if is_told else "another vm"
                msg = f"host {host}: address {address} of vm {own.name} is that of {owner}"
                raise Conflict(msg, vm=vm.name, host=host)


def apply_inventory(
    current: Inventory, declared: Inventory, active: Iterable[Maintenance]
) -> tuple[Inventory, InventoryChange]:
    """Replace what is declared.

    A VM keeps the delete notification that it was last brought to (R91); a new one gets its scope's. A VM that was
    preempted or deleted runs again when it is still declared. A host that has failed stays failed.

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
    check_held(active, (before, scopes_before), (vms, scopes))
    kept = [name for name in vms if name in before]
    changed = sum(vms[name] != before[name] for name in kept)
    change = InventoryChange(
        added=len(vms) - len(kept),
        changed=changed,
        removed=len(before) - len(kept),
        unchanged=len(kept) - changed,
    )
    hosts_before = {host.name: host for host in current.hosts}
    hosts = tuple(hosts_before.get(host.name, host) for host in declared.hosts)
    return Inventory(hosts=hosts, scopes=declared.scopes, vms=tuple(vms.values())), change


Named = tuple[Mapping[str, VirtualMachine], Mapping[str, Scope]]
"""VMs and scopes by name."""


def check_held(active: Iterable[Maintenance], before: Named, after: Named) -> None:
    """See that no VM of an active maintenance vanishes or changes its audience.

    Args:
        active: The active maintenances.
        before: VMs and scopes before. VMs that are on neither side are taken as unchanged.
        after: VMs and scopes after.

    Raises:
        Conflict: One does.
    """
    for maintenance in active:
        for name in maintenance.vms:
            _refuse_if_held(maintenance, before[0].get(name), after[0].get(name), before[1], after[1])


def only_changes(before: Inventory, after: Inventory) -> tuple[Inventory, Inventory]:
    """Return both inventories without what is the same in them, so that a small change costs little.

    A VM whose scope differs counts as changed, since its audience may be another one.
    """
    hosts = _only_changed(before.hosts, after.hosts)
    scopes = _only_changed(before.scopes, after.scopes)
    vms = _only_changed(before.vms, after.vms)
    names = {scope.name for side in scopes for scope in side}
    if names:
        changed = {vm.name for side in vms for vm in side}
        more = [[vm for vm in side.vms if vm.scope in names and vm.name not in changed] for side in (before, after)]
        vms = (*vms[0], *more[0]), (*vms[1], *more[1])
    return (
        Inventory(hosts=hosts[0], scopes=scopes[0], vms=vms[0]),
        Inventory(hosts=hosts[1], scopes=scopes[1], vms=vms[1]),
    )


def _only_changed(before: tuple[M, ...], after: tuple[M, ...]) -> tuple[tuple[M, ...], tuple[M, ...]]:
    old, new = {one.name: one for one in before}, {one.name: one for one in after}
    return (
        tuple(one for one in before if new.get(one.name) != one),
        tuple(one for one in after if old.get(one.name) != one),
    )


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
    scopes_before: Mapping[str, Scope],
    scopes: Mapping[str, Scope],
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
