"""Access rules: roles, tokens, the ownership of a tenant, and the view that each caller gets.

A tenant owns scopes, and VMs that belong to no scope. Anything else does not exist for it. Therefore every value shown
to a tenant goes through `Principal.shown` and its siblings, and every list for a tenant is filtered by its `Owned` in
the query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from hashlib import sha256

import msgspec

from forewarn.core.model import Claim, Entry, EntryKind, Event, Maintenance, Scope, ScopeKind, VirtualMachine
from forewarn.core.selection import EVERYTHING, Selection
from forewarn.core.value import replace

__all__ = ["FILE_OPERATOR", "Owned", "Principal", "Revocation", "Role", "Token"]


class Role(StrEnum):
    """Role of a caller, which decides what it may do."""

    OPERATOR = "operator"
    """Full access."""

    TENANT = "tenant"
    """Access to its own VMs; anything else does not exist for it."""

    HOST = "host"
    """Access needed by the endpoint on one host."""

    READ_ONLY = "read-only"
    """Full read access, no changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """Scopes and VMs owned by a tenant.

    Attributes:
        scopes: Names of scopes; all VMs in them belong to it.
        vms: Names of VMs. A VM that shares a scope with others does not count: it belongs to the owner of the scope.
    """

    scopes: frozenset[str] = frozenset()
    vms: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """Digest of the names. All tokens of one tenant have the same key, and so share limits."""
        return sha256(msgspec.json.encode((sorted(self.scopes), sorted(self.vms)))).hexdigest()

    def has_vm(self, vm: VirtualMachine, scope: Scope | None = None) -> bool:
        """Return True if the VM belongs to the tenant.

        Args:
            vm: The VM.
            scope: Scope of the VM; None if it has none or the scope is unknown. A standalone scope counts as none.
        """
        if vm.scope in self.scopes:
            return True
        is_alone = vm.scope is None or (scope is not None and scope.kind is ScopeKind.STANDALONE)
        return is_alone and vm.name in self.vms

    def has_claim(self, claim: Claim) -> bool:
        """Return True if the claim is for a VM of the tenant."""
        return claim.vm in self.vms if claim.scope is None else claim.scope in self.scopes

    def claims(self, maintenance: Maintenance) -> tuple[Claim, ...]:
        """Return the claims of a maintenance that are for VMs of the tenant."""
        return tuple(claim for claim in maintenance.claims if self.has_claim(claim))

    def has_event(self, event: Event, maintenance: Maintenance) -> bool:
        """Return True if the event is about VMs of the tenant.

        All resources of an event have the same owner, because an event has one audience.
        """
        return any(claim.vm in event.resources for claim in self.claims(maintenance))

    def has_entry(
        self,
        entry: Entry,
        maintenance: Maintenance | None,
        find_vm: Callable[[str], tuple[VirtualMachine, Scope | None] | None],
        selection: Selection = EVERYTHING,
    ) -> bool:
        """Return whether an audit log entry concerns the tenant.

        An entry of a maintenance belongs to the tenant that owned the claimed VMs at the time; for any other entry, the
        current inventory decides.

        Args:
            entry: The audit log entry.
            maintenance: The maintenance that `entry.maintenance_id` names; None if it has been deleted.
            find_vm: Return a declared VM and its scope by name; None if there is none.
            selection: Place at which the claim that makes the entry the tenant's must be.
        """
        if entry.maintenance_id is not None:
            claims = () if maintenance is None else self.claims(maintenance)
            return any(selection.takes_claim(claim) and _is_about(entry, claim) for claim in claims)
        kind, _, name = (entry.audience or "").partition(":")
        if kind == "scope" and name in self.scopes:
            return True
        names = {name for name in (entry.vm, name if kind == "vm" else None) if name is not None}
        return any(self.has_vm(*found) for name in names if (found := find_vm(name)) is not None)


