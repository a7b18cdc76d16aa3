"""Reading: what every store can be asked, and the answers that are the same for all stores.

A store answers which rows have a key or a property; what a document, an inventory or the changes of a feed consist of
is decided here. See `docs/adr/0036-one-decision-for-all-stores.md`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Generic, TypeVar

from forewarn.core.access import Ownership, Revocation, Token
from forewarn.core.audit_chain import ChainPage
from forewarn.core.clock_jump import ClockJump
from forewarn.core.inventory import Inventory
from forewarn.core.label import ANY_LABELS, LabelSelector
from forewarn.core.maintenance.alert_schedule import AlertCheck
from forewarn.core.maintenance.decision import AudienceDocument
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
from forewarn.core.selection import ACTIVE, EVERYTHING, Selection
from forewarn.core.subscription import Delivery, DeliveryState, Subscription
from forewarn.core.vm_filter import ALL_VMS, VmFilter

__all__ = [
    "APPLIED_VERSION",
    "CLOCK_JUMP",
    "HOST_PREFIX",
    "INVENTORY",
    "INVENTORY_VERSION",
    "KEY_FIELDS",
    "FeedChanges",
    "IdempotencyRecord",
    "Page",
    "Reader",
    "StoredRollout",
]

T = TypeVar("T")

_PAGE = 10_000

INVENTORY = ""
"""Key of the inventory among the audience keys in the change feed."""

HOST_PREFIX = "host:"
"""Prefix, among those keys, of the name of a host whose VMs have changed."""

INVENTORY_VERSION = "inventory_version"
"""Key in `meta` of the number that grows with each change of the inventory."""

APPLIED_VERSION = "inventory_applied_version"
"""Key in `meta` of that number as it was when the last inventory file had been applied."""

CLOCK_JUMP = "clock_jump"
"""Key in `meta` of a jump of the clock; its row exists until an operator has confirmed the clock."""


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
    outcome: dict[str, Any]
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRollout:
    """A rollout as `wire.rollout.encode_rollout` encodes it, with the columns for looking it up."""

    id: str
    name: str
    created_at: datetime
    is_ended: bool
    content: str


KEY_FIELDS: dict[type[Any], str] = {
    AlertCheck: "maintenance_id",
    Audience: "key",
    Event: "id",
    Host: "name",
    IdempotencyRecord: "key",
    Maintenance: "id",
    Revocation: "nonce",
    Scope: "name",
    StoredRollout: "id",
    Subscription: "id",
    Token: "id",
    VirtualMachine: "name",
}
"""Field with the key of each kind of value that is found by one key."""


class Reader(ABC):
    """Reading without locking anyone out.

    A method with an argument `owned` sees only what belongs to that tenant; None: everything.
    """

    # Inventory

    def get_inventory(self, known: Mapping[str, VirtualMachine] | None = None) -> Inventory:
        """Return everything that is declared, by name.

        Args:
            known: VMs by name. One that is equal to what is read is returned in its place, and VMs are in no order:
                reading a million of them must neither have them in memory twice, nor halt all threads to free or to
                sort them.
        """
        return Inventory(
            hosts=tuple(sorted(self._list_rows(Host), key=attrgetter("name"))),
            scopes=tuple(sorted(self._list_rows(Scope), key=attrgetter("name"))),
            vms=tuple(self.list_vms() if known is None else self._list_all_vms(known)),
        )

    def _list_all_vms(self, known: Mapping[str, VirtualMachine]) -> list[VirtualMachine]:  # noqa: ARG002 - see above
        return self.list_vms()

    def get_inventory_version(self) -> int:
        """Return a number that grows whenever the result of `get_inventory` changes."""
        return int(self._get_meta(INVENTORY_VERSION) or 0)

    def get_inventory_fingerprint(self) -> str | None:
        """Return the fingerprint of the inventory that was applied last."""
        return self._get_meta("inventory")

    def is_inventory_unchanged_since(self, fingerprint: str) -> bool:
        """Return True if the inventory file with this fingerprint was applied last, and nothing has changed since."""
        version = str(self.get_inventory_version())
        return self.get_inventory_fingerprint() == fingerprint and self._get_meta(APPLIED_VERSION) == version

    def get_inventory_around(
        self, hosts: Iterable[str], *, vms: Iterable[str], addresses: Iterable[str] = (), scopes: Iterable[str] = ()
    ) -> Inventory:
        """Return a part of the inventory; the cost depends on that part, not on the size of the inventory.

        Args:
            hosts: Names of hosts; includes these hosts and their VMs.
            vms: Names of VMs on any host.
            addresses: Addresses of further VMs.
            scopes: Names of scopes, in addition to those of the VMs.
        """
        hosts = set(hosts)
        names = {*vms, *self._find_vm_names(addresses)}
        found = self._find_rows(VirtualMachine, names) | {vm.name: vm for vm in self._find_vms_on(hosts)}
        named = {*scopes, *(vm.scope for vm in found.values() if vm.scope is not None)}
        around, declared = self.find_scopes(named), self.find_hosts(hosts)
        return Inventory(
            hosts=tuple(declared[name] for name in sorted(declared)),
            scopes=tuple(around[name] for name in sorted(around)),
            vms=tuple(found[name] for name in sorted(found)),
        )

    @abstractmethod
    def list_vms(
        self, *, host: str | None = None, name: str | None = None, owned: Ownership | None = None
    ) -> list[VirtualMachine]:
        """Return VMs by name, only those on one host or with one name if given."""

    @abstractmethod
    def get_vm_page(
        self, after: str | None, limit: int, owned: Ownership | None = None, wanted: VmFilter = ALL_VMS
    ) -> list[VirtualMachine]:
        """Return at most `limit` VMs whose names come after that one, by name."""

    @abstractmethod
    def get_host_page(
        self, after: str | None, limit: int, prefix: str = "", selector: LabelSelector = ANY_LABELS
    ) -> dict[str, list[str]]:
        """Return at most `limit` hosts whose names come after that one, by name, each with the names of its VMs.

        Only hosts whose names begin with `prefix`, and whose labels `selector` selects.
        """

    @abstractmethod
    def get_scope_page(
        self,
        after: str | None,
        limit: int,
        owned: Ownership | None = None,
        prefix: str = "",
        selector: LabelSelector = ANY_LABELS,
    ) -> list[Scope]:
        """Return at most `limit` scopes whose names come after that one, by name.

        Only scopes whose names begin with `prefix`, and whose labels `selector` selects.
        """

    @abstractmethod
    def count_vms_by_scope(self, scopes: Iterable[str]) -> dict[str, int]:
        """Return the number of VMs of each of these scopes; one without VMs is left out."""

    def find_hosts(self, names: Iterable[str]) -> dict[str, Host]:
        """Return the named hosts, by name."""
        return self._find_rows(Host, names)

    @abstractmethod
    def list_failed_hosts(self, limit: int) -> list[Host]:
        """Return at most `limit` hosts that have failed and not recovered, the last to fail first."""

    def find_scopes(self, names: Iterable[str]) -> dict[str, Scope]:
        """Return the named scopes, by name."""
        return self._find_rows(Scope, names)

    @abstractmethod
    def iter_by_name(self, kind: type[T]) -> Iterator[list[T]]:
        """Yield the declared hosts, scopes or VMs by name, some at a time; they are never all in memory."""

    # Documents

    def find_audiences(self, keys: Iterable[str]) -> dict[str, Audience]:
        """Return the audiences with those keys, as far as they were ever enabled."""
        return self._find_rows(Audience, keys)

    def get_documents(self) -> tuple[list[AudienceDocument], list[Audience]]:
        """Return the documents of enabled audiences: those with events, and the audiences whose document is empty."""
        # Nearly all are empty, and a million empty documents would take time and memory.
        listed = self._list_listed_events()
        busy = {event.audience for event in listed}
        audiences = self._list_enabled_audiences()
        documents = self._build_documents((each for each in audiences if each.key in busy), listed)
        return list(documents), [each for each in audiences if each.key not in busy]

    @abstractmethod
    def get_position(self) -> int:
        """Return the number of the last committed change."""

    def get_feed_changes(self, since: int, known: Mapping[str, VirtualMachine] | None = None) -> FeedChanges:
        """Return the changes after that position, in one consistent view; for `known` see `get_inventory`."""
        position = self.get_position()
        # Most polls of a replica find nothing new: then the counter is all that is read.
        keys = set() if position == since else self._find_marked_keys(since)
        documents = list(self._build_documents(self.find_audiences(keys).values(), self._list_listed_events(keys)))
        if INVENTORY in keys:
            return FeedChanges(position=position, documents=documents, inventory=self.get_inventory(known))
        names = [key.removeprefix(HOST_PREFIX) for key in keys if key.startswith(HOST_PREFIX)]
        # A host that has lost its last VM is included without VMs, so that they disappear on other replicas too.
        hosts: dict[str, list[VirtualMachine]] = {name: [] for name in names}
        for vm in sorted(self._find_vms_on(names), key=attrgetter("name")):
            hosts[vm.host].append(vm)
        found = {name: tuple(vms) for name, vms in hosts.items()}
        return FeedChanges(position=position, documents=documents, inventory=None, hosts=found)

    def _build_documents(self, audiences: Iterable[Audience], listed: Iterable[Event]) -> Iterator[AudienceDocument]:
        by_audience: dict[str, list[Event]] = {}
        # Documents list events in the order of their creation (R29).
        for event in sorted(listed, key=attrgetter("sequence")):
            by_audience.setdefault(event.audience, []).append(event)
        maintenances = self.find_maintenances({e.maintenance_id for events in by_audience.values() for e in events})
        for audience in audiences:
            events = by_audience.get(audience.key, ())
            yield AudienceDocument(audience=audience, items=tuple((e, maintenances[e.maintenance_id]) for e in events))

    # Maintenances and events

    @abstractmethod
    def list_maintenances(
        self,
        *,
        before: int | None = None,
        limit: int = 100,
        selection: Selection = EVERYTHING,
        owned: Ownership | None = None,
    ) -> Page[Maintenance]:
        """Return maintenances, newest first, older than sequence `before`.

        Args:
            before: Upper bound of the sequence, exclusive; None: start with the newest.
            limit: Maximum number in one page.
            selection: Filter.
            owned: Tenant whose maintenances to return; None: all.
        """

    def list_active_maintenances(self) -> list[Maintenance]:
        """Return all active maintenances, newest first."""
        page = self.list_maintenances(limit=_PAGE, selection=ACTIVE)
        found = list(page.items)
        while page.next is not None:
            page = self.list_maintenances(before=page.next, limit=_PAGE, selection=ACTIVE)
            found += page.items
        return found

    @abstractmethod
    def list_ended_since(self, moment: datetime, limit: int, owned: Ownership | None = None) -> list[Maintenance]:
        """Return the last maintenances that have ended since then, the last first."""

    @abstractmethod
    def get_maintenance(self, maintenance_id: str, owned: Ownership | None = None) -> Maintenance | None:
        """Return one maintenance; None if there is none."""

    @abstractmethod
    def find_ids(self, kind: type[Any], prefix: str, limit: int) -> list[str]:
        """Return the first ids of a kind that begin with a prefix, in order.

        Args:
            kind: One of the kinds in `KEY_FIELDS` with the field ``id``.
            prefix: Beginning of the ids, of letters in the case of the ids, digits and ``-``.
            limit: Maximum number of ids.
        """

    def find_maintenances(self, ids: Iterable[str]) -> dict[str, Maintenance]:
        """Return those of the maintenances that exist, by id."""
        return self._find_rows(Maintenance, ids)

    def find_active_maintenances(self, part: Inventory) -> list[Maintenance]:
        """Return the active maintenances that hold a host, VM or scope of a part of the inventory, newest first."""
        holders = self._find_holders([vm.name for vm in part.vms], [scope.name for scope in part.scopes])
        # A host without VMs has no claims; so hosts are compared by what was requested.
        names = {host.name for host in part.hosts}
        of_hosts = {i for i, hosts in self._list_active_hosts().items() if not names.isdisjoint(hosts)}
        found = self.find_maintenances(holders | of_hosts)
        return sorted(found.values(), key=attrgetter("sequence"), reverse=True)

    @abstractmethod
    def find_events_of(self, maintenance_ids: Iterable[str]) -> dict[str, list[Event]]:
        """Return the events of each of those maintenances, in order of creation."""

    @abstractmethod
    def find_event_audiences(self, event_ids: Iterable[str]) -> dict[str, str]:
        """Return the audience of each of those events, finished ones included; unknown ids are left out."""

    @abstractmethod
    def find_owned_events(self, event_ids: Iterable[str], owned: Ownership) -> set[str]:
        """Return those of the ids whose events are about VMs of that tenant."""

    @abstractmethod
    def count_by_state(self) -> Mapping[MaintenanceState, int]:
        """Return the number of maintenances in each state."""

    @abstractmethod
    def next_due_at(self, except_for: Iterable[str] = (), *, only_started: bool = False) -> datetime | None:
        """Return the earliest moment at which a maintenance outside `except_for` is due, optionally a started one."""

    @abstractmethod
    def next_inactive_at(self) -> datetime | None:
        """Return the smallest ``active_until`` of an enabled audience."""

    @abstractmethod
    def list_due(self, now: datetime, limit: int, *, only_started: bool = False) -> list[Maintenance]:
        """Return maintenances due by `now`, optionally only started ones, ordered by due time, then by creation."""

    @abstractmethod
    def list_inactive(self, before: datetime, limit: int) -> list[Audience]:
        """Return enabled audiences whose ``active_until`` is at or before `before`."""

    # The audit log

    @abstractmethod
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

    @abstractmethod
    def get_link_page(self, after: int | None, limit: int) -> ChainPage:
        """Return at most `limit` links of both hash chains with larger numbers, in order; None: from the beginning."""

    @abstractmethod
    def get_newest_excess_at(self, entries_max: int) -> datetime | None:
        """Return the moment of the newest entry in excess of `entries_max`; None if there is no excess.

        Entries of `Chain.AUDIT` are not counted: they are kept by age alone.
        """

    @abstractmethod
    def find_nth_newest_of_tenant(self, tenant_key: str, since: datetime, count: int) -> datetime | None:
        """Return the moment of the `count`-th newest entry that tenants made for the operations of one tenant.

        Args:
            tenant_key: The tenant, as `Ownership.key`.
            since: Start of the period; operations that the tenant requested earlier do not count.
            count: Position from the end, beginning with 1.

        Returns:
            The moment; None if there are fewer entries.
        """

    # Notifications

    @abstractmethod
    def next_alert_check_at(self) -> datetime | None:
        """Return the moment of the earliest check."""

    @abstractmethod
    def list_due_alert_checks(self, now: datetime, limit: int) -> list[AlertCheck]:
        """Return checks that are due by `now`, in order of their moment, then of their maintenance."""

    def list_subscriptions(self) -> list[Subscription]:
        """Return all subscriptions, oldest first."""
        return sorted(self._list_rows(Subscription), key=attrgetter("created_at", "id"))

    def get_subscription(self, subscription_id: str) -> Subscription | None:
        """Return the subscription with that id; None if there is none."""
        return self._find_rows(Subscription, [subscription_id]).get(subscription_id)

    @abstractmethod
    def list_deliveries(
        self, subscription_id: str, state: DeliveryState, *, after: tuple[int, str] = (0, ""), limit: int = 100
    ) -> list[Delivery]:
        """Return deliveries of a subscription in that state with keys after `after`, in the order of their keys."""

    @abstractmethod
    def find_deliveries(self, subscription_id: str, keys: Iterable[tuple[int, str]]) -> list[Delivery]:
        """Return those of the deliveries of a subscription that exist, in the order of their keys."""

    @abstractmethod
    def count_deliveries(self) -> Mapping[tuple[str, DeliveryState], int]:
        """Return the number of deliveries by subscription and state; zero counts are left out."""

    # Access, rollouts, single values

    @abstractmethod
    def find_tokens_by_digest(self, digests: Iterable[str]) -> dict[str, Token]:
        """Return the tokens with these digests, by digest; unknown digests are left out."""

    def get_token_by_digest(self, digest: str) -> Token | None:
        """Return the token with that digest."""
        return self.find_tokens_by_digest([digest]).get(digest)

    def find_tokens(self, token_ids: Iterable[str]) -> Mapping[str, Token]:
        """Return the tokens with these ids, by id; unknown ids are left out."""
        return self._find_rows(Token, token_ids)

    def get_token(self, token_id: str) -> Token | None:
        """Return the token with that id."""
        return self.find_tokens([token_id]).get(token_id)

    @abstractmethod
    def list_tokens(self, host: str | None = None) -> list[Token]:
        """Return the tokens of people, or those of a host, oldest first."""

    def is_revoked(self, nonce: str) -> bool:
        """Return True if the login link with this nonce was used, or the session with this nonce was logged out."""
        return nonce in self._find_rows(Revocation, [nonce])

    def get_rollout(self, rollout_id: str) -> StoredRollout | None:
        """Return one rollout; None if there is none."""
        return self._find_rows(StoredRollout, [rollout_id]).get(rollout_id)

    @abstractmethod
    def list_rollouts(self, *, is_ended: bool | None = None, limit: int = 100, skip: int = 0) -> list[StoredRollout]:
        """Return rollouts, newest first, after the first `skip`; optionally only those that have ended, or have not."""

    def get_idempotency_record(self, key: str) -> IdempotencyRecord | None:
        """Return the stored result of the command with that ``Idempotency-Key``; None if there is none."""
        return self._find_rows(IdempotencyRecord, [key]).get(key)

    def get_clock_kind(self) -> str | None:
        """Return the kind of clock that the database is used with: ``real`` or ``virtual``; None while it is new."""
        return self._get_meta("clock")

    def get_clock_jump(self) -> ClockJump | None:
        """Return the clock jump that no operator has confirmed; None if there is none."""
        text = self._get_meta(CLOCK_JUMP)
        if text is None:
            return None
        said = json.loads(text)
        return ClockJump(by=timedelta(seconds=said["by_s"]), at=datetime.fromisoformat(said["at"]))

    # Primitives

    @abstractmethod
    def _find_rows(self, kind: type[T], keys: Iterable[str]) -> dict[str, T]:
        """Return the values of that kind that exist for these keys, by key."""

    @abstractmethod
    def _list_rows(self, kind: type[T]) -> list[T]:
        """Return all values of that kind, in any order."""

    @abstractmethod
    def _get_meta(self, key: str) -> str | None:
        """Return the single value stored under that key."""

    @abstractmethod
    def _find_vm_names(self, addresses: Iterable[str]) -> set[str]:
        """Return the names of the VMs with these addresses."""

    @abstractmethod
    def _find_vms_on(self, hosts: Iterable[str]) -> list[VirtualMachine]:
        """Return the VMs on these hosts, in any order."""

    @abstractmethod
    def _find_holders(self, vms: Iterable[str], scopes: Iterable[str]) -> set[str]:
        """Return the ids of the active maintenances that hold one of those VMs or scopes."""

    @abstractmethod
    def _list_active_hosts(self) -> dict[str, tuple[str, ...]]:
        """Return the hosts that each active maintenance of hosts was requested for, by its id."""

    @abstractmethod
    def _list_enabled_audiences(self) -> list[Audience]:
        """Return the enabled audiences, in any order."""

    @abstractmethod
    def _list_listed_events(self, audiences: Iterable[str] | None = None) -> list[Event]:
        """Return the listed events of these audiences, in any order; None: of all."""

    @abstractmethod
    def _find_marked_keys(self, since: int) -> set[str]:
        """Return the keys in the change feed that were marked after that position."""
