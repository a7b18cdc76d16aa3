"""Conflicts between maintenances: which must wait for which.

There are two different waits:

- **In the queue** (`must_queue`): routine maintenance waits, invisible to VMs, while an older routine one holds one
  of its VMs, or another fault domain of one of its scopes (R61), or while too many VMs of one of its scopes are under
  maintenance. It is announced, with full notice, when its turn comes.
- **At the gate** (`is_held`): an announced maintenance whose time has come still waits while another one is in progress
  on one of its VMs. Two impacts at once on one VM would be one that was never announced.

User operations never queue: a restart must not wait seven days behind a predicted failure. The same operation twice on
one VM is refused instead (`find_duplicate`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from forewarn.core.causes import CAUSES
from forewarn.core.model import EventSource, Maintenance, MaintenanceState

__all__ = ["cannot_overlap", "find_blockers", "find_duplicate", "is_held", "is_routine", "must_queue"]


_BLOCKERS_MAX = 20


def is_routine(maintenance: Maintenance) -> bool:
    """Return True if the platform planned it, so it is serialised (R61 exempts failures and user operations)."""
    return CAUSES[maintenance.cause].is_routine and maintenance.source is EventSource.PLATFORM


def _shares_vm(one: Maintenance, other: Maintenance) -> bool:
    return not set(one.vms).isdisjoint(other.vms)


def cannot_overlap(one: Maintenance, other: Maintenance) -> bool:
    """Return True if the two may not be announced at the same time.

    Spec: R61
    """
    if not (is_routine(one) and is_routine(other)):
        return False
    if _shares_vm(one, other):
        return True
    # Both may touch the same scope if they stay within one fault domain of it.
    domains = {(c.scope, c.fault_domain) for c in one.claims if c.scope is not None}
    scopes = {scope for scope, _ in domains}
    return any(c.scope in scopes and any(d != c.fault_domain for s, d in domains if s == c.scope) for c in other.claims)


def must_queue(maintenance: Maintenance, active: Iterable[Maintenance], unavailable_max: Mapping[str, int]) -> bool:
    """Return True if it must wait in the queue. The queue is first come, first served.

    Looks no further than the first reason: a scope may have a thousand maintenances in the queue.

    Args:
        maintenance: A maintenance that is not announced.
        active: The other active maintenances that hold a VM or a scope of it.
        unavailable_max: Limits on the VMs of its scopes that are under maintenance at the same time, by scope. A
            maintenance that alone has more VMs waits until no other VM of the scope is unavailable.
    """
    count = _UnavailableVms(maintenance, unavailable_max)
    return any(
        _excludes(other, maintenance) or count.add(other) for other in _iter_possible_blockers(maintenance, active)
    )


def find_blockers(
    maintenance: Maintenance, active: Iterable[Maintenance], unavailable_max: Mapping[str, int]
) -> list[Maintenance]:
    """Return the first maintenances for which it must wait in the queue, at most 20; see `must_queue`."""
    others = list(_iter_possible_blockers(maintenance, active))
    counts = {scope: _UnavailableVms(maintenance, {scope: most}) for scope, most in unavailable_max.items()}
    full = [scope for scope, count in counts.items() if any(map(count.add, others))]
    found = (
        other
        for other in others
        if _excludes(other, maintenance) or any(True for scope in full for _ in _iter_vms_of_scope(other, scope))
    )
    return list(islice(found, _BLOCKERS_MAX))


class _UnavailableVms:
    """VMs of scopes with a limit, under a maintenance that is not announced and under those that it might wait for."""

    def __init__(self, maintenance: Maintenance, unavailable_max: Mapping[str, int]) -> None:
        self._limits = unavailable_max
        self._vms = {scope: set(_iter_vms_of_scope(maintenance, scope)) for scope in unavailable_max}

    def add(self, other: Maintenance) -> bool:
        """Count another maintenance; return True if one of its scopes has more VMs now than its limit."""
        for scope, most in self._limits.items():
            vms = set(_iter_vms_of_scope(other, scope))
            self._vms[scope] |= vms
            if vms and len(self._vms[scope]) > most:
                return True
        return False


def _iter_possible_blockers(maintenance: Maintenance, active: Iterable[Maintenance]) -> Iterator[Maintenance]:
    # Waiting only for older ones, and for those that have left the queue, ensures that no two wait for each other.
    if is_routine(maintenance):
        for other in active:
            is_first = other.sequence < maintenance.sequence or other.state is not MaintenanceState.QUEUED
            if is_first and other.id != maintenance.id:
                yield other


def _excludes(other: Maintenance, maintenance: Maintenance) -> bool:
    return other.sequence < maintenance.sequence and cannot_overlap(maintenance, other)


def _iter_vms_of_scope(maintenance: Maintenance, scope: str) -> Iterator[str]:
    return (claim.vm for claim in maintenance.claims if claim.scope == scope)


def is_held(maintenance: Maintenance, active: Iterable[Maintenance]) -> bool:
    """Return True if another maintenance is in progress on one of its VMs."""
    return any(
        other.id != maintenance.id and other.state is MaintenanceState.STARTED and _shares_vm(maintenance, other)
        for other in active
    )


def find_duplicate(maintenance: Maintenance, active: Iterable[Maintenance]) -> Maintenance | None:
    """Return the oldest active maintenance for the same cause on one of the same VMs; the caller refuses the second."""
    # A second routine maintenance queues instead of being refused.
    if is_routine(maintenance):
        return None
    cause, source = maintenance.cause, maintenance.source
    others = (other for other in active if other.id != maintenance.id and _shares_vm(maintenance, other))
    found = (other for other in others if other.cause == cause and other.source is source)
    return min(found, key=lambda other: other.sequence, default=None)
