"""Who may see and do what: roles, tokens, what a tenant owns, and what is shown to whom.

A tenant owns scopes, and VMs that stand alone. What it does not own does not exist for it. So whatever is shown to a
tenant goes through `Principal.shown` and its siblings, and whatever is listed for one is chosen by its `Owned` in the
query.
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
    """What somebody may do."""

    OPERATOR = "operator"
    """Everything."""

    TENANT = "tenant"
    """What concerns its own VMs; anything else does not exist for it."""

    HOST = "host"
    """What the endpoint on one host needs."""

    READ_ONLY = "read-only"
    """Everything that reads, nothing that changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """What belongs to a tenant.

    Attributes:
        scopes: Names of scopes; all VMs in them belong to it.
        vms: Names of VMs. One that is in a scope with others does not count: who owns the scope owns it.
    """

    scopes: frozenset[str] = frozenset()
    vms: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """Digest of the names, by which whatever counts for a tenant counts for all of its tokens together."""
        return sha256(msgspec.json.encode((sorted(self.scopes), sorted(self.vms)))).hexdigest()

    def has_vm(self, vm: VirtualMachine, scope: Scope | None = None) -> bool:
        """Whether the VM belongs to it.

        Args:
            vm: The VM.
            scope: Its scope, if it has one that is known: one of kind standalone only says that it has none.
        """
        if vm.scope in self.scopes:
            return True
        is_alone = vm.scope is None or (scope is not None and scope.kind is ScopeKind.STANDALONE)
        return is_alone and vm.name in self.vms

    def has_claim(self, claim: Claim) -> bool:
        """Whether a maintenance that claims this claims a VM of it."""
        return claim.vm in self.vms if claim.scope is None else claim.scope in self.scopes

    def claims(self, maintenance: Maintenance) -> tuple[Claim, ...]:
        """Those claims of a maintenance that are for its VMs."""
        return tuple(claim for claim in maintenance.claims if self.has_claim(claim))

    def has_event(self, event: Event, maintenance: Maintenance) -> bool:
        """Whether the event is about its VMs. All resources of an event have the same owner: it is of one audience."""
        return any(claim.vm in event.resources for claim in self.claims(maintenance))

    def has_entry(
        self,
        entry: Entry,
        maintenance: Maintenance | None,
        find_vm: Callable[[str], tuple[VirtualMachine, Scope | None] | None],
        selection: Selection = EVERYTHING,
    ) -> bool:
        """Return whether a ledger entry concerns the tenant.

        An entry of a maintenance belongs to whoever owned the claimed VMs then; any other entry belongs by the
        inventory of today.

        Args:
            entry: The ledger entry.
            maintenance: The maintenance that `entry.maintenance_id` names; None if it has been deleted.
            find_vm: Return a declared VM and its scope by name; None if there is none.
            selection: The claim by which the entry belongs has to be at the place that the selection names.
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
    """A bearer token, as it is kept.

    Attributes:
        id: To revoke it by.
        name: Whose it is, for people and for the ledger.
        scopes: Of a tenant.
        vms: Of a tenant: VMs that stand alone.
        host: Of the endpoint on a host.
        digest: SHA-256 of the token, hexadecimal: the token itself is not kept.
        created_by: Who made it; empty where that was not written down.
        expires_at: From when it is not taken any more; None: it lasts.
        revoked_at: As `expires_at`, by somebody's decision.
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
        """Whether it is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def principal(self) -> Principal:
        """Who shows it."""
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
    """A login link that was used, or a session that was logged out of.

    Attributes:
        nonce: What tells the link or the session from others.
        actor: Whose it was.
        expires_at: From then on it would not be taken anyway, and this can be forgotten.
    """

    nonce: str
    actor: str
    expires_at: datetime


_OPEN_REASONS = frozenset({EntryKind.IMPACT_MEASURED, EntryKind.VM_CHANGED, EntryKind.UNSEEN, EntryKind.LATE})
"""Kinds of entries whose reason Forewarn itself writes, and never names a host or anybody else's in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who asks, once it is known.

    Attributes:
        actor: As the ledger names it: ``operator:NAME``, ``tenant:NAME``, ``read-only:NAME`` or ``host:NAME``.
        scopes: Of a tenant.
        vms: Of a tenant: VMs that stand alone.
        host: Of the endpoint on a host.
        token_id: Of the token it showed, if that is one of the table.
        expires_at: Until when it is known; None: no end is set.
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
        """What it is limited to; None: it may see everything."""
        if self.role in {Role.OPERATOR, Role.READ_ONLY}:
            return None
        return Owned(scopes=self.scopes, vms=self.vms)

    def owns(self, vm: VirtualMachine, scope: Scope | None = None) -> bool:
        """Whether that VM exists for it; see `Owned.has_vm`."""
        return self.owned is None or self.owned.has_vm(vm, scope)

    def owns_all(self, maintenance: Maintenance) -> bool:
        """Whether a maintenance is about nothing but its VMs."""
        return self.owned is None or len(self.owned.claims(maintenance)) == len(maintenance.claims)

    # What it is shown

    def shown(self, maintenance: Maintenance) -> Maintenance:
        """The maintenance without what a tenant is not told: hosts, VMs of others, the operator's reasons."""
        if self.owned is None:
            return maintenance
        claims = tuple(replace(claim, host="") for claim in self.owned.claims(maintenance))
        moved_by = tuple(name for name in maintenance.moved_by if name in self.scopes or name in self.vms)
        return replace(maintenance, claims=claims, hosts=(), force_reason=None, moved_by=moved_by)

    def shown_events(self, maintenance: Maintenance, events: Iterable[Event]) -> list[Event]:
        """Those events of a maintenance that it may see; who approved is told by the role alone, if not by its VMs."""
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
        """A ledger entry that concerns it, without names and words of others."""
        if self.owned is None:
            return entry
        is_told = entry.actor == self.actor or entry.kind in _OPEN_REASONS
        # Its own events are approved by its own VMs. What becomes of the whole maintenance, anybody's may have set off.
        actor = self._shown_actor(entry.actor, is_own=entry.kind is EntryKind.APPROVED)
        return replace(entry, actor=actor, reason=entry.reason if is_told else None)

    def _shown_actor(self, actor: str, *, is_own: bool) -> str:
        """``operator`` of ``operator:NAME``; itself and its own VMs by name."""
        kind, _, name = actor.partition(":")
        is_named = actor == self.actor or (kind == "vm" and (is_own or name in self.vms))
        return actor if is_named else kind


FILE_OPERATOR = Principal(actor="operator:local", role=Role.OPERATOR)
"""Who shows the token that lies in the state folder."""
