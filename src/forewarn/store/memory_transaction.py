"""The writing half of the in-memory store: loading the working set of a decision, and saving its changes.

It follows `forewarn.store.sql_transaction` step by step. Both must load the same working set.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from datetime import datetime
from itertools import islice, takewhile
from operator import attrgetter
from typing import Any, TypeVar

from forewarn.core.access import Revocation, Token
from forewarn.core.audit_chain import Chain, ChainHead, ChainLink, choose_chain, hash_entry
from forewarn.core.clock_jump import ClockJump
from forewarn.core.decision import ChangeSet, WorkingSet
from forewarn.core.fast_replace import replace
from forewarn.core.inventory import Inventory
from forewarn.core.model import (
    ACTIVE_STATES,
    Event,
    EventType,
    Maintenance,
    MaintenanceState,
    VirtualMachine,
    audience_key,
    split_audience_keys,
)
from forewarn.core.policy import NO_POLICY
from forewarn.store.clock_jump import CLOCK_JUMP, encode_jump
from forewarn.store.contract import INVENTORY, IdempotencyRecord, PruneResult, StoredRollout, list_changed_keys
from forewarn.store.memory_notifying import MemoryNotifyingTransaction
from forewarn.store.memory_reader import MemoryReader, copy_as_json, find_by_key
from forewarn.store.memory_tables import ALL, Index, Table, Tables

__all__ = ["MUTABLE", "MemoryTransaction"]

T = TypeVar("T", Maintenance, Event)

MUTABLE: dict[type[Any], tuple[str, ...]] = {
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
"""Fields that change after a value was made; all others never change. A test compares them with the SQL store's."""

_STANDING = {
    kind: attrgetter(*(f.name for f in fields(kind) if f.name not in mutable)) for kind, mutable in MUTABLE.items()
}