def _is_about(entry: Entry, claim: Claim) -> bool:
    if entry.audience is not None:
        return entry.audience in {f"vm:{claim.vm}", None if claim.scope is None else f"scope:{claim.scope}"}
    return entry.event_id is None and entry.vm in {None, claim.vm}


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A bearer token, as stored.

    Attributes:
        id: Identifier used to revoke the token.
        name: Name of the holder, for people and for the audit log.
        scopes: Scopes of a tenant.
        vms: VMs of a tenant that belong to no scope.
        host: Host of an endpoint token.
        digest: SHA-256 of the token, hexadecimal; the token itself is not stored.
        created_by: Actor that created the token; empty if that was not recorded.
        expires_at: Time from which the token is refused; None if it does not expire.
        revoked_at: Time of revocation; None if it is not revoked.
    """

    id: str
    name: str
    role: Role
    digest: str
    created_at: datetime
    created_by: str = ""
    scopes: tuple[str, ...] = ()
    vms: tuple[str, ...] = ()
    host: str | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def is_taken(self, now: datetime) -> bool:
        """Return True if the token is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def principal(self) -> Principal:
        """Return the principal that the token authenticates."""
        return Principal(
            actor=f"{self.role}:{self.host or self.name}",
            role=self.role,
            scopes=frozenset(self.scopes),
            vms=frozenset(self.vms),
            host=self.host,
            token_id=self.id,
            expires_at=self.expires_at,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """A login link that was used, or a session that was logged out.

    Attributes:
        nonce: Unique identifier of the link or session.
        actor: Owner of the link or session.
        expires_at: Time from which it would be refused anyway, so that this record can be deleted.
    """

    nonce: str
    actor: str
    expires_at: datetime


_OPEN_REASONS = frozenset({EntryKind.IMPACT_MEASURED, EntryKind.VM_CHANGED, EntryKind.UNSEEN, EntryKind.LATE})
"""Kinds of entries whose reason is written by Forewarn and names no host and no other tenant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """An authenticated caller.

    Attributes:
        actor: Name in the audit log: ``operator:NAME``, ``tenant:NAME``, ``read-only:NAME`` or ``host:NAME``.
        scopes: Scopes of a tenant.
        vms: VMs of a tenant that belong to no scope.
        host: Host of an endpoint.
        token_id: Id of the token that it presented; None if the token is not in the table.
        expires_at: End of the authentication; None if it has none.
    """

    actor: str
    role: Role
    scopes: frozenset[str] = frozenset()
    vms: frozenset[str] = frozenset()
    host: str | None = None
    token_id: str | None = None
    expires_at: datetime | None = None

    @property
    def owned(self) -> Owned | None:
        """Ownership that limits the caller; None if it may see everything."""
        if self.role in {Role.OPERATOR, Role.READ_ONLY}:
            return None
        return Owned(scopes=self.scopes, vms=self.vms)

    def owns(self, vm: VirtualMachine, scope: Scope | None = None) -> bool:
        """Return True if the VM exists for the caller; see `Owned.has_vm`."""
        return self.owned is None or self.owned.has_vm(vm, scope)

    def owns_all(self, maintenance: Maintenance) -> bool:
        """Return True if the maintenance affects only VMs of the caller."""
        return self.owned is None or len(self.owned.claims(maintenance)) == len(maintenance.claims)

    # Views for the caller

    def shown(self, maintenance: Maintenance) -> Maintenance:
        """Return the maintenance without what is hidden from tenants: hosts, VMs of others, the operator's reasons."""
        if self.owned is None:
            return maintenance
        claims = tuple(replace(claim, host="") for claim in self.owned.claims(maintenance))
        moved_by = tuple(name for name in maintenance.moved_by if name in self.scopes or name in self.vms)
        return replace(maintenance, claims=claims, hosts=(), force_reason=None, moved_by=moved_by)

    def shown_events(self, maintenance: Maintenance, events: Iterable[Event]) -> list[Event]:
        """Return the events of a maintenance that the caller may see.

        An approver other than the tenant's own VMs is shown by role only.
        """
        owned = self.owned
        if owned is None:
            return list(events)
        vms = {claim.vm for claim in owned.claims(maintenance)}  # once, as there may be a thousand of both
        seen = [event for event in events if vms.intersection(event.resources)]
        return [
            replace(e, approved_by=None if e.approved_by is None else self._shown_actor(e.approved_by, is_own=True))
            for e in seen
        ]

    def shown_entry(self, entry: Entry) -> Entry:
        """Return an audit log entry that concerns the caller, without names and reasons of others."""
        if self.owned is None:
            return entry
        is_told = entry.actor == self.actor or entry.kind in _OPEN_REASONS
        # Of all VMs, only the tenant's own can approve its events. A change of the whole maintenance may be
        # caused by a VM of any tenant; it is named only if the caller owns it.
        actor = self._shown_actor(entry.actor, is_own=entry.kind is EntryKind.APPROVED)
        return replace(entry, actor=actor, reason=entry.reason if is_told else None)

    def _shown_actor(self, actor: str, *, is_own: bool) -> str:
        """Reduce ``operator:NAME`` to ``operator``; the caller and its own VMs keep their names."""
        kind, _, name = actor.partition(":")
        is_named = actor == self.actor or (kind == "vm" and (is_own or name in self.vms))
        return actor if is_named else kind


FILE_OPERATOR = Principal(actor="operator:local", role=Role.OPERATOR)
"""Caller that presents the token in the state folder."""
