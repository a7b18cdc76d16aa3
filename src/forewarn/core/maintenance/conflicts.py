"""Conflicts between maintenances: which must wait for which.

There are two different waits:

- **In the queue** (`must_queue`): routine maintenance waits, invisible to VMs, while an older routine one holds one of
  its VMs, or another fault domain of one of its scopes (R61). It is announced, with full notice, when its turn comes.
- **At the gate** (`is_held`): an announced maintenance whose time has come still waits while another one is in progress
  on one of its VMs. Two impacts at once on one VM would be one that was never announced.

User operations never queue: a restart must not wait seven days behind a predicted failure. The same operation twice on
one VM is refused instead (`find_duplicate`).
"""

from __future__ import annotations

from collections.abc import Iterable

from forewarn.core.causes import CAUSES
from forewarn.core.model import EventSource, Maintenance, MaintenanceState

__all__ = ["cannot_overlap", "find_duplicate", "is_held", "is_routine", "must_queue"]


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


def must_queue(maintenance: Maintenance, active: Iterable[Maintenance]) -> bool:
    """Return True if an older active maintenance excludes it. The queue is first come, first served."""
    # Waiting only for older ones ensures that no two maintenances wait for each other.
    return any(other.sequence < maintenance.sequence and cannot_overlap(maintenance, other) for other in active)


def is_held(maintenance: Maintenance, active: Iterable[Maintenance]) -> bool:
    """Return True if another maintenance is in progress on one of its VMs."""
    return any(
        other.id != maintenance.id and other.state is MaintenanceState.STARTED and _shares_vm(maintenance, other)
        for other in active
    )


def find_duplicate(maintenance: Maintenance, active: Iterable[Maintenance]) -> Maintenance | None:
    """Return an active maintenance for the same cause on one of the same VMs; the caller refuses the second one."""
    # A second routine maintenance queues instead of being refused.
    if is_routine(maintenance):
        return None
    cause, source = maintenance.cause, maintenance.source
    others = (other for other in active if other.id != maintenance.id and _shares_vm(maintenance, other))
    return next((other for other in others if other.cause == cause and other.source is source), None)
