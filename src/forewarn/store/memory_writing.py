"""The writing half of the in-memory store: loading the working set of a decision, and saving its changes.

It follows `forewarn.store.writing` step by step. Both must load the same working set.
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
from forewarn.core.chain import Chain, Head, Link, chain_of, link
from forewarn.core.clock_jump import Jump
from forewarn.core.decision import Changes, State
from forewarn.core.inventory import Inventory
from forewarn.core.model import (
    ACTIVE_STATES,
    Event,
    EventType,
    Maintenance,
    MaintenanceState,
    VirtualMachine,
    audience_key,
    names_of,
)
from forewarn.core.policy import NO_POLICY
from forewarn.core.value import replace
from forewarn.store.contract import INVENTORY, Forgotten, Outcome, StoredRollout, marks_of
from forewarn.store.jump import CLOCK_JUMP, encode_jump
from forewarn.store.memory_notifying import MemoryNotifyingTransaction
from forewarn.store.memory_reading import MemoryReader, as_json, of_keys
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

    def load_request(self, hosts: Iterable[str], vms: Iterable[str]) -> State:
        hosts, vms = sorted(set(hosts)), list(vms)
        state = State(hosts=self.hosts(hosts))
        found = [vm for host in hosts for vm in self.vms(host=host)]
        found += of_keys(self._tables.vms, vms).values()
        self._add_vms(state, found)
        holders = self._holders([vm.name for vm in found], [vm.scope for vm in found if vm.scope is not None])
        self._add_maintenances(state, holders)
        self._complete(state)
        return state

    def active_ids(self) -> list[str]:
        return [key for state in MaintenanceState if state in ACTIVE_STATES for key in self._in_state(state)]

    def _in_state(self, state: MaintenanceState) -> list[str]:
        return [key for _, key in self._tables.by_state.group(state)]

    def load_maintenances(
        self, ids: Iterable[str], *, with_neighbours: bool = False, into: State | None = None
    ) -> State:
        state = State() if into is None else into
        ids = set(ids)
        self._add_maintenances(state, ids)
        state.focus |= ids & state.maintenances.keys()
        self._add_neighbours(state)
        if with_neighbours:
            state.focus |= {m.id for m in state.maintenances.values() if m.is_active}
            self._add_neighbours(state)
        self._complete(state)
        return state

    def load_events(self, ids: Iterable[str]) -> State:
        events = of_keys(self._tables.events, ids)
        state = State()
        self._add_maintenances(state, {e.maintenance_id for e in events.values()})
        has_deletes = any(m.type is EventType.TERMINATE and m.is_active for m in state.maintenances.values())
        state = self.load_maintenances(list(state.maintenances), with_neighbours=has_deletes, into=state)
        state.events.update(events)
        return state

    def load_audiences(self, keys: Iterable[str], *, with_waiting: bool = False) -> State:
        keys = list(keys)
        events = self._tables.events.rows
        waiting = self._waiting(keys) if with_waiting else set()
        state = self.load_maintenances({events[i].maintenance_id for i in self._listed_ids(keys)} | waiting)
        state.audiences.update(self.audiences(keys))
        self._complete(state, waiting)
        return state

    def _waiting(self, keys: Iterable[str]) -> set[str]:
        """Return the ids of the scheduled maintenances that hold a VM of those audiences."""
        vms, scopes = names_of(keys)
        found = of_keys(self._tables.maintenances, self._holders(vms, scopes))
        return {key for key, one in found.items() if one.state is MaintenanceState.SCHEDULED}

    def _add_maintenances(self, state: State, ids: Iterable[str]) -> None:
        missing = [i for i in ids if i not in state.maintenances]
        if missing:
            state.maintenances.update(of_keys(self._tables.maintenances, missing))

    def _add_neighbours(self, state: State) -> None:
        focus = [state.maintenances[i] for i in state.focus if state.maintenances[i].is_active]
        claims = [claim for m in focus for claim in m.claims]
        self._add_maintenances(state, self._holders([c.vm for c in claims], [c.scope for c in claims if c.scope]))

    def _holders(self, vms: Iterable[str], scopes: Iterable[str]) -> set[str]:
        """Return the ids of the active maintenances that hold one of those VMs or scopes."""
        holders = self._tables.holders
        return {
            i for kind, names in (("vm", vms), ("scope", scopes)) for name in set(names) for i in holders.of(kind, name)
        }

    def _complete(self, state: State, waiting: Collection[str] = ()) -> None:
        """Add what a decision about the focus may touch: events, VMs, scopes, audiences with their documents."""
        for events in self.events_of(m.id for m in state.maintenances.values() if m.is_active).values():
            state.events.update((e.id, e) for e in events)
        needed = _vms_needed(state, waiting)
        lone = of_keys(self._tables.vms, _lone_vms(state) - needed).values()
        found = [vm for vm in lone if vm.scope is not None or vm.policy != NO_POLICY]
        self._add_vms(state, [*of_keys(self._tables.vms, needed).values(), *found])
        vm_audiences = {audience_key(vm, state.scopes.get(vm.scope or "")) for vm in state.vms.values()}
        keys = vm_audiences | {e.audience for e in state.events.values()} | set(state.audiences)
        state.audiences.update(self.audiences(keys - set(state.audiences)))
        others = self._listed_ids(state.audiences) - state.events.keys()
        listed = of_keys(self._tables.events, others)
        state.events.update(listed)
        self._add_maintenances(state, {e.maintenance_id for e in listed.values()})

    def _add_vms(self, state: State, vms: Iterable[VirtualMachine]) -> None:
        state.vms.update((vm.name, vm) for vm in vms)
        names = {vm.scope for vm in state.vms.values() if vm.scope is not None}
        names |= {c.scope for i in state.focus for c in state.maintenances[i].claims if c.scope is not None}
        state.scopes.update(self.scopes(names - set(state.scopes)))

    def _listed_ids(self, audiences: Iterable[str]) -> set[str]:
        return {key for audience in audiences for _, key in self._tables.listed.group(audience)}

    # Saving

    def save(self, changes: Changes) -> None:
        tables = self._tables
        for audience in changes.audiences.values():
            tables.audiences.put(audience.key, audience)
        self._mark(document.audience.key for document in changes.documents)
        _put(tables.maintenances, tables.by_sequence, changes.maintenances, changes.created)
        _put(tables.events, tables.events_by_sequence, changes.events, changes.created)
        for host in changes.hosts.values():
            tables.hosts.put(host.name, host)
        for vm in changes.vms.values():
            tables.vms.put(vm.name, vm)
        if changes.vms or changes.hosts:
            self._renew_inventory_version()
        self._keep_claims(changes)
        for entry in changes.entries:
            sequence, chain = self.next_sequence(), chain_of(entry)
            digest = link(self._heads[chain].hash, chain, sequence, entry)
            self._heads[chain] = Head(sequence=sequence, hash=digest)
            tables.audit_log.put(sequence, (sequence, entry, chain, digest))
        self.keep_looks(changes.looks)

    def _mark(self, audiences: Iterable[str]) -> None:
        keys = list(audiences)
        if keys:
            sequence = self.next_sequence()
            for key in keys:
                self._tables.feed.put(key, (sequence, key))

    def _keep_claims(self, changes: Changes) -> None:
        """Keep claims from the creation of a maintenance to its end."""
        table = self._tables.claims
        for key, maintenance in changes.maintenances.items():
            if not maintenance.is_active:
                if key in table.rows:
                    table.put(key, None)
            elif key in changes.created:
                if len(set(maintenance.vms)) < len(maintenance.claims):
                    table.refuse(key)
                table.add(key, maintenance)

    def touch(self, active_until: Mapping[str, datetime]) -> None:
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
        self._renew_inventory_version()
        self._mark([INVENTORY] if before is None else marks_of(before, inventory))

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

    def _renew_inventory_version(self) -> None:
        self._tables.meta.put("inventory_version", str(self.inventory_version() + 1))

    def keep_clock(self, kind: str) -> None:
        self._tables.meta.put("clock", kind)

    def keep_clock_jump(self, jump: Jump | None) -> None:
        self._tables.meta.put(CLOCK_JUMP, None if jump is None else encode_jump(jump))

    def probe(self) -> None:
        pass

    def keep_token(self, token: Token) -> None:
        other = self.token(token.digest)
        if other is not None and other.id != token.id:
            self._tables.tokens.refuse(token.id)
        self._tables.tokens.put(token.id, token)

    def revoke(self, revocation: Revocation, now: datetime, actor_max: int) -> bool:
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

    def keep_rollout(self, rollout: StoredRollout) -> None:
        self._tables.rollouts.put(rollout.id, rollout)

    def keep_outcome(self, outcome: Outcome) -> None:
        self._tables.outcomes.add(outcome.key, replace(outcome, content=as_json(outcome.content)))

    def prune(
        self, ended_before: datetime, outcomes_before: datetime, limit: int, audit_before: datetime | None = None
    ) -> Forgotten:
        tables = self._tables
        audit: list[int] = []
        for _, key in tables.outcomes_by_at.before(ALL, outcomes_before):
            tables.outcomes.put(key, None)
        old = [place[-1] for place in tables.ended.before(ALL, ended_before)[:limit]]
        numbers: list[int] = []
        for maintenance_id in old:
            for _, key in list(tables.events_of.group(maintenance_id)):
                tables.events.put(key, None)
            of_it = [number for (number,) in tables.entries_of.group(maintenance_id)]
            numbers += [number for number in of_it if tables.audit_log.rows[number][2] is Chain.EVENTS]
            tables.looks.put(maintenance_id, None)
            tables.maintenances.put(maintenance_id, None)
        if len(old) < limit:
            for token in [each for each in tables.tokens.rows.values() if _ended_before(each, ended_before)]:
                tables.tokens.put(token.id, None)
            numbers += [number for _, number in tables.loose_entries.before(ALL, ended_before)[: 10 * limit]]
            audit = self._old_audit(audit_before or ended_before, 10 * limit)
        for number in sorted(numbers) + audit:
            self._forget_entry(number)
        for key in [key for key, delivery in tables.deliveries.rows.items() if delivery.at < ended_before]:
            tables.deliveries.put(key, None)
        return Forgotten(maintenances=len(old), entries=len(numbers) + len(audit))

    def _old_audit(self, before: datetime, limit: int) -> list[int]:
        rows = self._tables.audit_log.rows
        numbers = (number for (number,) in self._tables.entries_in.group(Chain.AUDIT))
        return list(islice(takewhile(lambda number: rows[number][1].at < before, numbers), limit))

    def _forget_entry(self, number: int) -> None:
        """Forget one entry, noting only the last of each run of forgotten entries: the chain continues there."""
        tables = self._tables
        _, _, chain, digest = tables.audit_log.rows[number]
        tables.audit_log.put(number, None)
        noted, kept = tables.forgotten_in.group(chain), tables.entries_in.group(chain)
        before, after = bisect_left(noted, (number,)), bisect_left(kept, (number,))
        previous = noted[before - 1][0] if before else None
        following = noted[before][0] if before < len(noted) else None
        if previous is not None and (after == 0 or kept[after - 1][0] < previous):
            tables.forgotten.put((chain, previous), None)
        if following is None or (after < len(kept) and kept[after][0] < following):
            tables.forgotten.add((chain, number), Link(sequence=number, chain=chain, hash=digest, entry=None))

    def mend_claims(self, until: datetime, limit: int) -> int:  # noqa: ARG002 - of the contract
        return 0  # no other version ever worked on this store


def _put(table: Table[T], by_sequence: Index[T], values: Mapping[str, T], created: set[str]) -> None:
    """Add new values; for existing ones copy only the fields that can change."""
    for key, value in values.items():
        stored = table.rows.get(key)
        if key in created:
            if by_sequence.has(ALL, value.sequence):
                table.refuse(key)
            table.add(key, value)
        elif stored is not None:
            table.put(key, _changed(stored, value))


def _ended_before(token: Token, moment: datetime) -> bool:
    return any(end is not None and end < moment for end in (token.revoked_at, token.expires_at))


def _changed(stored: T, value: T) -> T:
    kind = type(value)
    if _STANDING[kind](stored) == _STANDING[kind](value):  # nearly always, and faster than making a new one
        return value
    return replace(stored, **{name: getattr(value, name) for name in MUTABLE[kind]})


def _lone_vms(state: State) -> set[str]:
    """Return the VMs without a scope that a scheduled maintenance in focus holds: each has its own policy."""
    scheduled = (m for i in state.focus if (m := state.maintenances[i]).state is MaintenanceState.SCHEDULED)
    return {claim.vm for m in scheduled for claim in m.claims if claim.scope is None} - state.vms.keys()


def _vms_needed(state: State, waiting: Collection[str] = ()) -> set[str]:
    """Return the VMs of maintenances that may still be announced, or that remove VMs when they end."""
    needed = {name for i in waiting for name in state.maintenances[i].vms}
    for i in state.focus:
        maintenance = state.maintenances[i]
        is_queued = maintenance.state is MaintenanceState.QUEUED
        if is_queued or (maintenance.is_active and maintenance.type in {EventType.PREEMPT, EventType.TERMINATE}):
            needed.update(maintenance.vms)
    return needed - set(state.vms)
