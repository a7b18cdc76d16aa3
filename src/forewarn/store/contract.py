"""The duties of a store. `tests/conformance/test_store.py` runs the same suite over every implementation.

A store is synchronous: the engine runs each transaction as a whole on its own thread, so that a decision between two
statements never waits for the event loop, and a test may run it inline. See `docs/adr/0003-synchronous-store.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar

from forewarn.core.access import Ownership, Revocation, Token
from forewarn.core.audit_chain import ChainPage
from forewarn.core.clock_jump import ClockJump
from forewarn.core.decision import AudienceDocument, ChangeSet, WorkingSet
from forewarn.core.inventory import Inventory
from forewarn.core.model import (
    Audience,
    AuditEntry,
    Event,
    Host,
    Maintenance,
    MaintenanceState,
    Scope,
    VirtualMachine,
)
from forewarn.core.selection import EVERYTHING, Selection
from forewarn.store.lease import Lease
from forewarn.store.notifying_contract import NotifyingReader, NotifyingTransaction

__all__ = [
    "HOSTS_MARKED_MAX",
    "HOST_PREFIX",
    "INVENTORY",
    "FeedChanges",
    "IdempotencyRecord",
    "Page",
    "PruneResult",
    "Reader",
    "SharedStore",
    "SharedTransaction",
    "Store",
    "StoredRollout",
    "Transaction",
    "list_changed_keys",
]

T = TypeVar("T")

INVENTORY = ""
"""Key of the inventory among the audience keys in the change feed."""

HOST_PREFIX = "host:"
"""Prefix, among those keys, of the name of a host whose VMs have changed."""

HOSTS_MARKED_MAX = 500
"""Maximum number of hosts whose VMs may change at once before the inventory counts as replaced."""


def list_changed_keys(before: Inventory, after: Inventory) -> list[str]:
    """Return the keys for the differences between two inventories: those of hosts, or that of the whole inventory."""
    # A changed scope or host can affect VMs anywhere, so only changes to VMs alone are marked by host.
    hosts = {vm.host for side in (before, after) for vm in side.vms}
    is_small = before.scopes == after.scopes and before.hosts == after.hosts and len(hosts) <= HOSTS_MARKED_MAX
    return [HOST_PREFIX + host for host in sorted(hosts)] if is_small else [INVENTORY]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedChanges:
    """Changes since some position.

    Attributes:
        position: Position that these changes lead to.
        documents: The present document of each audience that has changed, disabled ones included.
        inventory: The inventory, if much of it was replaced; None if not.
        hosts: VMs of each host whose VMs have changed, if the inventory was not replaced.
    """

    position: int
    documents: list[AudienceDocument]
    inventory: Inventory | None
    hosts: Mapping[str, tuple[VirtualMachine, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One part of a list.

    Attributes:
        items: At most as many as requested. There may be fewer, or none, although more follow: a page of a selection
            ends once enough rows were examined.
        next: Value to pass as ``after`` (as ``before``, if the newest come first) for the next part; None at the end.
    """

    items: list[T]
    next: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyRecord:
    """Stored result of a command with an ``Idempotency-Key``."""

    key: str
    fingerprint: str
    content: dict[str, Any]
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneResult:
    """Amount of history that was forgotten.

    Attributes:
        maintenances: Number of ended maintenances, forgotten with their events and claims.
        entries: Number of audit log entries, both of these maintenances and of none.
    """

    maintenances: int = 0
    entries: int = 0

    def __bool__(self) -> bool:
        """True if anything was forgotten."""
        return bool(self.maintenances or self.entries)

    def __add__(self, other: PruneResult) -> PruneResult:
        """Add two amounts."""
        return PruneResult(maintenances=self.maintenances + other.maintenances, entries=self.entries + other.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRollout:
    """A rollout as `wire.rollout.encode_rollout` encodes it, with the columns for looking it up."""

    id: str
    name: str
    created_at: datetime
    is_ended: bool
    content: str


class Reader(NotifyingReader, Protocol):
    """Reading without locking anyone out.

    A method with an argument `owned` sees only what belongs to that tenant; None: everything.
    """

    def get_inventory(self) -> Inventory:
        """Return everything that is declared, VMs by name."""

    def get_inventory_version(self) -> int:
        """Return a number that grows whenever the result of `get_inventory` changes."""

    def get_inventory_around(
        self, *, host: str, vms: Iterable[str], addresses: Iterable[str], scopes: Iterable[str]
    ) -> Inventory:
        """Return what a declaration of one host can affect; the cost depends on that, not on the size of the inventory.

        Args:
            host: Name of the host; includes the host and its VMs.
            vms: Names of VMs on any host.
            addresses: Addresses of further VMs.
            scopes: Names of scopes, in addition to those of the VMs.
        """

    def list_vms(
        self, *, host: str | None = None, name: str | None = None, owned: Ownership | None = None
    ) -> list[VirtualMachine]:
        """Return VMs by name, only those on one host or with one name if given."""

    def get_vm_page(self, after: str | None, limit: int, owned: Ownership | None = None) -> list[VirtualMachine]:
        """Return at most `limit` VMs whose names come after that one, by name."""

    def get_host_page(self, after: str | None, limit: int) -> dict[str, list[str]]:
        """Return at most `limit` hosts whose names come after that one, by name, each with the names of its VMs."""

    def find_hosts(self, names: Iterable[str]) -> dict[str, Host]:
        """Return the named hosts, by name."""

    def list_failed_hosts(self, limit: int) -> list[Host]:
        """Return at most `limit` hosts that have failed and not recovered, the last to fail first."""

    def find_scopes(self, names: Iterable[str]) -> dict[str, Scope]:
        """Return the named scopes, by name."""

    def iter_documents(self) -> Iterator[AudienceDocument]:
        """Yield the document of every enabled audience."""

    def get_position(self) -> int:
        """Return the number of the last committed change."""

    def get_feed_changes(self, since: int) -> FeedChanges:
        """Return the changes after that position, in one consistent view."""

    def find_audiences(self, keys: Iterable[str]) -> dict[str, Audience]:
        """Return the audiences with those keys, as far as they were ever enabled."""

    def list_maintenances(
        self,
        *,
        states: Sequence[MaintenanceState] = (),
        before: int | None = None,
        limit: int = 100,
        selection: Selection = EVERYTHING,
        owned: Ownership | None = None,
    ) -> Page[Maintenance]:
        """Return maintenances, newest first, older than sequence `before`.

        Args:
            states: Shorthand for a selection of these states, if the selection names none.
            before: Upper bound of the sequence, exclusive; None: start with the newest.
            limit: Maximum number in one page.
            selection: Filter.
            owned: Tenant whose maintenances to return; None: all.
        """

    def list_ended_since(self, moment: datetime, limit: int, owned: Ownership | None = None) -> list[Maintenance]:
        """Return the last maintenances that have ended since then, the last first."""

    def get_maintenance(self, maintenance_id: str, owned: Ownership | None = None) -> Maintenance | None:
        """Return one maintenance; None if there is none."""

    def find_events_of(self, maintenance_ids: Iterable[str]) -> dict[str, list[Event]]:
        """Return the events of each of those maintenances, in order of creation."""

    def find_event_audiences(self, event_ids: Iterable[str]) -> dict[str, str]:
        """Return the audience of each of those events, finished ones included; unknown ids are left out."""

    def find_owned_events(self, event_ids: Iterable[str], owned: Ownership) -> set[str]:
        """Return those of the ids whose events are about VMs of that tenant."""

    def list_entries(  # noqa: PLR0913 - which part of a long list, each in its own way
        self,
        *,
        after: int = 0,
        limit: int = 100,
        newest: bool = False,
        before: int | None = None,
        selection: Selection = EVERYTHING,
        owned: Ownership | None = None,
    ) -> Page[AuditEntry]:
        """Return audit log entries; each page is oldest first.

        Args:
            after: Lower bound of the sequence, exclusive.
            limit: Maximum number in one page.
            newest: True to begin with the last entries; then pass `Page.next` as `before` to get earlier ones.
            before: Upper bound of the sequence, exclusive; None: no bound.
            selection: Filter.
            owned: Tenant whose entries to return; None: all.
        """

    def get_link_page(self, after: int | None, limit: int) -> ChainPage:
        """Return at most `limit` links of both hash chains with larger numbers, in order; None: from the beginning."""

    def get_newest_excess_at(self, entries_max: int) -> datetime | None:
        """Return the moment of the newest entry in excess of `entries_max`; None if there is no excess.

        Entries of `Chain.AUDIT` are not counted: they are kept by age alone.
        """

    def find_nth_newest_of_tenant(self, tenant_key: str, since: datetime, count: int) -> datetime | None:
        """Return the moment of the `count`-th newest entry that tenants made for the operations of one tenant.

        Args:
            tenant_key: The tenant, as `Ownership.key`.
            since: Start of the period; operations that the tenant requested earlier do not count.
            count: Position from the end, beginning with 1.

        Returns:
            The moment; None if there are fewer entries.
        """

    def count_by_state(self) -> Mapping[MaintenanceState, int]:
        """Return the number of maintenances in each state."""

    def next_due_at(self, except_for: Iterable[str] = (), *, only_started: bool = False) -> datetime | None:
        """Return the earliest moment at which a maintenance outside `except_for` is due, optionally a started one."""

    def next_inactive_at(self) -> datetime | None:
        """Return the smallest ``active_until`` of an enabled audience."""

    def list_due(self, now: datetime, limit: int, *, only_started: bool = False) -> list[Maintenance]:
        """Return maintenances due by `now`, optionally only started ones, ordered by due time, then by creation."""

    def list_inactive(self, before: datetime, limit: int) -> list[Audience]:
        """Return enabled audiences whose ``active_until`` is at or before `before`."""

    def get_token_by_digest(self, digest: str) -> Token | None:
        """Return the token with that digest."""

    def get_token(self, token_id: str) -> Token | None:
        """Return the token with that id."""

    def list_tokens(self, host: str | None = None) -> list[Token]:
        """Return the tokens of people, or those of a host, oldest first."""

    def is_revoked(self, nonce: str) -> bool:
        """Return True if the login link with this nonce was used, or the session with this nonce was logged out."""

    def get_rollout(self, rollout_id: str) -> StoredRollout | None:
        """Return one rollout; None if there is none."""

    def list_rollouts(self, *, is_ended: bool | None = None, limit: int = 100) -> list[StoredRollout]:
        """Return the newest rollouts, newest first; optionally only those that have ended, or have not."""

    def get_idempotency_record(self, key: str) -> IdempotencyRecord | None:
        """Return the stored result of the command with that ``Idempotency-Key``; None if there is none."""

    def get_inventory_fingerprint(self) -> str | None:
        """Return the fingerprint of the inventory that was applied last."""

    def get_clock_kind(self) -> str | None:
        """Return the kind of clock that the database is used with: ``real`` or ``virtual``; None while it is new."""

    def get_clock_jump(self) -> ClockJump | None:
        """Return the clock jump that no operator has confirmed; None if there is none."""


class Transaction(NotifyingTransaction, Reader, Protocol):
    """One write transaction: when it ends, all of it is on disk, or none."""

    def now(self) -> datetime | None:
        """Return the time that all replicas of the database go by; None if no replicas share it."""

    def next_sequence(self) -> int:
        """Return the next number of the store's counter. The number is free again if the transaction fails."""

    def load_targets(self, hosts: Iterable[str], vms: Iterable[str]) -> WorkingSet:
        """Load the input of planning: those hosts and VMs, their scopes, audiences, documents and current holders."""

    def list_active_ids(self) -> list[str]:
        """Return the ids of all active maintenances."""

    def load_maintenances(
        self, ids: Iterable[str], *, with_neighbours: bool = False, into: WorkingSet | None = None
    ) -> WorkingSet:
        """Load those maintenances, complete and in focus.

        Args:
            ids: Ids of maintenances; unknown ones are left out.
            into: Working set to add to; None for a new one.
            with_neighbours: True to take the active maintenances that share a VM or scope into focus too, as ending one
                may free them.
        """

    def load_events(self, ids: Iterable[str]) -> WorkingSet:
        """Load those events, finished ones included, with their maintenances in focus."""

    def load_audiences(self, keys: Iterable[str], *, with_waiting: bool = False) -> WorkingSet:
        """Load those audiences with their documents; the maintenances of their listed events are in focus.

        Args:
            keys: Keys of the audiences.
            with_waiting: True to take the scheduled maintenances of their VMs into focus too, each with all its VMs: an
                audience that is being enabled must see them (R70b).
        """

    def save(self, changes: ChangeSet) -> None:
        """Write the changes of a decision."""

    def extend_active_until(self, active_until: Mapping[str, datetime]) -> None:
        """Move ``active_until`` of enabled audiences forward; never back."""

    def replace_inventory(self, inventory: Inventory, fingerprint: str, before: Inventory | None = None) -> None:
        """Make the declared state exactly this.

        Args:
            inventory: The new declaration.
            fingerprint: Fingerprint of the file that contained it.
            before: Part that is replaced, if only a part is declared anew; names on neither side stay unchanged. None:
                replace everything.
        """

    def save_clock_kind(self, kind: str) -> None:
        """Store the kind of clock."""

    def save_clock_jump(self, jump: ClockJump | None) -> None:
        """Store a clock jump until it is confirmed; None: it was confirmed."""

    def check_writable(self) -> None:
        """Write as much as a command does, and delete it again: this fails if the disk or the file is full."""

    def save_token(self, token: Token) -> None:
        """Store a new or changed token."""

    def add_revocation(self, revocation: Revocation, now: datetime, actor_max: int) -> bool:
        """Store a revocation, and forget those that have expired.

        Args:
            revocation: The revocation.
            now: Present time.
            actor_max: Maximum number kept for one actor; beyond it, those that expire last are kept.

        Returns:
            True if it was not revoked before.
        """

    def save_rollout(self, rollout: StoredRollout) -> None:
        """Store a new or changed rollout."""

    def save_idempotency_record(self, outcome: IdempotencyRecord) -> None:
        """Store the result of a command with an ``Idempotency-Key``."""

    def prune_history(
        self, ended_before: datetime, outcomes_before: datetime, limit: int, audit_before: datetime | None = None
    ) -> PruneResult:
        """Forget up to `limit` maintenances that ended before `ended_before`, with their events and audit log entries.

        Once fewer than `limit` are left, entries of no maintenance are forgotten too, at most ten times `limit`. Then
        entries of `Chain.AUDIT` are forgotten by age alone, the oldest first, also at most ten times `limit`: those
        before `audit_before`, or before `ended_before` if that is None. Both hash chains can still be followed
        afterwards. Then tokens that were revoked or expired before `ended_before` are forgotten too. Deliveries from
        before it are always forgotten.

        Returns:
            How much was forgotten; nothing once there is nothing left to forget.
        """


class SharedTransaction(Transaction, Protocol):
    """A write transaction on a database that several replicas share."""

    def now(self) -> datetime:
        """Return the database's time."""

    def get_lease(self, name: str) -> Lease | None:
        """Return the lease with its present or last holder; None if it was never held."""

    def acquire_lease(self, name: str, holder: str, span: timedelta) -> Lease:
        """Take or renew the lease for `span` unless another replica holds it; return the resulting lease."""

    def release_lease(self, name: str, holder: str) -> None:
        """End the lease now if `holder` holds it."""


class SharedStore(Protocol):
    """A database that several replicas share."""

    def write(self) -> AbstractContextManager[SharedTransaction]:
        """Begin a write transaction, as with `Store.write`."""

    def renew_lease(self, name: str, holder: str, term: int, span: timedelta) -> Lease | None:
        """Extend a lease that is held and not over, without waiting for writers; None if it is not held."""

    def wait_for_change(self, timeout_s: float) -> bool:
        """Wait until a replica announces a commit or the time is over; return True for a commit.

        A hint: it may be spurious, and it may be lost.

        Raises:
            StoreUnavailable: The database cannot be reached.
        """


class Store(Protocol):
    """Storage for everything; usable from any thread, one write at a time."""

    @property
    def shared(self) -> SharedStore | None:
        """The same database as several replicas use it; None if only one process may."""

    def write(self) -> AbstractContextManager[Transaction]:
        """Begin a write transaction. It commits at the end and rolls back on an exception.

        Raises:
            StoreUnavailable: The database is locked, full or away; nothing was changed.
        """

    def read(self) -> AbstractContextManager[Reader]:
        """Open a consistent view for reading."""

    @property
    def damage(self) -> str | None:
        """Description of the damage found since the store was opened; None if there is none."""

    def check_pages(self, span_s: float) -> None:
        """Look for damage for at most `span_s`; the next call continues with the rest. May block.

        A table that takes longer is interrupted, and gets twice the time at its next turn.

        Raises:
            StoreUnavailable: The database cannot be read now.
        """

    def stop_check(self) -> None:
        """End a `check_pages` that runs on another thread, and prevent further ones."""

    def close(self) -> None:
        """Close every connection."""
