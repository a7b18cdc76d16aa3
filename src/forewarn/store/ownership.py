"""Ownership by a tenant as conditions of queries: pages are full, and rows of other tenants are not even read."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from forewarn.core.access import Ownership
from forewarn.core.model import ScopeKind
from forewarn.core.selection import EVERYTHING, Selection
from forewarn.store import tables as t
from forewarn.store.selection_conditions import match_place, match_subquery

__all__ = ["match_owned_entries", "match_owned_events", "match_owned_maintenances", "match_owned_vms"]

_Condition = sa.ColumnElement[bool]


def match_owned_vms(owned: Ownership | None) -> list[_Condition]:
    """Return the condition on table `vm`, if any; see `Ownership.has_vm`."""
    if owned is None:
        return []
    # A VM in a standalone scope counts as one without a scope.
    only_named = sa.select(t.scope.c.name).where(t.scope.c.kind == ScopeKind.STANDALONE)
    is_alone = t.vm.c.scope.is_(None) | t.vm.c.scope.in_(only_named)
    return [t.vm.c.scope.in_(sorted(owned.scopes)) | (is_alone & t.vm.c.name.in_(sorted(owned.vms)))]


def _match_owned_claims(owned: Ownership) -> _Condition:
    """Return the condition on table `claim`; see `Ownership.has_claim`."""
    of_alone = t.claim.c.scope.is_(None) & t.claim.c.vm.in_(sorted(owned.vms))
    return t.claim.c.scope.in_(sorted(owned.scopes)) | of_alone


def _match_audience_of_claim(audience: sa.ColumnElement[str]) -> _Condition:
    """Return the condition that the claimed VM can belong to this audience; see `audience_key`."""
    # For a claim without a scope, the first text is NULL and matches nothing.
    return (audience == sa.literal("scope:") + t.claim.c.scope) | (audience == sa.literal("vm:") + t.claim.c.vm)


def match_owned_maintenances(owned: Ownership | None, selection: Selection = EVERYTHING) -> list[_Condition]:
    """Return the condition on table `maintenance`, if any: it claims a VM of the tenant at the selected place."""
    if owned is None:
        return []
    # The same claim must be the tenant's and at that place.
    claimed = sa.select(t.claim.c.maintenance_id).where(_match_owned_claims(owned), *match_place(selection))
    return [t.maintenance.c.id.in_(claimed)]


def match_owned_events(owned: Ownership) -> _Condition:
    """Return the condition on table `event`: it is about VMs of the tenant."""
    about = sa.select(t.claim.c.vm).where(
        t.claim.c.maintenance_id == t.event.c.maintenance_id,
        _match_owned_claims(owned),
        _match_audience_of_claim(t.event.c.audience),
    )
    return about.exists()


def match_owned_entries(
    owned: Ownership, dialect: str, within: Sequence[_Condition], selection: Selection = EVERYTHING, *, is_near: bool
) -> _Condition:
    """Return the condition on table `audit_log`.

    An entry of a maintenance belongs to a tenant by the claims of that maintenance, no matter who owns the VM today. If
    it names an audience or a VM, that must be the tenant's; if it names neither nor an event, it is about the
    maintenance as a whole. Any other entry belongs by the present inventory.

    Args:
        owned: Possessions of the tenant.
        dialect: SQL dialect of the database.
        within: Known conditions on the number of the entry.
        selection: Filter; if it names a place, the claim by which an entry belongs must be at that place.
        is_near: True to examine each entry, if there are few; otherwise all that belong to the tenant are found first.
    """
    c = t.audit_log.c
    is_whole = c.audience.is_(None) & c.event_id.is_(None) & (c.vm.is_(None) | (c.vm == t.claim.c.vm))
    of_claim = sa.and_(
        _match_owned_claims(owned), _match_audience_of_claim(c.audience) | is_whole, *match_place(selection)
    )
    names = sa.select(t.vm.c.name).where(*match_owned_vms(owned))
    keys = sa.select(sa.literal("vm:") + t.vm.c.name).where(*match_owned_vms(owned))
    scopes = [f"scope:{name}" for name in sorted(owned.scopes)]
    by_inventory = [c.audience.in_(scopes), c.audience.in_(keys), c.vm.in_(names)]
    if is_near:
        claimed = sa.select(t.claim.c.vm).where(t.claim.c.maintenance_id == c.maintenance_id, of_claim)
        return claimed.exists() | (c.maintenance_id.is_(None) & sa.or_(*by_inventory))
    claimed = sa.select(c.sequence).join(t.claim, t.claim.c.maintenance_id == c.maintenance_id).where(of_claim, *within)
    others = [sa.select(c.sequence).where(c.maintenance_id.is_(None), term, *within) for term in by_inventory]
    return match_subquery(c.sequence, sa.union(claimed, *others), dialect)
