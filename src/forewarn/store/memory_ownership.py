"""Ownership by a tenant in the in-memory store; the same rules as the queries in `forewarn.store.ownership`."""

from __future__ import annotations

from forewarn.core.access import Ownership
from forewarn.core.model import AuditEntry, Maintenance, Scope, VirtualMachine
from forewarn.core.selection import Selection
from forewarn.store.memory_tables import Tables

__all__ = ["is_entry_owned", "is_maintenance_owned", "is_vm_owned"]


def is_vm_owned(tables: Tables, owned: Ownership, vm: VirtualMachine) -> bool:
    """Return True if the VM belongs to the tenant."""
    return owned.has_vm(vm, tables.scopes.rows.get(vm.scope or ""))


def is_maintenance_owned(owned: Ownership | None, selection: Selection, maintenance: Maintenance) -> bool:
    """Return True if the maintenance claims a VM of the tenant at the selected place; always if `owned` is None."""
    return owned is None or any(selection.matches_claim(claim) for claim in owned.select_claims(maintenance))


def is_entry_owned(tables: Tables, owned: Ownership, entry: AuditEntry, selection: Selection) -> bool:
    """Return True if the audit log entry concerns the tenant."""

    def find_vm(name: str) -> tuple[VirtualMachine, Scope | None] | None:
        vm = tables.vms.rows.get(name)
        return None if vm is None else (vm, tables.scopes.rows.get(vm.scope or ""))

    return owned.has_entry(entry, tables.maintenances.rows.get(entry.maintenance_id or ""), find_vm, selection)
