"""What a store owes. `tests/conformance/test_store.py` runs the same duties over every implementation.

A store is synchronous: the engine runs each transaction as a whole on a thread of its own, so that a decision between
two statements never waits for the event loop, and a test may run it in line. See `docs/adr/0003-synchronous-store.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar

from forewarn.core.access import Owned, Revocation, Token
from forewarn.core.chain import LinkPage
from forewarn.core.clock_jump import Jump
from forewarn.core.decision import Changes, Document, State
from forewarn.core.inventory import Inventory
from forewarn.core.model import (
    Audience,
    Entry,
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
    "Forgotten",
    "News",
    "Outcome",
    "Page",
    "Reader",
    "SharedStore",
    "SharedTransaction",
    "Store",
    "StoredRollout",
    "Transaction",
    "marks_of",
]

T = TypeVar("T")

INVENTORY = ""
"""What stands for the inventory among the keys of audiences, where it is told what has changed."""

HOST_PREFIX = "host:"
"""What the name of a host whose VMs have changed begins with among those keys."""

HOSTS_MARKED_MAX = 500
"""Hosts whose VMs may change at once before the inventory counts as replaced."""


def marks_of(before: Inventory, after: Inventory) -> list[str]:
    """Return the keys that say what differs between two inventories: those of hosts, or that of the whole inventory."""
    hosts = {vm.host for side in (before, after) for vm in side.vms}
    is_small = before.scopes == after.scopes and before.hosts == after.hosts and len(hosts) <= HOSTS_MARKED_MAX
    return [HOST_PREFIX + host for host in sorted(hosts)] if is_small else [INVENTORY]


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What has changed since some position.

    Attributes:
        position: Up to which this tells.
        documents: The present document of each audience that has changed, disabled ones included.
        inventory: The inventory, if much of it was replaced; None if not.
        hosts: Where the inventory was not replaced: the VMs of each host whose VMs have changed.
    """

    position: int
    documents: list[Document]
    inventory: Inventory | None
    hosts: Mapping[str, tuple[VirtualMachine, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list.

    Attributes:
        items: At most as many as were asked for. There may be fewer, or none, although more follows: a page of a
            selection ends where enough was looked at.
        next: What to pass as ``after`` (as ``before``, where the newest come first) for the following part; None at the
            end.
    """

    items: list[T]
    next: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command with an ``Idempotency-Key`` led to."""

    key: str
    fingerprint: str
    content: dict[str, Any]
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """How much history was forgotten.

    Attributes:
        maintenances: Ended ones, with their events and claims.
        entries: Of the ledger, theirs and those of no maintenance.
    """

    maintenances: int = 0
    entries: int = 0

    def __bool__(self) -> bool:
        """Whether it was any."""
        return bool(self.maintenances or self.entries)

    def __add__(self, other: Forgotten) -> Forgotten:
        """Both together."""
        return Forgotten(maintenances=self.maintenances + other.maintenances, entries=self.entries + other.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRollout:
    """A rollout, as `wire.rollout` encodes it, with what it is looked for by."""

    id: str
    name: str
    created_at: datetime
    is_ended: bool
    content: str


class Reader(NotifyingReader, Protocol):
    """Reading, without locking anybody out.

    Where there is an argument `owned`, only what belongs to that tenant is there; None: everything is.
    """

    def inventory(self) -> Inventory:
        """Everything that is declared, VMs by name."""
        ...

    def inventory_version(self) -> int:
        """A number that grows whenever anything changes that `inventory` returns."""
        ...

    def inventory_around(
        self, *, host: str, vms: Iterable[str], addresses: Iterable[str], scopes: Iterable[str]
    ) -> Inventory:
        """What a declaration of one host can touch: it costs what that is, however large the inventory.

        Args:
            host: Its VMs, and the host itself.
            vms: Names of VMs, wherever they are.
            addresses: The VMs to which these belong.
            scopes: Names of scopes, beside those of the VMs.
        """
        ...

    def vms(
        self, *, host: str | None = None, name: str | None = None, owned: Owned | None = None
    ) -> list[VirtualMachine]:
        """VMs by name, of one host or of one name if asked for."""
        ...

    def vm_page(self, after: str | None, limit: int, owned: Owned | None = None) -> list[VirtualMachine]:
        """At most `limit` VMs whose names come after that one, by name."""
        ...

    def host_page(self, after: str | None, limit: int) -> dict[str, list[str]]:
        """At most `limit` hosts whose names come after that one, by name, each with the names of its VMs."""
        ...

    def hosts(self, names: Iterable[str]) -> dict[str, Host]:
        """Hosts by name, of those named."""
        ...

    def failed_hosts(self, limit: int) -> list[Host]:
        """At most `limit` hosts that have failed and not recovered, the last to fail first."""
        ...

    def scopes(self, names: Iterable[str]) -> dict[str, Scope]:
        """Scopes by name, of those named."""
        ...

    def documents(self) -> Iterator[Document]:
        """The document of every enabled audience."""
        ...

    def position(self) -> int:
        """The number of the last change that was committed."""
        ...

    def news(self, since: int) -> News:
        """What has changed after that position, in one consistent view."""
        ...

    def audiences(self, keys: Iterable[str]) -> dict[str, Audience]:
        """The audiences of those keys, as far as they were ever enabled."""
        ...

    def maintenances(
        self,
        *,
        states: Sequence[MaintenanceState] = (),
        before: int | None = None,
        limit: int = 100,
        selection: Selection = EVERYTHING,
        owned: Owned | None = None,
    ) -> Page[Maintenance]:
        """Maintenances, newest first, older than sequence `before`.

        Args:
            states: Short for a selection of these states, if that names none.
            before: None: from the newest on.
            limit: Most in one page.
            selection: Which.
            owned: Whose.
        """
        ...

    def ended_since(self, moment: datetime, limit: int, owned: Owned | None = None) -> list[Maintenance]:
        """The last maintenances that have ended since then, the last first."""
        ...

    def maintenance(self, maintenance_id: str, owned: Owned | None = None) -> Maintenance | None:
        """One maintenance."""
        ...

    def events_of(self, maintenance_ids: Iterable[str]) -> dict[str, list[Event]]:
        """The events of each of those maintenances, in order of creation."""
        ...

    def event_audiences(self, event_ids: Iterable[str]) -> dict[str, str]:
        """The audience of each of those events, finished ones included; unknown ids are left out."""
        ...

    def owned_events(self, event_ids: Iterable[str], owned: Owned) -> set[str]:
        """Which of those ids are of events about VMs of that tenant."""
        ...

    def entries(  # noqa: PLR0913 - which part of a long list, each in its own way
        self,
        *,
        after: int = 0,
        limit: int = 100,
        newest: bool = False,
        before: int | None = None,
        selection: Selection = EVERYTHING,
        owned: Owned | None = None,
    ) -> Page[Entry]:
        """Ledger entries, those of a page oldest first.

        Args:
            after: Only those with a larger sequence.
            limit: Most in one page.
            newest: The first page has the last entries; `Page.next` is `before` for those that come before them.
            before: Only those with a smaller sequence; None: all.
            selection: Which.
            owned: Whose.
        """
        ...

    def links(self, after: int | None, limit: int) -> LinkPage:
        """At most `limit` links of both hash chains with larger numbers, in order; None: from the beginning."""
        ...

    def excess_until(self, entries_max: int) -> datetime | None:
        """The moment of the newest entry that is too many, if only so many are to be kept; None: there are no more.

        Entries of `Chain.AUDIT` are not counted: they are kept by age alone.
        """
        ...

    def nth_newest_of_tenant(self, tenant_key: str, since: datetime, count: int) -> datetime | None:
        """Return the moment of the `count`-th newest entry that tenants made for the operations of one tenant.

        Args:
            tenant_key: The tenant, as `Owned.key`.
            since: Operations that it asked for before do not count.
            count: From the end, beginning with 1.

        Returns:
            The moment; None if there are fewer entries.
        """
        ...

    def counts(self) -> Mapping[MaintenanceState, int]:
        """How many maintenances are in each state."""
        ...

    def next_due_at(self, except_for: Iterable[str] = (), *, only_started: bool = False) -> datetime | None:
        """The earliest moment at which some maintenance is due, those ids aside; or only a started one."""
        ...

    def next_silent_at(self) -> datetime | None:
        """The smallest ``active_until`` of an enabled audience."""
        ...

    def due(self, now: datetime, limit: int, *, only_started: bool = False) -> list[Maintenance]:
        """Maintenances due by `now`, or only started ones, in order of their due time, then of creation."""
        ...

    def silent(self, before: datetime, limit: int) -> list[Audience]:
        """Enabled audiences whose ``active_until`` lies at or before `before`."""
        ...

    def token(self, digest: str) -> Token | None:
        """The token of that digest."""
        ...

    def token_of(self, token_id: str) -> Token | None:
        """The token of that id."""
        ...

    def tokens(self, host: str | None = None) -> list[Token]:
        """Tokens of people, or those of a host; oldest first."""
        ...

    def is_revoked(self, nonce: str) -> bool:
        """Whether the login link was used, or the session logged out of, that has this nonce."""
        ...

    def rollout(self, rollout_id: str) -> StoredRollout | None:
        """One rollout."""
        ...

    def rollouts(self, *, is_ended: bool | None = None, limit: int = 100) -> list[StoredRollout]:
        """The newest rollouts, newest first; only those that are over, or are not."""
        ...

    def outcome(self, key: str) -> Outcome | None:
        """What the command with that ``Idempotency-Key`` led to."""
        ...

    def fingerprint(self) -> str | None:
        """The fingerprint of the inventory that was applied last."""
        ...

    def clock(self) -> str | None:
        """The kind of clock that the database is used with: ``real`` or ``virtual``; None while it is new."""
        ...

    def clock_jump(self) -> Jump | None:
        """The jump of the clock that no operator has confirmed."""
        ...


class Transaction(NotifyingTransaction, Reader, Protocol):
    """One write transaction: all of it is on disk when it ends, or none."""

    def now(self) -> datetime | None:
        """The time that all who share the database go by; None where nobody shares it."""
        ...

    def next_sequence(self) -> int:
        """The next number of the store's counter. Given back when the transaction fails."""
        ...

    def load_request(self, hosts: Iterable[str], vms: Iterable[str]) -> State:
        """What planning needs: those hosts and VMs, their scopes, audiences, documents, and who holds them."""
        ...

    def active_ids(self) -> list[str]:
        """Ids of all active maintenances."""
        ...

    def load_maintenances(
        self, ids: Iterable[str], *, with_neighbours: bool = False, into: State | None = None
    ) -> State:
        """Those maintenances in focus, complete.

        Args:
            ids: Unknown ones are left out.
            into: A working set to add to.
            with_neighbours: Take the active maintenances that share a VM or scope into focus too, as ending one may
                free them.
        """
        ...

    def load_events(self, ids: Iterable[str]) -> State:
        """Those events, finished ones included, with their maintenances in focus."""
        ...

    def load_audiences(self, keys: Iterable[str], *, with_waiting: bool = False) -> State:
        """Those audiences with their documents; the maintenances of their listed events are in focus.

        Args:
            keys: Of the audiences.
            with_waiting: Take the scheduled maintenances of their VMs into focus too, each with all its VMs: an
                audience that is being enabled is to be shown them (R70b).
        """
        ...

    def save(self, changes: Changes) -> None:
        """Write what a decision changed."""
        ...

    def touch(self, active_until: Mapping[str, datetime]) -> None:
        """Move ``active_until`` of enabled audiences forward; never back."""
        ...

    def replace_inventory(self, inventory: Inventory, fingerprint: str, before: Inventory | None = None) -> None:
        """Make the declared state exactly this.

        Args:
            inventory: What is declared.
            fingerprint: Of the file that it came in.
            before: What it replaces, where only a part is declared anew: what is on neither side stays.
        """
        ...

    def keep_clock(self, kind: str) -> None:
        """Remember the kind of clock."""
        ...

    def keep_clock_jump(self, jump: Jump | None) -> None:
        """Remember a jump of the clock until it is confirmed; None: it is."""
        ...

    def probe(self) -> None:
        """Write as much as a command does, and take it back: it fails where the disk, or the file, is full."""
        ...

    def keep_token(self, token: Token) -> None:
        """Keep a new token, or one that was changed."""
        ...

    def revoke(self, revocation: Revocation, now: datetime, actor_max: int) -> bool:
        """Keep a revocation, and forget those that have expired.

        Args:
            revocation: What is revoked.
            now: The time.
            actor_max: Most that are kept for one actor; beyond it, those that expire first are forgotten.

        Returns:
            Whether it was not revoked before.
        """
        ...

    def keep_rollout(self, rollout: StoredRollout) -> None:
        """Keep a new rollout, or one that was changed."""
        ...

    def keep_outcome(self, outcome: Outcome) -> None:
        """Remember what an ``Idempotency-Key`` led to."""
        ...

    def prune(
        self, ended_before: datetime, outcomes_before: datetime, limit: int, audit_before: datetime | None = None
    ) -> Forgotten:
        """Forget at most `limit` maintenances that ended before that, with their events and ledger entries.

        Once there are fewer of them than that, entries of no maintenance are forgotten too, ten times `limit` at most.
        Entries of `Chain.AUDIT` are forgotten by their age alone, the oldest first, and as many: those before
        `audit_before`, which is `ended_before` if it is None. Both hash chains can still be followed afterwards.
        Tokens that were not taken any more before that are forgotten, too.
        Deliveries of what happened before that are forgotten, too.

        Returns:
            How much was forgotten; none once there is nothing left to forget.
        """
        ...

    def mend_claims(self, until: datetime, limit: int) -> int:
        """Make again what a replica of an earlier version has left out or deleted of the claims.

        Such a one deletes the claims of what ends, and names no host. Each maintenance keeps its claims itself too:
        from these they are made.

        Args:
            until: What ended before this is not looked at again once nothing is missing any more.
            limit: Most maintenances in one go.

        Returns:
            How many maintenances were mended.
        """
        ...


class SharedTransaction(Transaction, Protocol):
    """A write transaction on a database that several replicas share."""

    def now(self) -> datetime:
        """The database's time."""
        ...

    def lease(self, name: str) -> Lease | None:
        """Who holds that lease, or held it last; None: nobody ever did."""
        ...

    def take_lease(self, name: str, holder: str, span: timedelta) -> Lease:
        """Take it, or renew it, for so long, unless somebody else holds it; hands back who does now."""
        ...

    def give_lease_back(self, name: str, holder: str) -> None:
        """Let it end now, if that is its holder."""
        ...


class SharedStore(Protocol):
    """A database that several replicas share."""

    def write(self) -> AbstractContextManager[SharedTransaction]:
        """As of any store."""
        ...

    def renew_lease(self, name: str, holder: str, term: int, span: timedelta) -> Lease | None:
        """Extend a lease that is held and not over, without waiting for writers; None: it is not."""
        ...

    def wait_for_change(self, timeout_s: float) -> bool:
        """Until somebody says that something was committed, or the time is over; hands back which.

        A hint: it may come for nothing, and may be lost.

        Raises:
            StoreUnavailable: The database is away.
        """
        ...


class Store(Protocol):
    """A place for everything; may be used from any thread, one write at a time."""

    @property
    def shared(self) -> SharedStore | None:
        """The same, as several replicas use it; None where only one process may."""
        ...

    def write(self) -> AbstractContextManager[Transaction]:
        """A write transaction. Commits at the end, rolls back on an exception.

        Raises:
            StoreUnavailable: Locked, full or away; nothing was changed.
        """
        ...

    def read(self) -> AbstractContextManager[Reader]:
        """A consistent view for reading."""
        ...

    @property
    def damage(self) -> str | None:
        """What was found damaged since the store was opened; None: nothing."""
        ...

    def check_pages(self, span_s: float) -> None:
        """Look for damage, for at most so long; what could not be looked at in that time is next. May block.

        Raises:
            StoreUnavailable: The database cannot be read now.
        """
        ...

    def end_check(self) -> None:
        """End a `check_pages` that runs on another thread, and let no more begin."""
        ...

    def close(self) -> None:
        """Let go of every connection."""
        ...
