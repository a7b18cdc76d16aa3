"""What belongs to a tenant, in the store in memory; the same as `forewarn.store.owning` says to a database."""

from __future__ import annotations

from forewarn.core.access import Owned
from forewarn.core.model import Claim, Entry, Maintenance, VirtualMachine
from forewarn.core.selection import Selection
from forewarn.store.memory_tables import Tables

__all__ = ["has_entry", "has_maintenance", "has_vm"]


def has_vm(tables: Tables, owned: Owned, vm: VirtualMachine) -> bool:
    """Whether the VM belongs to it."""
    return owned.has_vm(vm, tables.scopes.rows.get(vm.scope or ""))


def has_maintenance(owned: Owned | None, selection: Selection, maintenance: Maintenance) -> bool:
    """Whether the maintenance claims a VM of it, at the place that is asked for."""
    return owned is None or any(selection.takes_claim(claim) for claim in owned.claims(maintenance))


def has_entry(tables: Tables, owned: Owned, entry: Entry, selection: Selection) -> bool:
    """Whether the ledger entry concerns it."""
    if entry.maintenance_id is not None:
        maintenance = tables.maintenances.rows.get(entry.maintenance_id)
        return maintenance is not None and any(
            selection.takes_claim(claim) and _is_about(entry, claim) for claim in owned.claims(maintenance)
        )
    kind, _, name = (entry.audience or "").partition(":")
    names = {name for name in (entry.vm, name if kind == "vm" else None) if name is not None}
    vms = [vm for name in names if (vm := tables.vms.rows.get(name)) is not None]
    return (kind == "scope" and name in owned.scopes) or any(has_vm(tables, owned, vm) for vm in vms)


def _is_about(entry: Entry, claim: Claim) -> bool:
    if entry.audience is not None:
        return entry.audience in {f"vm:{claim.vm}", None if claim.scope is None else f"scope:{claim.scope}"}
    return entry.event_id is None and entry.vm in {None, claim.vm}
