"""Tables of the in-memory store: dictionaries, each with its indexes, and an undo log of every change.

A table logs the previous value at a key. An undo puts that back in the same way as the new value was put there, so an
index cannot be right after a change and wrong after its undoing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Sequence
from datetime import datetime
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from forewarn.core.access import Revocation, Token
from forewarn.core.audit_chain import Chain, ChainHead, ChainLink
from forewarn.core.maintenance.alert_schedule import AlertCheck
from forewarn.core.model import Audience, Event, Host, Maintenance, Scope, VirtualMachine
from forewarn.core.subscription import Delivery, Subscription
from forewarn.errors import StoreUnavailable
from forewarn.store.reader import IdempotencyRecord, StoredRollout
from forewarn.store.transaction import ChainedEntry

__all__ = ["ALL", "Index", "MaintenanceHolders", "Table", "Tables"]

V = TypeVar("V")
V_contra = TypeVar("V_contra", contravariant=True)

Place = tuple[Hashable, tuple[Any, ...]]
"""A group, and the place in it: the sort key of the value within the group, ending with the key in the table."""

ALL = ""
"""Name of the group of an index that has only one."""


class _TableObserver(Protocol[V_contra]):
    """An observer of a table.

    Attributes:
        is_fixed: True if it need not be informed of a value that replaces another one.
    """

    is_fixed: bool

    def apply_change(self, before: V_contra | None, after: V_contra | None) -> None:
        """Handle a changed value; `before` is None for a new one, `after` for a removed one."""


class Index(Generic[V]):
    """Values of a table in groups, each in order.

    Args:
        place: Function that returns the place of a value; None for no place. Places of two values differ.
        is_fixed: True if the place of a key never changes.

    Attributes:
        is_fixed: True if the place of a key never changes.
    """

    def __init__(self, place: Callable[[V], Place | None], *, is_fixed: bool = False) -> None:
        self._place = place
        self.is_fixed = is_fixed
        self._groups: dict[Hashable, list[tuple[Any, ...]]] = {}

    def apply_change(self, before: V | None, after: V | None) -> None:
        """Follow a change of the table."""
        was = None if before is None else self._place(before)
        will = None if after is None else self._place(after)
        if was == will:
            return
        if was is not None:
            group = self._groups[was[0]]
            del group[bisect_left(group, was[1])]
            if not group:
                del self._groups[was[0]]
        if will is not None:
            insort(self._groups.setdefault(will[0], []), will[1])

    def get_group(self, name: Hashable) -> Sequence[tuple[Any, ...]]:
        """Return the places of one group, in order. Do not keep the result: it changes with the table."""
        return self._groups.get(name, ())

    def copy_before(self, name: Hashable, *start: object) -> Sequence[tuple[Any, ...]]:
        """Return a copy of the places of a group that are before `start`."""
        group = self.get_group(name)
        return group[: bisect_left(group, start)]

    def has_start(self, name: Hashable, start: object) -> bool:
        """Return True if a place of the group begins with `start`."""
        group = self.get_group(name)
        position = bisect_left(group, (start,))
        return position < len(group) and group[position][0] == start


class MaintenanceHolders:
    """The maintenances that hold each VM and scope."""

    is_fixed = False

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str], dict[str, None]] = {}

    def apply_change(self, before: Maintenance | None, after: Maintenance | None) -> None:
        """Follow a change of the table of maintenances that hold something."""
        if before is not None:
            for key in before.claim_keys:
                ids = self._ids[key]
                del ids[before.id]
                if not ids:
                    del self._ids[key]
        if after is not None:
            for key in after.claim_keys:
                self._ids.setdefault(key, {})[after.id] = None

    def get_ids(self, kind: str, name: str) -> Sequence[str]:
        """Return the ids of the maintenances that hold that ``vm`` or ``scope``."""
        return tuple(self._ids.get((kind, name), ()))


class Table(Generic[V]):
    """Values by key.

    Args:
        noun: Name of a value, for messages.
        log: Undo log that the table writes the previous value at a key to.

    Attributes:
        rows: The values; changed by the methods alone.
    """

    def __init__(self, noun: str, log: list[tuple[Table[Any], Any, Any]]) -> None:
        self.rows: dict[Any, V] = {}
        self._noun = noun
        self._log = log
        self._followers: list[_TableObserver[V]] = []
        self._moving_followers: list[_TableObserver[V]] = []

    def add_follower(self, follower: _TableObserver[V]) -> None:
        """Inform an observer of every change from now on."""
        self._followers.append(follower)
        if not follower.is_fixed:
            self._moving_followers.append(follower)

    def add_index(self, place: Callable[[V], Place | None], *, is_fixed: bool = False) -> Index[V]:
        """Add an index; see `Index` for the arguments."""
        index = Index(place, is_fixed=is_fixed)
        self.add_follower(index)
        return index

    def add(self, key: Hashable, value: V) -> None:
        """Add a value at a key that had none.

        Raises:
            StoreUnavailable: The key has a value, as a database would report.
        """
        if key in self.rows:
            self.refuse_duplicate(key)
        self.put(key, value)

    def refuse_duplicate(self, key: Hashable) -> NoReturn:
        """Raise the error that a database would raise for a second value with that key."""
        msg = f"cannot store {self._noun} {key!r}: its key, or a unique value of it, is already in the store"
        raise StoreUnavailable(msg)

    def put(self, key: Hashable, value: V | None) -> None:
        """Store that value at that key; None: remove the key."""
        self._log.append((self, key, self.rows.get(key)))
        self.put_unlogged(key, value)

    def put_unlogged(self, key: Hashable, value: V | None) -> None:
        """Store a value without a note in the log, for undoing."""
        before = self.rows.get(key)
        # A value that replaces another one keeps its place in the fixed indexes, which are most of them.
        for follower in self._followers if before is None or value is None else self._moving_followers:
            follower.apply_change(before, value)
        if value is not None:
            self.rows[key] = value
        elif before is not None:
            del self.rows[key]


class Tables:
    """All tables, their indexes, and the changes since the last commit.

    Attributes:
        by_kind: Table of each kind of value.
        by_sequence: Index of each kind whose values have unique numbers.
    """

    def __init__(self) -> None:
        self.counter = 0
        self.heads = {chain: ChainHead() for chain in Chain}
        self.by_kind: dict[type[Any], Table[Any]] = {}
        self._log: list[tuple[Table[Any], Any, Any]] = []
        self._add_inventory()
        self._add_maintenances()
        self._add_audit_log()
        self.meta: Table[str] = Table("meta", self._log)
        self.tokens = self._add_table("token", Token)
        self.revocations = self._add_table("revocation", Revocation)
        self.rollouts = self._add_table("rollout", StoredRollout)
        self._add_table("outcome", IdempotencyRecord)
        self.alert_checks = self._add_table("alert_check", AlertCheck)
        self.alert_checks_by_at = self.alert_checks.add_index(lambda c: _place_at(c.at, c.maintenance_id))
        self.subscriptions = self._add_table("subscription", Subscription)
        self.deliveries = self._add_table("delivery", Delivery)
        self.deliveries_by_state = self.deliveries.add_index(lambda d: ((d.subscription_id, d.state), d.key))

    def _add_table(self, noun: str, kind: type[V]) -> Table[V]:
        table: Table[V] = Table(noun, self._log)
        self.by_kind[kind] = table
        return table

    def _add_inventory(self) -> None:
        self.hosts = self._add_table("host", Host)
        self.hosts_by_name = self.hosts.add_index(lambda h: (ALL, (h.name,)), is_fixed=True)
        self.scopes = self._add_table("scope", Scope)
        self.scopes_by_name = self.scopes.add_index(lambda s: (ALL, (s.name,)), is_fixed=True)
        self.vms = self._add_table("vm", VirtualMachine)
        self.vms_by_name = self.vms.add_index(lambda v: (ALL, (v.name,)), is_fixed=True)
        self.vms_by_host = self.vms.add_index(lambda v: (v.host, (v.name,)))
        self.addresses: Table[str] = Table("address", self._log)

    def _add_maintenances(self) -> None:
        self.audiences = self._add_table("audience", Audience)
        self.audiences_by_active_until = self.audiences.add_index(lambda a: _place_at(a.active_until, a.key))
        self.feed: Table[tuple[int, str]] = Table("feed", self._log)
        self.feed_by_sequence = self.feed.add_index(lambda mark: (ALL, mark))

        made = self.maintenances = self._add_table("maintenance", Maintenance)
        self.maintenances_by_sequence = made.add_index(lambda m: (ALL, (m.sequence, m.id)), is_fixed=True)
        self.maintenances_by_state = made.add_index(lambda m: (m.state, (m.sequence, m.id)))
        self.maintenances_by_due_at = made.add_index(lambda m: _place_at(m.due_at, m.sequence, m.id))
        self.maintenances_by_ended_at = made.add_index(lambda m: _place_at(m.ended_at, m.sequence, m.id))
        self.maintenances_by_tenant = made.add_index(
            lambda m: None if m.tenant_key is None else (m.tenant_key, (m.created_at, m.id)), is_fixed=True
        )
        self.holders = MaintenanceHolders()
        self.claims: Table[Maintenance] = Table("claims of maintenance", self._log)
        self.claims.add_follower(self.holders)

        seen = self.events = self._add_table("event", Event)
        self.events_by_sequence = seen.add_index(lambda e: (ALL, (e.sequence, e.id)), is_fixed=True)
        self.events_by_maintenance = seen.add_index(lambda e: (e.maintenance_id, (e.sequence, e.id)), is_fixed=True)
        self.events_by_audience = seen.add_index(lambda e: (e.audience, (e.sequence, e.id)) if e.is_listed else None)
        self.by_sequence: dict[type[Any], Index[Any]] = {
            Event: self.events_by_sequence,
            Maintenance: self.maintenances_by_sequence,
        }

    def _add_audit_log(self) -> None:
        log: Table[ChainedEntry] = Table("audit log entry", self._log)
        self.audit_log = log
        self.entries_by_sequence = log.add_index(lambda e: (ALL, (e[0],)), is_fixed=True)
        self.entries_by_maintenance = log.add_index(_entry_place)
        self.entries_of_no_maintenance = log.add_index(_place_without_maintenance)
        self.entries_by_chain = log.add_index(lambda e: (e[2], (e[0],)), is_fixed=True)
        self.forgotten_links: Table[ChainLink] = Table("forgotten audit log entry", self._log)
        self.forgotten_by_chain = self.forgotten_links.add_index(lambda f: (f.chain, (f.sequence,)), is_fixed=True)

    def commit(self) -> None:
        """Commit the changes."""
        self._log.clear()

    @property
    def change_count(self) -> int:
        """Number of changes since the last commit."""
        return len(self._log)

    def roll_back(self, kept: int = 0) -> None:
        """Undo all changes since the last commit but the first `kept` ones."""
        # In reverse: of several old values of one key, the first to be logged must be the last to be restored.
        for table, key, before in reversed(self._log[kept:]):
            table.put_unlogged(key, before)
        del self._log[kept:]


def _place_at(moment: datetime | None, *rest: object) -> Place | None:
    """Return the place by that moment, and what orders the values of one moment; None without a moment."""
    return None if moment is None else (ALL, (moment, *rest))


def _entry_place(numbered: ChainedEntry) -> Place | None:
    sequence, entry = numbered[:2]
    return None if entry.maintenance_id is None else (entry.maintenance_id, (sequence,))


def _place_without_maintenance(numbered: ChainedEntry) -> Place | None:
    sequence, entry = numbered[:2]
    is_loose = entry.maintenance_id is None and numbered[2] is Chain.EVENTS
    return (ALL, (entry.at, sequence)) if is_loose else None
