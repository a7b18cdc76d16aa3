"""The writing half of the in-memory store: the primitives of `forewarn.store.transaction` in dictionaries."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime
from itertools import islice, takewhile
from operator import attrgetter
from typing import Any, TypeVar

from forewarn.core.access import Revocation, Token
from forewarn.core.audit_chain import Chain, ChainHead, ChainLink
from forewarn.core.fast_replace import replace
from forewarn.core.maintenance.alert_schedule import AlertCheck
from forewarn.core.model import ACTIVE_STATES, Event, Maintenance, MaintenanceState, VirtualMachine
from forewarn.core.policy import NO_POLICY
from forewarn.core.subscription import Delivery, Subscription
from forewarn.store.memory_reader import MemoryReader, copy_as_json, find_by_key
from forewarn.store.memory_tables import ALL, Tables
from forewarn.store.reader import KEY_FIELDS, IdempotencyRecord
from forewarn.store.transaction import MUTABLE_FIELDS, ChainedEntry, Transaction

__all__ = ["MemoryTransaction"]

T = TypeVar("T", Maintenance, Event)

_STANDING = {
    kind: attrgetter(*(f.name for f in fields(kind) if f.name not in names)) for kind, names in MUTABLE_FIELDS.items()
}
_GET_KEY = {kind: attrgetter(name) for kind, name in KEY_FIELDS.items()} | {
    Delivery: attrgetter("subscription_id", "sequence", "subject")
}


class MemoryTransaction(MemoryReader, Transaction):
    """Reads and writes in dictionaries."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        # Copies, which `flush` writes back: the undo log covers only the tables.
        self._counter = self._before = tables.counter
        self._heads = dict(tables.heads)

    # The counter

    def next_sequence(self) -> int:
        self._counter += 1
        return self._counter

    @property
    def numbers(self) -> tuple[int, int] | None:
        return None if self._counter == self._before else (self._before, self._counter)

    def flush(self) -> None:
        """Write the counter and the heads of the hash chains back; the store calls it before the commit."""
        self._tables.counter = self._counter
        self._tables.heads = self._heads

    def _get_heads(self) -> dict[Chain, ChainHead]:
        return self._heads

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        mark, counter, heads = self._tables.change_count, self._counter, dict(self._heads)
        try:
            yield
        except BaseException:
            self._tables.roll_back(mark)
            self._counter, self._heads = counter, heads
            raise

    # Loading a working set

    def list_active_ids(self) -> list[str]:
        index = self._tables.maintenances_by_state
        return [key for state in MaintenanceState if state in ACTIVE_STATES for _, key in index.get_group(state)]

    def _find_vms_with_policy(self, names: Iterable[str]) -> list[VirtualMachine]:
        found = find_by_key(self._tables.vms, names).values()
        return [vm for vm in found if vm.scope is not None or vm.policy != NO_POLICY]

    def _find_listed(self, audiences: Iterable[str]) -> dict[str, str]:
        return {event.id: event.maintenance_id for event in self._list_listed_events(audiences)}

    def _count_unapproved(self, maintenance_ids: Iterable[str]) -> dict[str, int]:
        found = self.find_events_of(maintenance_ids)
        return {i: sum(e.is_listed and not e.is_approved for e in events) for i, events in found.items()}

    # Rows

    def _insert_rows(self, kind: type[Any], values: Iterable[Any]) -> None:
        table, get_key, by_sequence = self._tables.by_kind[kind], _GET_KEY[kind], self._tables.by_sequence.get(kind)
        for value in values:
            if by_sequence is not None and by_sequence.has_start(ALL, value.sequence):
                table.refuse_duplicate(value.id)
            table.add(get_key(value), value)

    def _upsert_rows(self, kind: type[Any], values: Iterable[Any]) -> None:
        table, get_key = self._tables.by_kind[kind], _GET_KEY[kind]
        for value in values:
            table.put(get_key(value), value)

    def _update_rows(self, kind: type[Any], values: Iterable[Any]) -> None:
        table = self._tables.by_kind[kind]
        for value in values:
            stored = table.rows.get(value.id)
            if stored is not None:
                table.put(value.id, _merge_changed(stored, value))

    def _delete_rows(self, kind: type[Any], keys: Iterable[str]) -> None:
        for key in keys:
            self._tables.by_kind[kind].put(key, None)

    def _delete_rows_before(self, kind: type[Any], field: str, moment: datetime) -> None:
        table, get_moment = self._tables.by_kind[kind], attrgetter(field)
        old = [key for key, value in table.rows.items() if (at := get_moment(value)) is not None and at < moment]
        for key in old:
            table.put(key, None)

    def _put_meta(self, key: str, value: str | None) -> None:
        self._tables.meta.put(key, value)

    # Saving

    def _upsert_marks(self, keys: Iterable[str], sequence: int) -> None:
        for key in keys:
            self._tables.feed.put(key, (sequence, key))

    def _insert_claims(self, maintenances: Iterable[Maintenance]) -> None:
        table = self._tables.claims
        for maintenance in maintenances:
            # In SQL, the primary key of the claims refuses a second claim for a VM.
            if len(set(maintenance.vms)) < len(maintenance.claims):
                table.refuse_duplicate(maintenance.id)
            if maintenance.is_active:
                table.add(maintenance.id, maintenance)

    def _release_claims(self, maintenance_ids: Iterable[str]) -> None:
        for key in maintenance_ids:
            self._tables.claims.put(key, None)

    def _insert_entries(self, entries: Iterable[ChainedEntry]) -> None:
        for entry in entries:
            self._tables.audit_log.put(entry[0], entry)

    def _replace_addresses(self, removed: Iterable[VirtualMachine], added: Iterable[VirtualMachine]) -> None:
        for address in [a for vm in removed for a in vm.addresses]:
            self._tables.addresses.put(address, None)
        for vm in added:
            for address in vm.addresses:
                self._tables.addresses.add(address, vm.name)

    def extend_active_until(self, active_until: Mapping[str, datetime]) -> None:
        for key, moment in active_until.items():
            audience = self._tables.audiences.rows.get(key)
            if audience is not None and audience.active_until is not None and audience.active_until < moment:
                self._tables.audiences.put(key, replace(audience, active_until=moment))

    def check_writable(self) -> None:
        pass

    def save_token(self, token: Token) -> None:
        other = self.get_token_by_digest(token.digest)
        if other is not None and other.id != token.id:
            self._tables.tokens.refuse_duplicate(token.id)
        super().save_token(token)

    def save_subscription(self, subscription: Subscription) -> None:
        table = self._tables.subscriptions
        if any(each.name == subscription.name and each.id != subscription.id for each in table.rows.values()):
            table.refuse_duplicate(subscription.id)
        super().save_subscription(subscription)

    def delete_deliveries(self, subscription_id: str, keys: Iterable[tuple[int, str]]) -> None:
        for key in keys:
            self._tables.deliveries.put((subscription_id, *key), None)

    def _delete_deliveries_of(self, subscription_id: str) -> None:
        for key in [key for key in self._tables.deliveries.rows if key[0] == subscription_id]:
            self._tables.deliveries.put(key, None)

    def _delete_surplus_revocations(self, actor: str, kept: int) -> None:
        own = [each for each in self._tables.revocations.rows.values() if each.actor == actor]
        own.sort(key=attrgetter("expires_at", "nonce"), reverse=True)
        self._delete_rows(Revocation, [each.nonce for each in own[kept:]])

    def save_idempotency_record(self, record: IdempotencyRecord) -> None:
        super().save_idempotency_record(replace(record, outcome=copy_as_json(record.outcome)))

    # Retention

    def _delete_ended_tokens(self, before: datetime) -> None:
        for field in ("revoked_at", "expires_at"):
            self._delete_rows_before(Token, field, before)

    def _list_ended_ids(self, before: datetime, limit: int) -> list[str]:
        return [place[-1] for place in self._tables.maintenances_by_ended_at.copy_before(ALL, before)[:limit]]

    def _forget_maintenances(self, ids: Collection[str]) -> int:
        tables = self._tables
        self._delete_rows(Event, [key for i in ids for _, key in tables.events_by_maintenance.get_group(i)])
        self._delete_rows(AlertCheck, ids)
        self._delete_rows(Maintenance, ids)
        numbers = [number for i in ids for (number,) in tables.entries_by_maintenance.get_group(i)]
        return self._forget_entries(n for n in numbers if tables.audit_log.rows[n][2] is Chain.EVENTS)

    def _forget_loose_entries(self, before: datetime, limit: int) -> int:
        old = self._tables.entries_of_no_maintenance.copy_before(ALL, before)
        return self._forget_entries(number for _, number in old[:limit])

    def _forget_audit_entries(self, before: datetime, limit: int) -> int:
        rows = self._tables.audit_log.rows
        numbers = (number for (number,) in self._tables.entries_by_chain.get_group(Chain.AUDIT))
        return self._forget_entries(islice(takewhile(lambda number: rows[number][1].at < before, numbers), limit))

    def _forget_entries(self, numbers: Iterable[int]) -> int:
        found = sorted(numbers)
        for number in found:
            self._forget_entry(number)
        return len(found)

    def _forget_entry(self, number: int) -> None:
        """Forget one entry, noting only the last of each run of forgotten entries: the chain continues there."""
        tables = self._tables
        _, _, chain, digest = tables.audit_log.rows[number]
        tables.audit_log.put(number, None)
        noted, kept = tables.forgotten_by_chain.get_group(chain), tables.entries_by_chain.get_group(chain)
        before, after = bisect_left(noted, (number,)), bisect_left(kept, (number,))
        previous = noted[before - 1][0] if before else None
        following = noted[before][0] if before < len(noted) else None
        # With no kept entry in between, the previous link is of the same run, and this entry is now its last.
        if previous is not None and (after == 0 or kept[after - 1][0] < previous):
            tables.forgotten_links.put((chain, previous), None)
        # Otherwise the run goes on to the following link, which is its last.
        if following is None or (after < len(kept) and kept[after][0] < following):
            tables.forgotten_links.add(
                (chain, number), ChainLink(sequence=number, chain=chain, hash=digest, entry=None)
            )


def _merge_changed(stored: T, value: T) -> T:
    kind = type(value)
    if _STANDING[kind](stored) == _STANDING[kind](value):  # nearly always, and faster than making a new one
        return value
    return replace(stored, **{name: getattr(value, name) for name in MUTABLE_FIELDS[kind]})