class MemoryTransaction(MemoryReader, MemoryNotifyingTransaction):
    """Reads and writes in dictionaries; see `forewarn.store.contract.Transaction` for the duties."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        # Copies, which `flush` writes back: the undo log covers only the tables.
        self._counter = tables.counter
        self._heads = dict(tables.heads)

    # The counter

    def next_sequence(self) -> int:
        self._counter += 1
        return self._counter

    def flush(self) -> None:
        """Write the counter and the heads of the hash chains back; the store calls it before the commit."""
        self._tables.counter = self._counter
        self._tables.heads = self._heads

    def now(self) -> datetime | None:
        return None

    # Loading a working set

    def load_targets(self, hosts: Iterable[str], vms: Iterable[str]) -> WorkingSet:
        hosts, vms = sorted(set(hosts)), list(vms)
        state = WorkingSet(hosts=self.find_hosts(hosts))
        found = [vm for host in hosts for vm in self.list_vms(host=host)]
        found += find_by_key(self._tables.vms, vms).values()
        self._add_vms(state, found)
        holders = self._find_holders([vm.name for vm in found], [vm.scope for vm in found if vm.scope is not None])
        self._add_maintenances(state, holders)
        self._complete_state(state)
        return state

    def list_active_ids(self) -> list[str]:
        return [key for state in MaintenanceState if state in ACTIVE_STATES for key in self._list_ids_in_state(state)]

    def _list_ids_in_state(self, state: MaintenanceState) -> list[str]:
        return [key for _, key in self._tables.maintenances_by_state.get_group(state)]

    def load_maintenances(
        self, ids: Iterable[str], *, with_neighbours: bool = False, into: WorkingSet | None = None
    ) -> WorkingSet:
        state = WorkingSet() if into is None else into
        ids = set(ids)
        self._add_maintenances(state, ids)
        state.focus |= ids & state.maintenances.keys()
        self._add_neighbours(state)
        if with_neighbours:
            state.focus |= {m.id for m in state.maintenances.values() if m.is_active}
            self._add_neighbours(state)
        self._complete_state(state)
        return state

    def load_events(self, ids: Iterable[str]) -> WorkingSet:
        events = find_by_key(self._tables.events, ids)
        state = WorkingSet()
        self._add_maintenances(state, {e.maintenance_id for e in events.values()})
        # If a scope couples its deletes, one approval may start the others too (R92).
        has_deletes = any(m.type is EventType.TERMINATE and m.is_active for m in state.maintenances.values())
        state = self.load_maintenances(list(state.maintenances), with_neighbours=has_deletes, into=state)
        state.events.update(events)
        return state

    def load_audiences(self, keys: Iterable[str], *, with_waiting: bool = False) -> WorkingSet:
        keys = list(keys)
        events = self._tables.events.rows
        waiting = self._find_waiting_ids(keys) if with_waiting else set()
        state = self.load_maintenances({events[i].maintenance_id for i in self._find_listed_ids(keys)} | waiting)
        state.audiences.update(self.find_audiences(keys))
        self._complete_state(state, waiting)
        return state

    def _find_waiting_ids(self, keys: Iterable[str]) -> set[str]:
        """Return the ids of the scheduled maintenances that hold a VM of those audiences."""
        vms, scopes = split_audience_keys(keys)
        found = find_by_key(self._tables.maintenances, self._find_holders(vms, scopes))
        return {key for key, one in found.items() if one.state is MaintenanceState.SCHEDULED}

    def _add_maintenances(self, state: WorkingSet, ids: Iterable[str]) -> None:
        missing = [i for i in ids if i not in state.maintenances]
        if missing:
            state.maintenances.update(find_by_key(self._tables.maintenances, missing))

    def _add_neighbours(self, state: WorkingSet) -> None:
        focus = [state.maintenances[i] for i in state.focus if state.maintenances[i].is_active]
        claims = [claim for m in focus for claim in m.claims]
        self._add_maintenances(state, self._find_holders([c.vm for c in claims], [c.scope for c in claims if c.scope]))

    def _find_holders(self, vms: Iterable[str], scopes: Iterable[str]) -> set[str]:
        """Return the ids of the active maintenances that hold one of those VMs or scopes."""
        holders = self._tables.holders
        return {
            i
            for kind, names in (("vm", vms), ("scope", scopes))
            for name in set(names)
            for i in holders.get_ids(kind, name)
        }

    def _complete_state(self, state: WorkingSet, waiting: Collection[str] = ()) -> None:
        """Add what a decision about the focus may touch: events, VMs, scopes, audiences with their documents."""
        for events in self.find_events_of(m.id for m in state.maintenances.values() if m.is_active).values():
            state.events.update((e.id, e) for e in events)
        needed = _find_needed_vms(state, waiting)
        lone = find_by_key(self._tables.vms, _find_lone_vms(state) - needed).values()
        found = [vm for vm in lone if vm.scope is not None or vm.policy != NO_POLICY]
        self._add_vms(state, [*find_by_key(self._tables.vms, needed).values(), *found])
        vm_audiences = {audience_key(vm, state.scopes.get(vm.scope or "")) for vm in state.vms.values()}
        keys = vm_audiences | {e.audience for e in state.events.values()} | set(state.audiences)
        state.audiences.update(self.find_audiences(keys - set(state.audiences)))
        others = self._find_listed_ids(state.audiences) - state.events.keys()
        listed = find_by_key(self._tables.events, others)
        state.events.update(listed)
        self._add_maintenances(state, {e.maintenance_id for e in listed.values()})

    def _add_vms(self, state: WorkingSet, vms: Iterable[VirtualMachine]) -> None:
        state.vms.update((vm.name, vm) for vm in vms)
        names = {vm.scope for vm in state.vms.values() if vm.scope is not None}
        names |= {c.scope for i in state.focus for c in state.maintenances[i].claims if c.scope is not None}
        state.scopes.update(self.find_scopes(names - set(state.scopes)))

    def _find_listed_ids(self, audiences: Iterable[str]) -> set[str]:
        return {key for audience in audiences for _, key in self._tables.events_by_audience.get_group(audience)}

    # Saving

    def save(self, changes: ChangeSet) -> None:
        tables = self._tables
        for audience in changes.audiences.values():
            tables.audiences.put(audience.key, audience)
        self._mark_changed(document.audience.key for document in changes.documents)
        _put_values(tables.maintenances, tables.maintenances_by_sequence, changes.maintenances, changes.created)
        _put_values(tables.events, tables.events_by_sequence, changes.events, changes.created)
        for host in changes.hosts.values():
            tables.hosts.put(host.name, host)
        for vm in changes.vms.values():
            tables.vms.put(vm.name, vm)
        if changes.vms or changes.hosts:
            self._increment_inventory_version()
        self._save_claims(changes)
        for entry in changes.entries:
            sequence, chain = self.next_sequence(), choose_chain(entry)
            digest = hash_entry(self._heads[chain].hash, chain, sequence, entry)
            self._heads[chain] = ChainHead(sequence=sequence, hash=digest)
            tables.audit_log.put(sequence, (sequence, entry, chain, digest))
        self.save_alert_checks(changes.alert_checks)

    def _mark_changed(self, audiences: Iterable[str]) -> None:
        keys = list(audiences)
        if keys:
            sequence = self.next_sequence()
            for key in keys:
                self._tables.feed.put(key, (sequence, key))

    def _save_claims(self, changes: ChangeSet) -> None:
        """Keep claims from the creation of a maintenance to its end."""
        table = self._tables.claims
        for key, maintenance in changes.maintenances.items():
            if not maintenance.is_active:
                if key in table.rows:
                    table.put(key, None)
            elif key in changes.created:
                # In SQL, the primary key of the claims refuses a second claim for a VM.
                if len(set(maintenance.vms)) < len(maintenance.claims):
                    table.refuse_duplicate(key)
                table.add(key, maintenance)

    def extend_active_until(self, active_until: Mapping[str, datetime]) -> None:
        for key, moment in active_until.items():
            audience = self._tables.audiences.rows.get(key)
            if audience is not None and audience.active_until is not None and audience.active_until < moment:
                self._tables.audiences.put(key, replace(audience, active_until=moment))

    def replace_inventory(self, inventory: Inventory, fingerprint: str, before: Inventory | None = None) -> None:
        if before is None:
            self._replace_all(inventory)
        else:
            self._replace_some(before, inventory)
        self._tables.meta.put("inventory", fingerprint)
        self._increment_inventory_version()
        self._mark_changed([INVENTORY] if before is None else list_changed_keys(before, inventory))

    def _replace_all(self, inventory: Inventory) -> None:
        tables = self._tables
        tables.hosts.replace_all((h.name, h) for h in inventory.hosts)
        tables.scopes.replace_all((s.name, s) for s in inventory.scopes)
        tables.vms.replace_all((vm.name, vm) for vm in inventory.vms)
        tables.addresses.replace_all((address, vm.name) for vm in inventory.vms for address in vm.addresses)

    def _replace_some(self, before: Inventory, after: Inventory) -> None:
        # Delete before inserting: an address may have moved from one VM to another.
        tables = self._tables
        for host in before.hosts:
            tables.hosts.put(host.name, None)
        for scope in before.scopes:
            tables.scopes.put(scope.name, None)
        for vm in before.vms:
            tables.vms.put(vm.name, None)
            for address in vm.addresses:
                tables.addresses.put(address, None)
        for host in after.hosts:
            tables.hosts.put(host.name, host)
        for scope in after.scopes:
            tables.scopes.put(scope.name, scope)
        for vm in after.vms:
            tables.vms.put(vm.name, vm)
            for address in vm.addresses:
                tables.addresses.put(address, vm.name)

    def _increment_inventory_version(self) -> None:
        self._tables.meta.put("inventory_version", str(self.get_inventory_version() + 1))

    def save_clock_kind(self, kind: str) -> None:
        self._tables.meta.put("clock", kind)

    def save_clock_jump(self, jump: ClockJump | None) -> None:
        self._tables.meta.put(CLOCK_JUMP, None if jump is None else encode_jump(jump))

    def check_writable(self) -> None:
        pass

    def save_token(self, token: Token) -> None:
        other = self.get_token_by_digest(token.digest)
        if other is not None and other.id != token.id:
            self._tables.tokens.refuse_duplicate(token.id)
        self._tables.tokens.put(token.id, token)

    def add_revocation(self, revocation: Revocation, now: datetime, actor_max: int) -> bool:
        table = self._tables.revocations
        for nonce in [each.nonce for each in table.rows.values() if each.expires_at <= now]:
            table.put(nonce, None)
        if revocation.nonce in table.rows:
            return False
        table.put(revocation.nonce, revocation)
        own = [each for each in table.rows.values() if each.actor == revocation.actor]
        own.sort(key=lambda each: (each.expires_at, each.nonce), reverse=True)
        for surplus in own[actor_max:]:
            table.put(surplus.nonce, None)
        return True

    def save_rollout(self, rollout: StoredRollout) -> None:
        self._tables.rollouts.put(rollout.id, rollout)

    def save_idempotency_record(self, outcome: IdempotencyRecord) -> None:
        self._tables.idempotency_records.add(outcome.key, replace(outcome, content=copy_as_json(outcome.content)))

    def prune_history(
        self, ended_before: datetime, outcomes_before: datetime, limit: int, audit_before: datetime | None = None
    ) -> PruneResult:
        tables = self._tables
        audit: list[int] = []
        for _, key in tables.idempotency_records_by_at.copy_before(ALL, outcomes_before):
            tables.idempotency_records.put(key, None)
        old = [place[-1] for place in tables.maintenances_by_ended_at.copy_before(ALL, ended_before)[:limit]]
        numbers: list[int] = []
        for maintenance_id in old:
            for _, key in list(tables.events_by_maintenance.get_group(maintenance_id)):
                tables.events.put(key, None)
            of_it = [number for (number,) in tables.entries_by_maintenance.get_group(maintenance_id)]
            numbers += [number for number in of_it if tables.audit_log.rows[number][2] is Chain.EVENTS]
            tables.alert_checks.put(maintenance_id, None)
            tables.maintenances.put(maintenance_id, None)
        if len(old) < limit:
            for token in [each for each in tables.tokens.rows.values() if _ended_before(each, ended_before)]:
                tables.tokens.put(token.id, None)
            numbers += [
                number for _, number in tables.entries_of_no_maintenance.copy_before(ALL, ended_before)[: 10 * limit]
            ]
            audit = self._find_old_audit_entries(audit_before or ended_before, 10 * limit)
        for number in sorted(numbers) + audit:
            self._forget_entry(number)
        for key in [key for key, delivery in tables.deliveries.rows.items() if delivery.at < ended_before]:
            tables.deliveries.put(key, None)
        return PruneResult(maintenances=len(old), entries=len(numbers) + len(audit))

    def _find_old_audit_entries(self, before: datetime, limit: int) -> list[int]:
        rows = self._tables.audit_log.rows
        numbers = (number for (number,) in self._tables.entries_by_chain.get_group(Chain.AUDIT))
        return list(islice(takewhile(lambda number: rows[number][1].at < before, numbers), limit))

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


def _put_values(table: Table[T], by_sequence: Index[T], values: Mapping[str, T], created: set[str]) -> None:
    """Add new values; for existing ones copy only the fields that can change."""
    for key, value in values.items():
        stored = table.rows.get(key)
        if key in created:
            if by_sequence.has_start(ALL, value.sequence):
                table.refuse_duplicate(key)
            table.add(key, value)
        elif stored is not None:
            table.put(key, _merge_changed(stored, value))


def _ended_before(token: Token, moment: datetime) -> bool:
    return any(end is not None and end < moment for end in (token.revoked_at, token.expires_at))


def _merge_changed(stored: T, value: T) -> T:
    kind = type(value)
    if _STANDING[kind](stored) == _STANDING[kind](value):  # nearly always, and faster than making a new one
        return value
    return replace(stored, **{name: getattr(value, name) for name in MUTABLE[kind]})


def _find_lone_vms(state: WorkingSet) -> set[str]:
    """Return the VMs without a scope that a scheduled maintenance in focus holds: each has its own policy."""
    scheduled = (m for i in state.focus if (m := state.maintenances[i]).state is MaintenanceState.SCHEDULED)
    return {claim.vm for m in scheduled for claim in m.claims if claim.scope is None} - state.vms.keys()


def _find_needed_vms(state: WorkingSet, waiting: Collection[str] = ()) -> set[str]:
    """Return the VMs of maintenances that may still be announced, or that remove VMs when they end."""
    needed = {name for i in waiting for name in state.maintenances[i].vms}
    for i in state.focus:
        maintenance = state.maintenances[i]
        is_queued = maintenance.state is MaintenanceState.QUEUED
        if is_queued or (maintenance.is_active and maintenance.type in {EventType.PREEMPT, EventType.TERMINATE}):
            needed.update(maintenance.vms)
    return needed - set(state.vms)
