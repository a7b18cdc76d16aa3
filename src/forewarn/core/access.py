"""Access rules: roles, tokens, the ownership of a tenant, and the view that each caller gets.

A tenant owns scopes, and VMs that belong to no scope. Anything else does not exist for it. Therefore every value shown
to a tenant goes through `Principal.redact_maintenance` and its siblings, and every list for a tenant is filtered by its
`Ownership` in the query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from hashlib import sha256

import msgspec

from forewarn.core.fast_replace import replace
from forewarn.core.model import AuditEntry, Claim, EntryKind, Event, Maintenance, Scope, ScopeKind, VirtualMachine
from forewarn.core.selection import EVERYTHING, Selection

__all__ = [
    "FILE_OPERATOR",
    "TENANT_ACTOR_PREFIX",
    "Ownership",
    "Principal",
    "Revocation",
    "Role",
    "Token",
    "is_requested_by_tenant",
]


class Role(StrEnum):
    """Role of a caller. The role decides what the caller may do."""

    OPERATOR = "operator"
    """Full access."""

    TENANT = "tenant"
    """Access to its own VMs; anything else does not exist for it."""

    HOST = "host"
    """Access needed by the endpoint on one host."""

    READ_ONLY = "read-only"
    """Full read access, no changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
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
        # Sorted, because two tokens of one tenant may list the same names in a different order.
        return sha256(msgspec.json.encode((sorted(self.scopes), sorted(self.vms)))).hexdigest()

    def has_vm(self, vm: VirtualMachine, scope: Scope | None = None) -> bool:
        """Return True if the VM belongs to the tenant; `scope` is None if it has none or the scope is unknown."""
        if vm.scope in self.scopes:
            return True
        # A VM that joined a scope belongs to the owner of the scope, even if an older token still names the VM.
        is_alone = vm.scope is None or (scope is not None and scope.kind is ScopeKind.STANDALONE)
        return is_alone and vm.name in self.vms

    def has_claim(self, claim: Claim) -> bool:
        """Return True if the claim is for a VM of the tenant."""
        # A claim on a VM of a standalone scope has no scope, so None means that the VM is owned by name.
        return claim.vm in self.vms if claim.scope is None else claim.scope in self.scopes

    def select_claims(self, maintenance: Maintenance) -> tuple[Claim, ...]:
        """Return the claims of a maintenance that are for VMs of the tenant."""
        return tuple(claim for claim in maintenance.claims if self.has_claim(claim))

    def has_event(self, event: Event, maintenance: Maintenance) -> bool:
        """Return True if the event is about VMs of the tenant.

        All resources of an event have the same owner, because an event has one audience.
        """
        return any(claim.vm in event.resources for claim in self.select_claims(maintenance))

    def has_entry(
        self,
        entry: AuditEntry,
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
            # Without the maintenance the owner at that time is unknown, and hiding an entry is safer than leaking it.
            claims = () if maintenance is None else self.select_claims(maintenance)
            return any(selection.matches_claim(claim) and _is_about(entry, claim) for claim in claims)
        kind, _, name = (entry.audience or "").partition(":")
        if kind == "scope" and name in self.scopes:
            return True
        # An entry may name a VM directly, by its audience, or both.
        names = {name for name in (entry.vm, name if kind == "vm" else None) if name is not None}
        return any(self.has_vm(*found) for name in names if (found := find_vm(name)) is not None)


def _is_about(entry: AuditEntry, claim: Claim) -> bool:
    if entry.audience is not None:
        return entry.audience in {f"vm:{claim.vm}", None if claim.scope is None else f"scope:{claim.scope}"}
    # Without an audience, an entry about an event cannot be attributed to one tenant.
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
        created_by: Actor that created the token.
        expires_at: Time from which the token is refused; None if it does not expire.
        revoked_at: Time of revocation; None if it is not revoked.
    """

    id: str
    name: str
    role: Role
    digest: str
    created_at: datetime
    created_by: str
    scopes: tuple[str, ...] = ()
    vms: tuple[str, ...] = ()
    host: str | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def is_valid(self, now: datetime) -> bool:
        """Return True if the token is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def to_principal(self) -> Principal:
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


TENANT_ACTOR_PREFIX = f"{Role.TENANT}:"
"""Beginning of the name of a tenant in the audit log; see `Principal.actor`."""

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
    def ownership(self) -> Ownership | None:
        """Ownership that limits the caller; None if it may see everything."""
        if self.role in {Role.OPERATOR, Role.READ_ONLY}:
            return None
        # A host gets here too: it owns nothing, so it sees nothing through the views for tenants.
        return Ownership(scopes=self.scopes, vms=self.vms)

    def owns_vm(self, vm: VirtualMachine, scope: Scope | None = None) -> bool:
        """Return True if the VM exists for the caller; see `Ownership.has_vm`."""
        return self.ownership is None or self.ownership.has_vm(vm, scope)

    def owns_maintenance(self, maintenance: Maintenance) -> bool:
        """Return True if the maintenance affects only VMs of the caller."""
        return self.ownership is None or len(self.ownership.select_claims(maintenance)) == len(maintenance.claims)

    # Views for the caller

    def redact_maintenance(self, maintenance: Maintenance) -> Maintenance:
        """Return the maintenance without what is hidden from tenants: hosts, VMs of others, the operator's reasons."""
        if self.ownership is None:
            return maintenance
        # Host names would show a tenant which of its VMs share a host.
        claims = tuple(replace(claim, host="") for claim in self.ownership.select_claims(maintenance))
        moved_by = tuple(name for name in maintenance.moved_by if name in self.scopes or name in self.vms)
        return replace(maintenance, claims=claims, hosts=(), force_reason=None, moved_by=moved_by)

    def redact_events(self, maintenance: Maintenance, events: Iterable[Event]) -> list[Event]:
        """Return the events of a maintenance that the caller may see.

        An approver other than the tenant's own VMs is shown by role only.
        """
        owned = self.ownership
        if owned is None:
            return list(events)
        vms = {claim.vm for claim in owned.select_claims(maintenance)}  # once, as there may be a thousand of both
        seen = [event for event in events if vms.intersection(event.resources)]
        return [
            replace(
                e, approved_by=None if e.approved_by is None else self._redact_actor(e.approved_by, is_own_event=True)
            )
            for e in seen
        ]

    def redact_entry(self, entry: AuditEntry) -> AuditEntry:
        """Return an audit log entry that concerns the caller, without names and reasons of others."""
        if self.ownership is None:
            return entry
        keeps_reason = entry.actor == self.actor or entry.kind in _OPEN_REASONS
        # Of all VMs, only the tenant's own can approve its events. A change of the whole maintenance may be
        # caused by a VM of any tenant; it is named only if the caller owns it.
        actor = self._redact_actor(entry.actor, is_own_event=entry.kind is EntryKind.APPROVED)
        return replace(entry, actor=actor, reason=entry.reason if keeps_reason else None)

    def _redact_actor(self, actor: str, *, is_own_event: bool) -> str:
        """Reduce ``operator:NAME`` to ``operator``; the caller and its own VMs keep their names."""
        kind, _, name = actor.partition(":")
        is_named = actor == self.actor or (kind == "vm" and (is_own_event or name in self.vms))
        return actor if is_named else kind


FILE_OPERATOR = Principal(actor="operator:local", role=Role.OPERATOR)
"""Caller that presents the token in the state folder."""


def is_requested_by_tenant(entries: Sequence[AuditEntry]) -> bool:
    """Return True if a tenant requested the maintenance of these entries, which begin with its first one."""
    return bool(entries) and entries[0].actor.startswith(TENANT_ACTOR_PREFIX)
