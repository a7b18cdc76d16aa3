"""Writing: what every store can be asked to change, and the steps that are the same for all stores.

A store changes rows by key or property; what a change set writes and in which order, which fields may change, what an
inventory replaces, and how much is forgotten in one step is decided here. See
`docs/adr/0036-one-decision-for-all-stores.md`.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from forewarn.core.access import Revocation, Token
from forewarn.core.audit_chain import Chain, ChainHead, append_entry
from forewarn.core.clock_jump import ClockJump
from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.alert_schedule import AlertCheck
from forewarn.core.maintenance.decision import ChangeSet
from forewarn.core.model import Audience, AuditEntry, Event, Host, Maintenance, Scope, VirtualMachine
from forewarn.core.subscription import Delivery, Subscription
from forewarn.errors import StoreUnavailable
from forewarn.store.reader import (
    APPLIED_VERSION,
    CLOCK_JUMP,
    HOST_PREFIX,
    INVENTORY,
    INVENTORY_VERSION,
    IdempotencyRecord,
    StoredRollout,
)
from forewarn.store.working_set_loader import WorkingSetLoader

__all__ = ["MUTABLE_FIELDS", "ChainedEntry", "PruneResult", "Transaction"]

Declared = TypeVar("Declared", Host, Scope, VirtualMachine)

ChainedEntry = tuple[int, AuditEntry, Chain, bytes]
"""An audit log entry with its number, its chain and its hash. An entry gets its number when read: most never are."""

MUTABLE_FIELDS: dict[type[Any], tuple[str, ...]] = {
    Maintenance: (
        "state",
        "not_before",
        "due_at",
        "started_at",
        "begun_at",
        "impacted_at",
        "ended_at",
        "attempts",
        "deferrals",
        "extensions",
        "extended",
        "announced_at",
        "moved_from",
        "moved_by",
    ),
    Event: ("is_listed", "approved_at", "approved_by"),
}
"""Fields that change after a value was made; all others never change."""

_NOUNS: dict[type[Any], str] = {Host: "host", Scope: "scope", VirtualMachine: "vm"}

_ENTRIES_PER_MAINTENANCE = 10
"""Number of entries of no maintenance, and of `Chain.AUDIT`, forgotten in place of one maintenance."""

_LONG_INVENTORY_VMS = 10_000
"""A transaction that writes more VMs than these takes seconds to compare them."""

_HOSTS_MARKED_MAX = 500
"""Maximum number of hosts whose VMs may change at once before the inventory counts as replaced."""


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


class Transaction(WorkingSetLoader):
    """One write transaction: when it ends, all of it is on disk, or none."""

    def now(self) -> datetime | None:
        """Return the time that all replicas of the database go by; None if no replicas share it."""
        return None

    @abstractmethod
    def next_sequence(self) -> int:
        """Return the next number of the store's counter. The number is free again if the transaction fails."""

    @property
    @abstractmethod
    def numbers(self) -> tuple[int, int] | None:
        """Counter before this transaction, and after it; None if it has taken no number."""

    def allow_long_pauses(self) -> None:
        """Keep the database from ending this transaction while it computes for seconds between two statements."""

    @abstractmethod
    def savepoint(self) -> AbstractContextManager[None]:
        """Return a block of which an exception undoes all changes, while those before it stay; then it goes on."""

    @abstractmethod
    def list_active_ids(self) -> list[str]:
        """Return the ids of all active maintenances."""

    @abstractmethod
    def check_writable(self) -> None:
        """Write as much as a command does, and delete it again: this fails if the disk or the file is full."""

    # Changes

    def save(self, changes: ChangeSet) -> None:
        """Write the changes of a decision."""
        self._upsert_rows(Audience, changes.audiences.values())
        self._mark_changed(document.audience.key for document in changes.documents)
        self._write_values(Maintenance, changes.maintenances, changes.created)
        self._write_values(Event, changes.events, changes.created)
        self._upsert_rows(Host, changes.hosts.values())
        self._upsert_rows(VirtualMachine, changes.vms.values())
        if changes.vms or changes.hosts:
            self._increment_inventory_version()
        self._index_claims(changes)
        chained: list[ChainedEntry] = []
        for entry in changes.entries:
            sequence = self.next_sequence()  # before the heads, which it may read
            chained.append((sequence, entry, *append_entry(self._get_heads(), sequence, entry)))
        self._insert_entries(chained)
        self.save_alert_checks(changes.alert_checks)

    def _write_values(self, kind: type[Any], values: Mapping[str, Any], created: Collection[str]) -> None:
        """Insert new values; of existing ones write only the fields that can change."""
        self._insert_rows(kind, [value for key, value in values.items() if key in created])
        self._update_rows(kind, [value for key, value in values.items() if key not in created])

    def _index_claims(self, changes: ChangeSet) -> None:
        """Index the claims of new maintenances, and release those of ended ones."""
        self._insert_claims([m for key, m in changes.maintenances.items() if key in changes.created])
        # A maintenance that was created and has ended in the same decision is inserted above as one that holds nothing.
        ended = (key for key, m in changes.maintenances.items() if not m.is_active and key not in changes.created)
        self._release_claims(ended)

    def _mark_changed(self, audiences: Iterable[str]) -> None:
        """Number a change. Writers run one after the other, so a larger number was committed later."""
        keys = list(audiences)
        if keys:
            self._upsert_marks(keys, self.next_sequence())

    @abstractmethod
    def extend_active_until(self, active_until: Mapping[str, datetime]) -> None:
        """Move ``active_until`` of enabled audiences forward; never back."""

    def save_alert_checks(self, checks: Mapping[str, AlertCheck | None]) -> None:
        """Store the next check of each maintenance; None removes it. `save` does so for the checks of its changes."""
        self._delete_rows(AlertCheck, (key for key, check in checks.items() if check is None))
        self._upsert_rows(AlertCheck, (check for check in checks.values() if check is not None))

    # Inventory

    def replace_inventory(self, inventory: Inventory, fingerprint: str | None, before: Inventory | None = None) -> None:
        """Make the declared state exactly this.

        Args:
            inventory: The new declaration.
            fingerprint: Fingerprint of the file that contained it; None if it did not come from a file.
            before: Part that is replaced, if only a part is declared anew; names on neither side stay unchanged. None:
                replace everything.
        """
        if len(inventory.vms) > _LONG_INVENTORY_VMS:
            self.allow_long_pauses()
        marks = [INVENTORY] if before is None else _list_changed_keys(before, inventory)
        before = self.get_inventory() if before is None else before
        self._replace_rows(Host, before.hosts, inventory.hosts)
        self._replace_rows(Scope, before.scopes, inventory.scopes)
        removed, added = self._replace_rows(VirtualMachine, before.vms, inventory.vms)
        self._replace_addresses(removed, added)
        self._increment_inventory_version()
        if fingerprint is not None:
            self._put_meta("inventory", fingerprint)
            self._put_meta(APPLIED_VERSION, str(self.get_inventory_version()))
        elif self.get_inventory_fingerprint() is None:
            self._put_meta("inventory", "")  # an inventory is declared now, though by no file
        self._mark_changed(marks)

    def _replace_rows(
        self, kind: type[Declared], before: Iterable[Declared], after: Iterable[Declared]
    ) -> tuple[list[Declared], list[Declared]]:
        """Write only the differences; return the values that were removed, and those added, both for a changed one."""
        after = list(after)
        old, new = {one.name: one for one in before}, {one.name: one for one in after}
        # The dictionary would silently drop one of two with the same name.
        if len(new) < len(after):
            raise StoreUnavailable(f"cannot store the inventory: it has a duplicate {_NOUNS[kind]}")
        changed = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
        removed = [one for name, one in old.items() if name in changed]
        added = [one for name, one in new.items() if name in changed]
        self._delete_rows(kind, (one.name for one in removed))
        self._insert_rows(kind, added)
        return removed, added

    def _increment_inventory_version(self) -> None:
        self._put_meta(INVENTORY_VERSION, str(self.get_inventory_version() + 1))

    # Single values

    def save_clock_kind(self, kind: str) -> None:
        """Store the kind of clock."""
        self._put_meta("clock", kind)

    def save_clock_jump(self, jump: ClockJump | None) -> None:
        """Store a clock jump until it is confirmed; None: it was confirmed."""
        content = None if jump is None else {"by_s": jump.by.total_seconds(), "at": jump.at.isoformat()}
        self._put_meta(CLOCK_JUMP, None if content is None else json.dumps(content))

    def save_rollout(self, rollout: StoredRollout) -> None:
        """Store a new or changed rollout."""
        self._upsert_rows(StoredRollout, [rollout])

    def save_idempotency_record(self, record: IdempotencyRecord) -> None:
        """Store the result of a command with an ``Idempotency-Key``."""
        self._insert_rows(IdempotencyRecord, [record])

    def save_subscription(self, subscription: Subscription) -> None:
        """Store a new or changed subscription.

        Raises:
            StoreUnavailable: Another one has its name.
        """
        self._upsert_rows(Subscription, [subscription])

    def delete_subscription(self, subscription_id: str) -> None:
        """Forget a subscription and its deliveries."""
        self._delete_deliveries_of(subscription_id)
        self._delete_rows(Subscription, [subscription_id])

    def save_deliveries(self, deliveries: Iterable[Delivery]) -> None:
        """Store new or changed deliveries."""
        self._upsert_rows(Delivery, deliveries)

    @abstractmethod
    def delete_deliveries(self, subscription_id: str, keys: Iterable[tuple[int, str]]) -> None:
        """Forget deliveries that got through."""

    def save_token(self, token: Token) -> None:
        """Store a new or changed token."""
        self._upsert_rows(Token, [token])

    def add_revocation(self, revocation: Revocation, now: datetime, actor_max: int) -> bool:
        """Store a revocation, and forget those that have expired.

        Args:
            revocation: The revocation.
            now: Present time.
            actor_max: Maximum number kept for one actor; beyond it, those that expire last are kept.

        Returns:
            True if it was not revoked before.
        """
        # One that expires now has expired; moments are whole microseconds.
        self._delete_rows_before(Revocation, "expires_at", now + timedelta.resolution)
        if self.is_revoked(revocation.nonce):
            return False
        self._insert_rows(Revocation, [revocation])
        self._delete_surplus_revocations(revocation.actor, actor_max)
        return True

    # Retention

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
        self._delete_rows_before(IdempotencyRecord, "at", outcomes_before)
        ids = self._list_ended_ids(ended_before, limit)
        entries = self._forget_maintenances(ids)
        # The rest waits until no maintenance is left to forget, so that no step takes long.
        if len(ids) < limit:
            self._delete_ended_tokens(ended_before)
            entries += self._forget_loose_entries(ended_before, _ENTRIES_PER_MAINTENANCE * limit)
            entries += self._forget_audit_entries(audit_before or ended_before, _ENTRIES_PER_MAINTENANCE * limit)
        self._delete_rows_before(Delivery, "at", ended_before)
        return PruneResult(maintenances=len(ids), entries=entries)

    # Primitives

    @abstractmethod
    def _get_heads(self) -> dict[Chain, ChainHead]:
        """Return the heads of the hash chains, to be changed in place; valid after `next_sequence`."""

    @abstractmethod
    def _insert_rows(self, kind: type[Any], values: Iterable[Any]) -> None:
        """Insert new values.

        Raises:
            StoreUnavailable: A key, or another unique field, is already in the store.
        """

    @abstractmethod
    def _upsert_rows(self, kind: type[Any], values: Iterable[Any]) -> None:
        """Insert values, or replace those with the same key."""

    @abstractmethod
    def _update_rows(self, kind: type[Any], values: Iterable[Any]) -> None:
        """Write the mutable fields of those values that exist."""

    @abstractmethod
    def _delete_rows(self, kind: type[Any], keys: Iterable[str]) -> None:
        """Delete the values with these keys, if they exist."""

    @abstractmethod
    def _delete_rows_before(self, kind: type[Any], field: str, moment: datetime) -> None:
        """Delete the values with a moment in that field that is before this one."""

    @abstractmethod
    def _put_meta(self, key: str, value: str | None) -> None:
        """Store a single value under that key; None: delete it."""

    @abstractmethod
    def _upsert_marks(self, keys: Iterable[str], sequence: int) -> None:
        """Give these keys of the change feed that number."""

    @abstractmethod
    def _insert_claims(self, maintenances: Iterable[Maintenance]) -> None:
        """Index the claims of new maintenances; those of active ones hold their VMs and scopes."""

    @abstractmethod
    def _release_claims(self, maintenance_ids: Iterable[str]) -> None:
        """Make the claims of maintenances that have ended hold nothing."""

    @abstractmethod
    def _insert_entries(self, entries: Iterable[ChainedEntry]) -> None:
        """Insert audit log entries."""

    @abstractmethod
    def _replace_addresses(self, removed: Iterable[VirtualMachine], added: Iterable[VirtualMachine]) -> None:
        """Delete the addresses of some VMs, then insert those of others: an address may move from one to another."""

    @abstractmethod
    def _delete_deliveries_of(self, subscription_id: str) -> None:
        """Delete the deliveries of a subscription."""

    @abstractmethod
    def _delete_surplus_revocations(self, actor: str, kept: int) -> None:
        """Delete revocations of one actor except the `kept` that expire last, or of equals have the largest nonce."""

    @abstractmethod
    def _delete_ended_tokens(self, before: datetime) -> None:
        """Delete tokens that were revoked or expired before that time."""

    @abstractmethod
    def _list_ended_ids(self, before: datetime, limit: int) -> list[str]:
        """Return the ids of at most `limit` maintenances that ended before that time, in the order of their ends."""

    @abstractmethod
    def _forget_maintenances(self, ids: Collection[str]) -> int:
        """Forget maintenances with all that is theirs; return the number of entries of `Chain.EVENTS` among that."""

    @abstractmethod
    def _forget_loose_entries(self, before: datetime, limit: int) -> int:
        """Forget at most `limit` entries of no maintenance in `Chain.EVENTS`, the oldest first; return how many."""

    @abstractmethod
    def _forget_audit_entries(self, before: datetime, limit: int) -> int:
        """Forget at most `limit` of the oldest entries of `Chain.AUDIT`, up to the first one not before that time."""


def _list_changed_keys(before: Inventory, after: Inventory) -> list[str]:
    """Return the keys for the differences between two inventories: those of hosts, or that of the whole inventory."""
    # A changed scope or host can affect VMs anywhere, so only changes to VMs alone are marked by host.
    hosts = {vm.host for side in (before, after) for vm in side.vms}
    is_small = before.scopes == after.scopes and before.hosts == after.hosts and len(hosts) <= _HOSTS_MARKED_MAX
    return [HOST_PREFIX + host for host in sorted(hosts)] if is_small else [INVENTORY]
