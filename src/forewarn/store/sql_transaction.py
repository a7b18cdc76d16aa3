"""The writing half of the SQL store: loading the working set of a decision, and saving its changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from forewarn.core.access import Revocation, Token
from forewarn.core.clock_jump import ClockJump
from forewarn.core.decision import ChangeSet, WorkingSet
from forewarn.core.inventory import Inventory
from forewarn.core.model import (
    ACTIVE_STATES,
    Event,
    EventType,
    Host,
    MaintenanceState,
    Scope,
    VirtualMachine,
    audience_key,
    split_audience_keys,
)
from forewarn.errors import StoreUnavailable
from forewarn.store import tables as t
from forewarn.store.audit_chain import (
    HEADS,
    ChainHeads,
    build_chained_rows,
    forget_audit,
    forget_events,
)
from forewarn.store.clock_jump import CLOCK_JUMP, encode_jump
from forewarn.store.contract import INVENTORY, IdempotencyRecord, PruneResult, StoredRollout, list_changed_keys
from forewarn.store.rows import claim_rows, split_into_pieces, to_row
from forewarn.store.sql_notifying import SqlNotifyingTransaction
from forewarn.store.sql_reader import SqlReader

__all__ = ["SqlTransaction"]

_COUNTER = "sequence"
_PROBE = "probe"
_PROBE_SIZE_BYTES = 64 << 10
_SURPLUS_MAX = 100
"""Maximum number of rows that are forgotten in one step after a limit was lowered."""

_MUTABLE = {
    "maintenance": (
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
    "event": ("is_listed", "approved_at", "approved_by"),
}
"""Columns that change after a row was made; all others never change."""


class SqlTransaction(SqlReader, SqlNotifyingTransaction):
    """Reads and writes on one connection; see `forewarn.store.contract.Transaction` for the duties."""

    def __init__(self, connection: sa.Connection) -> None:
        super().__init__(connection)
        self._counter: int | None = None
        self._heads = ChainHeads()

    @property
    def has_written(self) -> bool:
        """True if anything was numbered, so that the other replicas must be notified."""
        return self._counter is not None

    # The counter

    def next_sequence(self) -> int:
        counter = self._read_counter() + 1
        self._counter = counter
        return counter

    def _read_counter(self) -> int:
        """Read the counter once per transaction, together with the heads of the hash chains."""
        if self._counter is None:
            c = t.meta.c
            query = sa.select(c.key, c.value).where((c.key == _COUNTER) | (c.key == HEADS)).with_for_update()
            found = {row.key: row.value for row in self._connection.execute(query)}
            self._counter = int(found.get(_COUNTER) or 0)
            self._heads = ChainHeads.parse(found.get(HEADS))
        return self._counter

    def flush(self) -> None:
        """Write the counter and the heads of the hash chains back; the store calls it before the commit."""
        if self._counter is not None:
            values = {_COUNTER: str(self._counter), HEADS: self._heads.encode()}
            self._upsert(t.meta, [{"key": key, "value": value} for key, value in values.items()])

    def now(self) -> datetime | None:
        return None

    # Loading a working set

    def load_targets(self, hosts: Iterable[str], vms: Iterable[str]) -> WorkingSet:
        hosts, vms = list(hosts), list(vms)
        state = WorkingSet(hosts=self.find_hosts(hosts))
        found = self._fetch_by_key(VirtualMachine, t.vm.c.host, hosts) + self._fetch_by_key(
            VirtualMachine, t.vm.c.name, vms
        )
        self._add_vms(state, found)
        holders = self._find_holders([vm.name for vm in found], [vm.scope for vm in found if vm.scope is not None])
        self._add_maintenances(state, holders)
        self._complete_state(state)
        return state

    def list_active_ids(self) -> list[str]:
        query = sa.select(t.maintenance.c.id).where(t.maintenance.c.state.in_(ACTIVE_STATES))
        return list(self._connection.execute(query).scalars())

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
        events = self._fetch_by_key(Event, t.event.c.id, ids)
        state = WorkingSet()
        self._add_maintenances(state, {e.maintenance_id for e in events})
        # If a scope couples its deletes, one approval may start the others too (R92).
        has_deletes = any(m.type is EventType.TERMINATE and m.is_active for m in state.maintenances.values())
        state = self.load_maintenances(list(state.maintenances), with_neighbours=has_deletes, into=state)
        state.events.update((e.id, e) for e in events)
        return state

    def load_audiences(self, keys: Iterable[str], *, with_waiting: bool = False) -> WorkingSet:
        keys = list(keys)
        ids = {e.maintenance_id for e in self._find_listed_events(keys)}
        waiting = self._find_waiting_ids(keys) if with_waiting else set()
        state = self.load_maintenances(ids | waiting)
        state.audiences.update(self.find_audiences(keys))
        self._complete_state(state, waiting)
        return state

    def _find_waiting_ids(self, keys: Iterable[str]) -> set[str]:
        """Return the ids of the scheduled maintenances that hold a VM of those audiences."""
        vms, scopes = split_audience_keys(keys)
        holders = self._find_holders(vms, scopes)
        found: set[str] = set()
        for piece in split_into_pieces(sorted(holders)):
            c = t.maintenance.c
            query = sa.select(c.id).where(c.id.in_(piece), c.state == MaintenanceState.SCHEDULED)
            found.update(self._connection.execute(query).scalars())
        return found

    def _add_maintenances(self, state: WorkingSet, ids: Iterable[str]) -> None:
        state.maintenances.update(self._fetch_maintenances(i for i in ids if i not in state.maintenances))

    def _add_neighbours(self, state: WorkingSet) -> None:
        focus = [state.maintenances[i] for i in state.focus if state.maintenances[i].is_active]
        claims = [claim for m in focus for claim in m.claims]
        self._add_maintenances(state, self._find_holders([c.vm for c in claims], [c.scope for c in claims if c.scope]))

    def _find_holders(self, vms: Sequence[str], scopes: Sequence[str]) -> set[str]:
        """Return the ids of the active maintenances that hold one of those VMs or scopes."""
        ids: set[str] = set()
        for column, names in ((t.claim.c.vm, vms), (t.claim.c.scope, scopes)):
            for piece in split_into_pieces(sorted(set(names))):
                query = sa.select(t.claim.c.maintenance_id).where(column.in_(piece), t.claim.c.is_active).distinct()
                ids.update(self._connection.execute(query).scalars())
        return ids

    def _complete_state(self, state: WorkingSet, waiting: Collection[str] = ()) -> None:
        """Add what a decision about the focus may touch: events, VMs, scopes, audiences with their documents."""
        for events in self.find_events_of(m.id for m in state.maintenances.values() if m.is_active).values():
            state.events.update((e.id, e) for e in events)
        self._add_vms(state, self._fetch_by_key(VirtualMachine, t.vm.c.name, _find_needed_vms(state, waiting)))
        self._add_vms(state, self._find_vms_with_policy(_find_lone_vms(state)))
        vm_audiences = {audience_key(vm, state.scopes.get(vm.scope or "")) for vm in state.vms.values()}
        keys = vm_audiences | {e.audience for e in state.events.values()} | set(state.audiences)
        state.audiences.update(self.find_audiences(keys - set(state.audiences)))
        others = self._find_listed_ids(sorted(state.audiences)) - state.events.keys()
        listed = self._fetch_by_key(Event, t.event.c.id, others)
        state.events.update((e.id, e) for e in listed)
        self._add_maintenances(state, {e.maintenance_id for e in listed})

    def _add_vms(self, state: WorkingSet, vms: Iterable[VirtualMachine]) -> None:
        state.vms.update((vm.name, vm) for vm in vms)
        names = {vm.scope for vm in state.vms.values() if vm.scope is not None}
        names |= {c.scope for i in state.focus for c in state.maintenances[i].claims if c.scope is not None}
        state.scopes.update(self.find_scopes(names - set(state.scopes)))

    def _find_vms_with_policy(self, names: Iterable[str]) -> list[VirtualMachine]:
        """Return those of the VMs that have a policy, or a scope that may have one: few, and so quickly read."""
        found: list[VirtualMachine] = []
        for piece in split_into_pieces(names):
            is_meant = sa.or_(t.vm.c.policy.is_not(None), t.vm.c.scope.is_not(None))
            found += self._fetch_all(VirtualMachine, sa.select(t.vm).where(t.vm.c.name.in_(piece), is_meant))
        return found

    def _find_listed_events(self, audiences: Iterable[str]) -> list[Event]:
        found: list[Event] = []
        for piece in split_into_pieces(audiences):
            found += self._fetch_all(
                Event, sa.select(t.event).where(t.event.c.audience.in_(piece), t.event.c.is_listed)
            )
        return found

    def _find_listed_ids(self, audiences: Iterable[str]) -> set[str]:
        """Return only the ids: most events are loaded already, and turning rows into values takes the time."""
        ids: set[str] = set()
        for piece in split_into_pieces(audiences):
            query = sa.select(t.event.c.id).where(t.event.c.audience.in_(piece), t.event.c.is_listed)
            ids.update(self._connection.execute(query).scalars())
        return ids

    # Saving

    def save(self, changes: ChangeSet) -> None:
        self._upsert(t.audience, [to_row(a) for a in changes.audiences.values()])
        self._mark_changed(document.audience.key for document in changes.documents)
        self._write_values(t.maintenance, changes.maintenances, changes.created)
        self._write_values(t.event, changes.events, changes.created)
        self._upsert(t.host, [to_row(host) for host in changes.hosts.values()])
        self._upsert(t.vm, [to_row(vm) for vm in changes.vms.values()])
        if changes.vms or changes.hosts:
            self._increment_inventory_version()
        self._index_claims(changes)
        # After the feed, as in the in-memory store: a test compares the numbers that both give out.
        numbered = [(self.next_sequence(), entry) for entry in changes.entries]
        if numbered:
            self._connection.execute(sa.insert(t.audit_log), build_chained_rows(self._heads, numbered))
        self.save_alert_checks(changes.alert_checks)

    def _mark_changed(self, audiences: Iterable[str]) -> None:
        """Number a change. Writers run one after the other, so a larger number was committed later."""
        keys = list(audiences)
        if keys:
            sequence = self.next_sequence()
            self._upsert(t.feed, [{"audience": key, "sequence": sequence} for key in keys])

    def _write_values(self, table: sa.Table, values: Mapping[str, Any], created: set[str]) -> None:
        """Insert new values; of existing ones write only the columns that can change."""
        new = [to_row(value) for key, value in values.items() if key in created]
        if new:
            self._connection.execute(sa.insert(table), new)
        columns = _MUTABLE[table.name]
        old = [
            {"the_key": key} | {f"new_{name}": getattr(value, name) for name in columns}
            for key, value in values.items()
            if key not in created
        ]
        if old:
            query = sa.update(table).where(table.c.id == sa.bindparam("the_key"))
            self._connection.execute(query.values({name: sa.bindparam(f"new_{name}") for name in columns}), old)

    def _index_claims(self, changes: ChangeSet) -> None:
        """Index claims. They stay after the end, for the history of a VM; those of active maintenances are marked."""
        made = [m for m in changes.maintenances.values() if m.id in changes.created]
        rows = [row for m in made for row in claim_rows(m.id, m.claims, is_active=m.is_active)]
        if rows:
            self._connection.execute(sa.insert(t.claim), rows)
        ended = [m.id for m in changes.maintenances.values() if not m.is_active and m.id not in changes.created]
        for piece in split_into_pieces(ended):
            query = sa.update(t.claim).where(t.claim.c.maintenance_id.in_(piece))
            self._connection.execute(query.values(is_active=False))

    def extend_active_until(self, active_until: Mapping[str, datetime]) -> None:
        query = (
            sa.update(t.audience)
            .where(t.audience.c.key == sa.bindparam("the_key"), t.audience.c.active_until < sa.bindparam("moment"))
            .values(active_until=sa.bindparam("moment"))
        )
        # The `active_until` of a disabled audience is NULL, which is never smaller: it stays disabled.
        rows = [{"the_key": key, "moment": moment} for key, moment in active_until.items()]
        if rows:
            self._connection.execute(query, rows)

    def replace_inventory(self, inventory: Inventory, fingerprint: str, before: Inventory | None = None) -> None:
        marks = [INVENTORY] if before is None else list_changed_keys(before, inventory)
        before = self.get_inventory() if before is None else before
        self._replace_rows(t.host, before.hosts, inventory.hosts)
        self._replace_rows(t.scope, before.scopes, inventory.scopes)
        changed = self._replace_rows(t.vm, before.vms, inventory.vms)
        # Delete before inserting: an address, which is a key, may have moved from one VM to another.
        for piece in split_into_pieces(changed):
            self._connection.execute(sa.delete(t.address).where(t.address.c.vm.in_(piece)))
        rows = [{"address": a, "vm": vm.name} for vm in inventory.vms if vm.name in changed for a in vm.addresses]
        if rows:
            self._connection.execute(sa.insert(t.address), rows)
        self._upsert(t.meta, [{"key": "inventory", "value": fingerprint}])
        self._increment_inventory_version()
        self._mark_changed(marks)

    def _increment_inventory_version(self) -> None:
        self._upsert(t.meta, [{"key": "inventory_version", "value": str(self.get_inventory_version() + 1)}])

    def _replace_rows(
        self,
        table: sa.Table,
        before: Iterable[Host | Scope | VirtualMachine],
        after: Iterable[Host | Scope | VirtualMachine],
    ) -> set[str]:
        """Write only the differences; return the names that were added, changed or removed."""
        after = list(after)
        old, new = {one.name: one for one in before}, {one.name: one for one in after}
        # The dictionary would silently drop one of two with the same name.
        if len(new) < len(after):
            msg = f"cannot store the inventory: it has a duplicate {table.name}"
            raise StoreUnavailable(msg)
        changed = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
        for piece in split_into_pieces(sorted(changed & old.keys())):
            self._connection.execute(sa.delete(table).where(table.c.name.in_(piece)))
        rows = [to_row(one) for name, one in new.items() if name in changed]
        if rows:
            self._connection.execute(sa.insert(table), rows)
        return changed

    def save_clock_kind(self, kind: str) -> None:
        self._upsert(t.meta, [{"key": "clock", "value": kind}])

    def save_clock_jump(self, jump: ClockJump | None) -> None:
        if jump is None:
            self._connection.execute(sa.delete(t.meta).where(t.meta.c.key == CLOCK_JUMP))
        else:
            self._upsert(t.meta, [{"key": CLOCK_JUMP, "value": encode_jump(jump)}])

    def check_writable(self) -> None:
        # This allocates new pages, which are written on commit although they are empty by then.
        self._upsert(t.meta, [{"key": _PROBE, "value": "x" * _PROBE_SIZE_BYTES}])
        self._connection.execute(sa.delete(t.meta).where(t.meta.c.key == _PROBE))

    def save_token(self, token: Token) -> None:
        self._upsert(t.token, [to_row(token)])

    def add_revocation(self, revocation: Revocation, now: datetime, actor_max: int) -> bool:
        c = t.revocation.c
        self._connection.execute(sa.delete(t.revocation).where(c.expires_at <= now))
        if self.is_revoked(revocation.nonce):
            return False
        self._connection.execute(sa.insert(t.revocation), [to_row(revocation)])
        newest = sa.select(c.nonce).where(c.actor == revocation.actor).order_by(c.expires_at.desc(), c.nonce.desc())
        surplus = list(self._connection.execute(newest.offset(actor_max).limit(_SURPLUS_MAX)).scalars())
        self._connection.execute(sa.delete(t.revocation).where(c.nonce.in_(surplus)))
        return True

    def save_rollout(self, rollout: StoredRollout) -> None:
        self._upsert(t.rollout, [to_row(rollout)])

    def save_idempotency_record(self, outcome: IdempotencyRecord) -> None:
        row = {
            "key": outcome.key,
            "fingerprint": outcome.fingerprint,
            "outcome": outcome.content,
            "at": outcome.at,
        }
        self._connection.execute(sa.insert(t.idempotency), [row])

    def prune_history(
        self, ended_before: datetime, outcomes_before: datetime, limit: int, audit_before: datetime | None = None
    ) -> PruneResult:
        self._connection.execute(sa.delete(t.idempotency).where(t.idempotency.c.at < outcomes_before))
        columns = t.maintenance.c
        old = sa.select(columns.id).where(columns.ended_at < ended_before).order_by(columns.ended_at).limit(limit)
        ids = list(self._connection.execute(old).scalars())
        entries = 0
        for piece in split_into_pieces(ids):
            for column in (t.event.c.maintenance_id, t.claim.c.maintenance_id, t.look.c.maintenance_id, columns.id):
                self._connection.execute(sa.delete(column.table).where(column.in_(piece)))
            entries += forget_events(self._connection, t.audit_log.c.maintenance_id.in_(piece))
        if len(ids) < limit:
            has_ended = (t.token.c.revoked_at < ended_before) | (t.token.c.expires_at < ended_before)
            self._connection.execute(sa.delete(t.token).where(has_ended))
            is_loose = (t.audit_log.c.maintenance_id.is_(None), t.audit_log.c.at < ended_before)
            entries += forget_events(self._connection, *is_loose, limit=10 * limit)
            entries += forget_audit(self._connection, audit_before or ended_before, 10 * limit)
        self._connection.execute(sa.delete(t.delivery).where(t.delivery.c.at < ended_before))
        return PruneResult(maintenances=len(ids), entries=entries)


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
