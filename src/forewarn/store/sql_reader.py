"""The reading half of the SQL store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

import sqlalchemy as sa

from forewarn.core.access import TENANT_ACTOR_PREFIX, Ownership, Role, Token
from forewarn.core.audit_chain import ChainPage
from forewarn.core.clock_jump import ClockJump
from forewarn.core.decision import AudienceDocument
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
from forewarn.store import tables as t
from forewarn.store.audit_chain import find_nth_newest_event_at, read_link_page
from forewarn.store.clock_jump import CLOCK_JUMP, decode_jump
from forewarn.store.contract import HOST_PREFIX, INVENTORY, FeedChanges, IdempotencyRecord, Page, StoredRollout
from forewarn.store.ownership import match_owned_entries, match_owned_events, match_owned_maintenances, match_owned_vms
from forewarn.store.rows import from_rows, split_into_pieces
from forewarn.store.selection_conditions import (
    build_entry_conditions,
    build_maintenance_conditions,
    find_sequence_range,
)
from forewarn.store.sql_notifying import SqlNotifyingReader

__all__ = ["SqlReader"]

T = TypeVar("T")

_NEAR = 5000
"""Maximum number of following entries for which examining each is quicker than finding all that belong to a tenant."""


class SqlReader(SqlNotifyingReader):
    """Reads on one connection; see `forewarn.store.contract.Reader` for the duties."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def _fetch_all(self, kind: type[T], query: sa.Select[Any]) -> list[T]:
        return from_rows(kind, self._connection.execute(query))

    def _fetch_by_key(self, kind: type[T], column: sa.Column[Any], keys: Iterable[str]) -> list[T]:
        found: list[T] = []
        for piece in split_into_pieces(sorted(set(keys))):
            found += self._fetch_all(kind, sa.select(column.table).where(column.in_(piece)))
        return found

    def get_inventory_version(self) -> int:
        return int(self._get_meta("inventory_version") or 0)

    def get_inventory_around(
        self, *, host: str, vms: Iterable[str], addresses: Iterable[str], scopes: Iterable[str]
    ) -> Inventory:
        names = set(vms)
        for piece in split_into_pieces(sorted(set(addresses))):
            names |= set(
                self._connection.execute(sa.select(t.address.c.vm).where(t.address.c.address.in_(piece))).scalars()
            )
        found = {
            vm.name: vm for vm in (*self.list_vms(host=host), *self._fetch_by_key(VirtualMachine, t.vm.c.name, names))
        }
        named = {*scopes, *(vm.scope for vm in found.values() if vm.scope is not None)}
        return Inventory(
            hosts=tuple(self._fetch_by_key(Host, t.host.c.name, [host])),
            scopes=tuple(self.find_scopes(sorted(named)).values()),
            vms=tuple(found[name] for name in sorted(found)),
        )

    def get_inventory(self) -> Inventory:
        return Inventory(
            hosts=tuple(sorted(self._fetch_all(Host, sa.select(t.host)), key=attrgetter("name"))),
            scopes=tuple(sorted(self._fetch_all(Scope, sa.select(t.scope)), key=attrgetter("name"))),
            vms=tuple(self.list_vms()),
        )

    def list_vms(
        self, *, host: str | None = None, name: str | None = None, owned: Ownership | None = None
    ) -> list[VirtualMachine]:
        query = sa.select(t.vm) if owned is None else sa.select(t.vm).where(match_owned_vms(owned))
        if host is not None:
            query = query.where(t.vm.c.host == host)
        if name is not None:
            query = query.where(t.vm.c.name == name)
        # Sorted here, since databases disagree about the order of text.
        return sorted(self._fetch_all(VirtualMachine, query), key=attrgetter("name"))

    def get_vm_page(self, after: str | None, limit: int, owned: Ownership | None = None) -> list[VirtualMachine]:
        query = sa.select(t.vm) if owned is None else sa.select(t.vm).where(match_owned_vms(owned))
        return self._fetch_all(VirtualMachine, self._add_paging(query, t.vm.c.name, after, limit))

    def get_host_page(self, after: str | None, limit: int) -> dict[str, list[str]]:
        query = self._add_paging(sa.select(t.host.c.name), t.host.c.name, after, limit)
        vms: dict[str, list[str]] = {name: [] for name in self._connection.execute(query).scalars()}
        for piece in split_into_pieces(vms):
            for row in self._connection.execute(sa.select(t.vm.c.host, t.vm.c.name).where(t.vm.c.host.in_(piece))):
                vms[row.host].append(row.name)
        return {host: sorted(names) for host, names in vms.items()}

    def _add_paging(
        self, query: sa.Select[Any], column: sa.Column[Any], after: str | None, limit: int
    ) -> sa.Select[Any]:
        """Add paging by name in the order of code points, as SQLite sorts; other databases would use their locale."""
        is_sqlite = self._connection.dialect.name == "sqlite"
        name: sa.ColumnElement[Any] = column if is_sqlite else sa.collate(column, "C")
        if after is not None:
            query = query.where(name > after)
        return query.order_by(name).limit(limit)

    def find_hosts(self, names: Iterable[str]) -> dict[str, Host]:
        return {h.name: h for h in self._fetch_by_key(Host, t.host.c.name, names)}

    def list_failed_hosts(self, limit: int) -> list[Host]:
        query = sa.select(t.host).where(t.host.c.failed_at.is_not(None))
        return self._fetch_all(Host, query.order_by(t.host.c.failed_at.desc(), t.host.c.name).limit(limit))

    def find_scopes(self, names: Iterable[str]) -> dict[str, Scope]:
        return {s.name: s for s in self._fetch_by_key(Scope, t.scope.c.name, names)}

    def iter_documents(self) -> Iterator[AudienceDocument]:
        """Yield the documents; the listed events are read once and grouped by audience."""
        query = sa.select(t.audience).where(t.audience.c.enabled_at.is_not(None))
        listed = self._fetch_all(Event, sa.select(t.event).where(t.event.c.is_listed).order_by(t.event.c.audience))
        yield from self._build_documents(self._fetch_all(Audience, query), listed)

    def _build_documents(self, audiences: Iterable[Audience], listed: list[Event]) -> Iterator[AudienceDocument]:
        maintenances = self._fetch_maintenances({e.maintenance_id for e in listed})
        # All callers sort by audience: `groupby` joins only neighbours.
        by_audience = {key: list(events) for key, events in groupby(listed, key=lambda e: e.audience)}
        for audience in audiences:
            events = sorted(by_audience.get(audience.key, ()), key=lambda e: e.sequence)
            yield AudienceDocument(audience=audience, items=tuple((e, maintenances[e.maintenance_id]) for e in events))

    def get_position(self) -> int:
        return int(self._get_meta("sequence") or 0)

    def get_feed_changes(self, since: int) -> FeedChanges:
        position = self.get_position()
        query = sa.select(t.feed.c.audience).where(t.feed.c.sequence > since)
        # Most polls of a replica find nothing new: then the counter is all that is read.
        keys = set() if position == since else set(self._connection.execute(query).scalars())
        listed: list[Event] = []
        for piece in split_into_pieces(sorted(keys)):
            events = sa.select(t.event).where(t.event.c.audience.in_(piece), t.event.c.is_listed)
            listed += self._fetch_all(Event, events)
        listed.sort(key=attrgetter("audience"))
        documents = list(self._build_documents(self.find_audiences(keys).values(), listed))
        if INVENTORY in keys:
            return FeedChanges(position=position, documents=documents, inventory=self.get_inventory())
        names = [key.removeprefix(HOST_PREFIX) for key in keys if key.startswith(HOST_PREFIX)]
        hosts: dict[str, list[VirtualMachine]] = {name: [] for name in names}
        for vm in sorted(self._fetch_by_key(VirtualMachine, t.vm.c.host, names), key=attrgetter("name")):
            hosts[vm.host].append(vm)
        found = {name: tuple(vms) for name, vms in hosts.items()}
        return FeedChanges(position=position, documents=documents, inventory=None, hosts=found)

    def find_audiences(self, keys: Iterable[str]) -> dict[str, Audience]:
        return {a.key: a for a in self._fetch_by_key(Audience, t.audience.c.key, keys)}

    def list_maintenances(
        self,
        *,
        states: Sequence[MaintenanceState] = (),
        before: int | None = None,
        limit: int = 100,
        selection: Selection = EVERYTHING,
        owned: Ownership | None = None,
    ) -> Page[Maintenance]:
        if states and not selection.states:
            selection = replace(selection, states=tuple(states))
        within = find_sequence_range(self._connection, selection, before=before)
        # No index answers such a selection. The page covers a limited range instead, and may be short or empty.
        if selection.must_scan_maintenances:
            within = within.limit_to(selection.scan_max, self.get_position(), is_backwards=True)
        column = t.maintenance.c.sequence
        query = sa.select(t.maintenance).where(
            *within.to_conditions(column), *build_maintenance_conditions(selection, self._dialect)
        )
        if owned is not None:
            query = query.where(match_owned_maintenances(owned, selection))
        found = self._fetch_all(Maintenance, query.order_by(column.desc()).limit(limit + 1))
        return Page(found[:limit], found[limit - 1].sequence if len(found) > limit else within.following)

    def list_ended_since(self, moment: datetime, limit: int, owned: Ownership | None = None) -> list[Maintenance]:
        c = t.maintenance.c
        query = sa.select(t.maintenance).where(c.ended_at >= moment)
        if owned is not None:
            query = query.where(match_owned_maintenances(owned))
        return self._fetch_all(Maintenance, query.order_by(c.ended_at.desc(), c.sequence.desc()).limit(limit))

    def get_maintenance(self, maintenance_id: str, owned: Ownership | None = None) -> Maintenance | None:
        query = sa.select(t.maintenance).where(t.maintenance.c.id == maintenance_id)
        if owned is not None:
            query = query.where(match_owned_maintenances(owned))
        found = self._fetch_all(Maintenance, query)
        return found[0] if found else None

    def find_maintenances(self, ids: Iterable[str]) -> dict[str, Maintenance]:
        return self._fetch_maintenances(ids)

    def _fetch_maintenances(self, ids: Iterable[str]) -> dict[str, Maintenance]:
        return {m.id: m for m in self._fetch_by_key(Maintenance, t.maintenance.c.id, ids)}

    def find_events_of(self, maintenance_ids: Iterable[str]) -> dict[str, list[Event]]:
        found: dict[str, list[Event]] = {}
        events = self._fetch_by_key(Event, t.event.c.maintenance_id, maintenance_ids)
        for event in sorted(events, key=lambda e: e.sequence):
            found.setdefault(event.maintenance_id, []).append(event)
        return found

    def find_event_audiences(self, event_ids: Iterable[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for piece in split_into_pieces(sorted(set(event_ids))):
            query = sa.select(t.event.c.id, t.event.c.audience).where(t.event.c.id.in_(piece))
            found.update((row.id, row.audience) for row in self._connection.execute(query))
        return found

    def find_owned_events(self, event_ids: Iterable[str], owned: Ownership) -> set[str]:
        found: set[str] = set()
        for piece in split_into_pieces(sorted(set(event_ids))):
            query = sa.select(t.event.c.id).where(t.event.c.id.in_(piece), match_owned_events(owned))
            found.update(self._connection.execute(query).scalars())
        return found

    def list_entries(  # noqa: PLR0913 - as the contract says
        self,
        *,
        after: int = 0,
        limit: int = 100,
        newest: bool = False,
        before: int | None = None,
        selection: Selection = EVERYTHING,
        owned: Ownership | None = None,
    ) -> Page[AuditEntry]:
        within = find_sequence_range(self._connection, selection, after, before)
        if selection.must_scan_entries:
            within = within.limit_to(selection.scan_max, self.get_position(), is_backwards=newest)
        column = t.audit_log.c.sequence
        numbers = within.to_conditions(column)
        query = sa.select(*t.ENTRY_COLUMNS).where(*build_entry_conditions(selection, self._dialect, numbers))
        if owned is not None:
            is_near = selection.maintenance_id is not None or (after > 0 and self.get_position() - after <= _NEAR)
            query = query.where(match_owned_entries(owned, self._dialect, numbers, selection, is_near=is_near))
        found = self._fetch_all(AuditEntry, query.order_by(column.desc() if newest else column).limit(limit + 1))
        following = found[limit - 1].sequence if len(found) > limit else within.following
        return Page(found[:limit][::-1] if newest else found[:limit], following)

    @property
    def _dialect(self) -> str:
        return self._connection.dialect.name

    def get_newest_excess_at(self, entries_max: int) -> datetime | None:
        return find_nth_newest_event_at(self._connection, entries_max + 1)

    def get_link_page(self, after: int | None, limit: int) -> ChainPage:
        return read_link_page(self._connection, after, limit)

    def find_nth_newest_of_tenant(self, tenant_key: str, since: datetime, count: int) -> datetime | None:
        c, m = t.audit_log.c, t.maintenance.c
        query = sa.select(c.at).join(t.maintenance, m.id == c.maintenance_id)
        query = query.where(m.tenant_key == tenant_key, m.created_at >= since, c.actor.startswith(TENANT_ACTOR_PREFIX))
        # Order by a sum, not by the column, or a database may scan the whole audit log backwards to keep its order.
        newest_first = (c.sequence + 0).desc()
        return self._connection.execute(query.order_by(newest_first).offset(count - 1).limit(1)).scalar()

    def count_by_state(self) -> Mapping[MaintenanceState, int]:
        query = sa.select(t.maintenance.c.state, sa.func.count()).group_by(t.maintenance.c.state)
        counts = dict.fromkeys(MaintenanceState, 0)
        counts.update((state, count) for state, count in self._connection.execute(query))
        return counts

    def next_due_at(self, except_for: Iterable[str] = (), *, only_started: bool = False) -> datetime | None:
        columns = t.maintenance.c
        query = sa.select(columns.due_at).where(columns.due_at.is_not(None), columns.id.not_in(list(except_for)))
        if only_started:
            query = query.where(columns.state == MaintenanceState.STARTED)
        return self._connection.execute(query.order_by(columns.due_at).limit(1)).scalar()

    def next_inactive_at(self) -> datetime | None:
        column = t.audience.c.active_until
        return self._connection.execute(sa.select(column).where(column.is_not(None)).order_by(column).limit(1)).scalar()

    def list_due(self, now: datetime, limit: int, *, only_started: bool = False) -> list[Maintenance]:
        columns = t.maintenance.c
        query = sa.select(t.maintenance).where(columns.due_at <= now)
        if only_started:
            query = query.where(columns.state == MaintenanceState.STARTED)
        return self._fetch_all(Maintenance, query.order_by(columns.due_at, columns.sequence).limit(limit))

    def list_inactive(self, before: datetime, limit: int) -> list[Audience]:
        columns = t.audience.c
        query = sa.select(t.audience).where(columns.active_until <= before)
        return self._fetch_all(Audience, query.order_by(columns.active_until, columns.key).limit(limit))

    def get_token_by_digest(self, digest: str) -> Token | None:
        return self._find_token(t.token.c.digest == digest)

    def get_token(self, token_id: str) -> Token | None:
        return self._find_token(t.token.c.id == token_id)

    def _find_token(self, term: sa.ColumnElement[bool]) -> Token | None:
        return next(iter(self._fetch_all(Token, sa.select(t.token).where(term))), None)

    def list_tokens(self, host: str | None = None) -> list[Token]:
        found = self._fetch_all(Token, sa.select(t.token).where(t.token.c.host == host))
        return sorted(found, key=attrgetter("created_at", "id"))

    def get_rollout(self, rollout_id: str) -> StoredRollout | None:
        found = self._fetch_all(StoredRollout, sa.select(t.rollout).where(t.rollout.c.id == rollout_id))
        return found[0] if found else None

    def list_rollouts(self, *, is_ended: bool | None = None, limit: int = 100) -> list[StoredRollout]:
        query = sa.select(t.rollout).order_by(t.rollout.c.created_at.desc(), t.rollout.c.id).limit(limit)
        if is_ended is not None:
            query = query.where(t.rollout.c.is_ended == is_ended)
        return self._fetch_all(StoredRollout, query)

    def is_revoked(self, nonce: str) -> bool:
        query = sa.select(t.revocation.c.nonce).where(t.revocation.c.nonce == nonce)
        return self._connection.execute(query).first() is not None

    def get_idempotency_record(self, key: str) -> IdempotencyRecord | None:
        row = self._connection.execute(sa.select(t.idempotency).where(t.idempotency.c.key == key)).first()
        if row is None:
            return None
        return IdempotencyRecord(key=row.key, fingerprint=row.fingerprint, content=row.outcome, at=row.at)

    def get_inventory_fingerprint(self) -> str | None:
        return self._get_meta("inventory")

    def get_clock_kind(self) -> str | None:
        return self._get_meta("clock")

    def get_clock_jump(self) -> ClockJump | None:
        return decode_jump(self._get_meta(CLOCK_JUMP))

    def _get_meta(self, key: str) -> str | None:
        return self._connection.execute(sa.select(t.meta.c.value).where(t.meta.c.key == key)).scalar()
