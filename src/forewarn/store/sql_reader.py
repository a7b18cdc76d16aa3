"""The reading half of the SQL store."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

import sqlalchemy as sa

from forewarn.core.access import TENANT_ACTOR_PREFIX, Ownership, Revocation, Token
from forewarn.core.audit_chain import ChainPage
from forewarn.core.label import ANY_LABELS, LabelSelector
from forewarn.core.maintenance.alert_schedule import AlertCheck
from forewarn.core.model import (
    ACTIVE_STATES,
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
from forewarn.core.subscription import Delivery, DeliveryState, Subscription
from forewarn.core.vm_filter import ALL_VMS, VmFilter
from forewarn.store import statements
from forewarn.store import tables as t
from forewarn.store.audit_chain import find_nth_newest_event_at, read_link_page
from forewarn.store.label_conditions import match_host_labels, match_scope_labels, match_vm_labels
from forewarn.store.ownership import match_owned_entries, match_owned_events, match_owned_maintenances, match_owned_vms
from forewarn.store.reader import KEY_FIELDS, IdempotencyRecord, Page, Reader, StoredRollout
from forewarn.store.rows import from_rows, split_into_pieces, stream_rows
from forewarn.store.selection_conditions import (
    build_entry_conditions,
    build_maintenance_conditions,
    find_sequence_range,
)
from forewarn.store.statements import KEYS, match_keys, select_by_key

__all__ = ["TABLES", "SqlReader"]

T = TypeVar("T")

TABLES: dict[type[Any], sa.Table] = {
    AlertCheck: t.alert_check,
    Audience: t.audience,
    Delivery: t.delivery,
    Event: t.event,
    Host: t.host,
    IdempotencyRecord: t.idempotency,
    Maintenance: t.maintenance,
    Revocation: t.revocation,
    Scope: t.scope,
    StoredRollout: t.rollout,
    Subscription: t.subscription,
    Token: t.token,
    VirtualMachine: t.vm,
}
"""Table of each kind of value. Columns have the names of its fields."""

_NEAR = 5000
"""Maximum number of following entries for which examining each is quicker than finding all that belong to a tenant."""


_LAST_LETTERS = "z" * 40
"""What follows a prefix in the last possible id."""


class SqlReader(Reader):
    """Reads on one connection."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def _fetch_all(self, kind: type[T], query: sa.Select[Any]) -> list[T]:
        return from_rows(kind, self._connection.execute(query))

    def _fetch_by_key(self, kind: type[T], query: sa.Select[Any], keys: Iterable[str]) -> list[T]:
        """Return the values of the rows that a query of `statements` finds for these keys."""
        found: list[T] = []
        for piece in split_into_pieces(sorted(set(keys))):
            found += from_rows(kind, self._connection.execute(query, {KEYS: piece}))
        return found

    def _iter_rows(self, query: sa.Select[Any], keys: Iterable[str]) -> Iterator[sa.Row[Any]]:
        """Yield the rows that a query of `statements` finds for these keys."""
        for piece in split_into_pieces(sorted(set(keys))):
            yield from self._connection.execute(query, {KEYS: piece})

    def _find_rows(self, kind: type[T], keys: Iterable[str]) -> dict[str, T]:
        column = TABLES[kind].c[KEY_FIELDS[kind]]
        return {getattr(one, column.name): one for one in self._fetch_by_key(kind, select_by_key(column), keys)}

    def find_ids(self, kind: type[Any], prefix: str, limit: int) -> list[str]:
        column = TABLES[kind].c[KEY_FIELDS[kind]]
        # In every locale, ids of letters of one case and digits lie in this range, so PostgreSQL can use the index,
        # which is in the order of its locale. The other condition is exact.
        query = (
            sa.select(column)
            .where(column >= prefix, column <= prefix + _LAST_LETTERS)
            .where(sa.func.substr(column, 1, len(prefix)) == prefix)
            .order_by(column)
            .limit(limit)
        )
        return sorted(self._connection.execute(query).scalars())

    def _list_rows(self, kind: type[T]) -> list[T]:
        return self._fetch_all(kind, sa.select(TABLES[kind]))

    def _get_meta(self, key: str) -> str | None:
        return self._connection.execute(statements.META_VALUE, {"the_key": key}).scalar()

    def list_vms(
        self, *, host: str | None = None, name: str | None = None, owned: Ownership | None = None
    ) -> list[VirtualMachine]:
        query = sa.select(t.vm).where(*match_owned_vms(owned))
        if host is not None:
            query = query.where(t.vm.c.host == host)
        if name is not None:
            query = query.where(t.vm.c.name == name)
        # Sorted here, since databases disagree about the order of text.
        return sorted(self._fetch_all(VirtualMachine, query), key=attrgetter("name"))

    def _list_all_vms(self, known: Mapping[str, VirtualMachine]) -> list[VirtualMachine]:
        found: list[VirtualMachine] = []
        for piece in stream_rows(self._connection, VirtualMachine, t.vm):
            # Looked up once for each VM: another thread may change `known` meanwhile.
            found += [same if (same := known.get(vm.name)) is not None and same == vm else vm for vm in piece]
        return found

    def get_vm_page(
        self, after: str | None, limit: int, owned: Ownership | None = None, wanted: VmFilter = ALL_VMS
    ) -> list[VirtualMachine]:
        query = sa.select(t.vm).where(*match_owned_vms(owned))
        for column, value in ((t.vm.c.host, wanted.host), (t.vm.c.scope, wanted.scope)):
            if value is not None:
                query = query.where(column == value)
        query = query.where(*match_vm_labels(wanted.selector, ignores_hosts=wanted.ignores_host_labels))
        return self._fetch_all(VirtualMachine, self._add_paging(query, t.vm.c.name, after, limit, wanted.prefix))

    def get_host_page(
        self, after: str | None, limit: int, prefix: str = "", selector: LabelSelector = ANY_LABELS
    ) -> dict[str, list[str]]:
        query = sa.select(t.host.c.name).where(*match_host_labels(selector))
        query = self._add_paging(query, t.host.c.name, after, limit, prefix)
        vms: dict[str, list[str]] = {name: [] for name in self._connection.execute(query).scalars()}
        for row in self._iter_rows(statements.VMS_OF_HOSTS, vms):
            vms[row.host].append(row.name)
        return {host: sorted(names) for host, names in vms.items()}

    def get_scope_page(
        self,
        after: str | None,
        limit: int,
        owned: Ownership | None = None,
        prefix: str = "",
        selector: LabelSelector = ANY_LABELS,
    ) -> list[Scope]:
        query = sa.select(t.scope).where(*match_scope_labels(selector))
        if owned is not None:
            query = query.where(t.scope.c.name.in_(sorted(owned.scopes)))
        return self._fetch_all(Scope, self._add_paging(query, t.scope.c.name, after, limit, prefix))

    def count_vms_by_scope(self, scopes: Iterable[str]) -> dict[str, int]:
        return {row.scope: row.number for row in self._iter_rows(statements.VM_COUNTS_OF_SCOPES, scopes)}

    def _add_paging(
        self, query: sa.Select[Any], column: sa.Column[Any], after: str | None, limit: int, prefix: str
    ) -> sa.Select[Any]:
        """Add paging by name, in the order of code points, of the names that begin with `prefix`."""
        name = self._order_by_code_points(column)
        if after is not None:
            query = query.where(name > after)
        if prefix:
            # A range rather than LIKE, which ignores case in SQLite and cannot use the index.
            query = query.where(name >= prefix, name < prefix + chr(sys.maxunicode))
        return query.order_by(name).limit(limit)

    def _order_by_code_points(self, column: sa.Column[Any]) -> sa.ColumnElement[Any]:
        """Return the column to sort by in the order of code points, as SQLite does; PostgreSQL would use its locale."""
        return column if self._dialect == "sqlite" else sa.collate(column, "C")

    def iter_by_name(self, kind: type[T]) -> Iterator[list[T]]:
        table = TABLES[kind]
        return stream_rows(self._connection, kind, table, order_by=self._order_by_code_points(table.c.name))

    def list_failed_hosts(self, limit: int) -> list[Host]:
        query = sa.select(t.host).where(t.host.c.failed_at.is_not(None))
        return self._fetch_all(Host, query.order_by(t.host.c.failed_at.desc(), t.host.c.name).limit(limit))

    def get_position(self) -> int:
        return int(self._get_meta("sequence") or 0)

    def _find_vm_names(self, addresses: Iterable[str]) -> set[str]:
        return {row.vm for row in self._iter_rows(statements.ADDRESSED_VMS, addresses)}

    def _find_vms_on(self, hosts: Iterable[str]) -> list[VirtualMachine]:
        return self._fetch_by_key(VirtualMachine, select_by_key(t.vm.c.host), hosts)

    def _find_holders(self, vms: Iterable[str], scopes: Iterable[str]) -> set[str]:
        found = chain(self._iter_rows(statements.HELD_VMS, vms), self._iter_rows(statements.HELD_SCOPES, scopes))
        return {row.maintenance_id for row in found}

    def _list_active_hosts(self) -> dict[str, tuple[str, ...]]:
        c = t.maintenance.c
        # Compared here, since databases disagree about how to compare JSON.
        found = self._connection.execute(sa.select(c.id, c.hosts).where(c.state.in_(ACTIVE_STATES)))
        return {row.id: row.hosts for row in found if row.hosts}

    def _list_enabled_audiences(self) -> list[Audience]:
        pieces = stream_rows(self._connection, Audience, t.audience, t.audience.c.enabled_at.is_not(None))
        return list(chain.from_iterable(pieces))

    def _list_listed_events(self, audiences: Iterable[str] | None = None) -> list[Event]:
        if audiences is None:
            return self._fetch_all(Event, sa.select(t.event).where(t.event.c.is_listed))
        return self._fetch_by_key(Event, statements.LISTED_EVENTS, audiences)

    def _find_marked_keys(self, since: int) -> set[str]:
        return set(self._connection.execute(sa.select(t.feed.c.audience).where(t.feed.c.sequence > since)).scalars())

    def list_maintenances(
        self,
        *,
        before: int | None = None,
        limit: int = 100,
        selection: Selection = EVERYTHING,
        owned: Ownership | None = None,
    ) -> Page[Maintenance]:
        within = find_sequence_range(self._connection, selection, before=before)
        # No index answers such a selection. The page covers a limited range instead, and may be short or empty.
        if selection.must_scan_maintenances:
            within = within.limit_to(selection.scan_max, self.get_position(), is_backwards=True)
        column = t.maintenance.c.sequence
        query = sa.select(t.maintenance).where(
            *within.to_conditions(column),
            *build_maintenance_conditions(selection, self._dialect),
            *match_owned_maintenances(owned, selection),
        )
        found = self._fetch_all(Maintenance, query.order_by(column.desc()).limit(limit + 1))
        return Page(found[:limit], found[limit - 1].sequence if len(found) > limit else within.following)

    def list_ended_since(self, moment: datetime, limit: int, owned: Ownership | None = None) -> list[Maintenance]:
        c = t.maintenance.c
        query = sa.select(t.maintenance).where(c.ended_at >= moment, *match_owned_maintenances(owned))
        return self._fetch_all(Maintenance, query.order_by(c.ended_at.desc(), c.sequence.desc()).limit(limit))

    def get_maintenance(self, maintenance_id: str, owned: Ownership | None = None) -> Maintenance | None:
        query = sa.select(t.maintenance).where(t.maintenance.c.id == maintenance_id, *match_owned_maintenances(owned))
        return next(iter(self._fetch_all(Maintenance, query)), None)

    def find_events_of(self, maintenance_ids: Iterable[str]) -> dict[str, list[Event]]:
        found: dict[str, list[Event]] = {}
        events = self._fetch_by_key(Event, select_by_key(t.event.c.maintenance_id), maintenance_ids)
        for event in sorted(events, key=attrgetter("sequence")):
            found.setdefault(event.maintenance_id, []).append(event)
        return found

    def find_event_audiences(self, event_ids: Iterable[str]) -> dict[str, str]:
        return {row.id: row.audience for row in self._iter_rows(statements.EVENT_AUDIENCES, event_ids)}

    def find_owned_events(self, event_ids: Iterable[str], owned: Ownership) -> set[str]:
        query = sa.select(t.event.c.id).where(match_owned_events(owned), match_keys(t.event.c.id))
        return {row.id for row in self._iter_rows(query, event_ids)}

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
        # The newest entry in excess comes right after the newest `entries_max`.
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
        c = t.maintenance.c
        return self._find_first(c.due_at, c.id.not_in(list(except_for)), *_match_started(only_started=only_started))

    def _find_first(self, column: sa.Column[Any], *terms: sa.ColumnElement[bool]) -> datetime | None:
        """Return the earliest moment in that column."""
        query = sa.select(column).where(column.is_not(None), *terms).order_by(column).limit(1)
        return self._connection.execute(query).scalar()

    def next_inactive_at(self) -> datetime | None:
        return self._find_first(t.audience.c.active_until)

    def list_due(self, now: datetime, limit: int, *, only_started: bool = False) -> list[Maintenance]:
        c = t.maintenance.c
        query = sa.select(t.maintenance).where(c.due_at <= now, *_match_started(only_started=only_started))
        return self._fetch_all(Maintenance, query.order_by(c.due_at, c.sequence).limit(limit))

    def list_inactive(self, before: datetime, limit: int) -> list[Audience]:
        columns = t.audience.c
        query = sa.select(t.audience).where(columns.active_until <= before)
        return self._fetch_all(Audience, query.order_by(columns.active_until, columns.key).limit(limit))

    def find_tokens_by_digest(self, digests: Iterable[str]) -> dict[str, Token]:
        return {token.digest: token for token in self._fetch_by_key(Token, select_by_key(t.token.c.digest), digests)}

    def list_tokens(self, host: str | None = None) -> list[Token]:
        found = self._fetch_all(Token, sa.select(t.token).where(t.token.c.host == host))
        return sorted(found, key=attrgetter("created_at", "id"))

    def list_rollouts(self, *, is_ended: bool | None = None, limit: int = 100, skip: int = 0) -> list[StoredRollout]:
        query = sa.select(t.rollout).order_by(t.rollout.c.created_at.desc(), t.rollout.c.id).limit(limit).offset(skip)
        if is_ended is not None:
            query = query.where(t.rollout.c.is_ended == is_ended)
        return self._fetch_all(StoredRollout, query)

    # Alert checks and deliveries

    def next_alert_check_at(self) -> datetime | None:
        return self._find_first(t.alert_check.c.at)

    def list_due_alert_checks(self, now: datetime, limit: int) -> list[AlertCheck]:
        columns = t.alert_check.c
        query = sa.select(t.alert_check).where(columns.at <= now)
        return self._fetch_all(AlertCheck, query.order_by(columns.at, columns.maintenance_id).limit(limit))

    def list_deliveries(
        self, subscription_id: str, state: DeliveryState, *, after: tuple[int, str] = (0, ""), limit: int = 100
    ) -> list[Delivery]:
        columns = t.delivery.c
        subject = self._order_by_code_points(columns.subject)
        is_later = sa.or_(columns.sequence > after[0], sa.and_(columns.sequence == after[0], subject > after[1]))
        query = sa.select(t.delivery).where(columns.subscription_id == subscription_id, columns.state == state)
        query = query.where(is_later).order_by(columns.sequence, subject).limit(limit)
        return self._fetch_all(Delivery, query)

    def find_deliveries(self, subscription_id: str, keys: Iterable[tuple[int, str]]) -> list[Delivery]:
        columns, found = t.delivery.c, []
        for piece in split_into_pieces(sorted(set(keys))):
            is_named = sa.tuple_(columns.sequence, columns.subject).in_(piece)
            query = sa.select(t.delivery).where(columns.subscription_id == subscription_id, is_named)
            found += self._fetch_all(Delivery, query)
        return sorted(found, key=attrgetter("key"))

    def count_deliveries(self) -> Mapping[tuple[str, DeliveryState], int]:
        columns = t.delivery.c
        query = sa.select(columns.subscription_id, columns.state, sa.func.count())
        rows = self._connection.execute(query.group_by(columns.subscription_id, columns.state))
        return {(subscription_id, state): count for subscription_id, state, count in rows}


def _match_started(*, only_started: bool) -> list[sa.ColumnElement[bool]]:
    return [t.maintenance.c.state == MaintenanceState.STARTED] if only_started else []
