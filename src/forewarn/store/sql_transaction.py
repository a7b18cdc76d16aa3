"""The writing half of the SQL store: the primitives of `forewarn.store.transaction` as statements."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from operator import attrgetter
from typing import Any

import sqlalchemy as sa

from forewarn.core.audit_chain import Chain, ChainHead
from forewarn.core.model import ACTIVE_STATES, AuditEntry, Maintenance, VirtualMachine
from forewarn.store import statements
from forewarn.store import tables as t
from forewarn.store.audit_chain import HEADS, encode_heads, forget_audit, forget_events, parse_heads
from forewarn.store.reader import KEY_FIELDS
from forewarn.store.row_statements import Row, insert_rows, update_rows, upsert_rows
from forewarn.store.rows import list_field_names, split_into_pieces
from forewarn.store.sql_reader import TABLES, SqlReader
from forewarn.store.statements import KEYS
from forewarn.store.transaction import MUTABLE_FIELDS, ChainedEntry, Transaction

__all__ = ["SqlTransaction"]

_COUNTER = "sequence"
_PROBE = "probe"
_SAVEPOINT = "command"
_PROBE_SIZE_BYTES = 64 << 10
_SURPLUS_MAX = 100
"""Maximum number of rows that are forgotten in one step after a limit was lowered."""

_ENTRY_FIELDS = tuple(name for name in list_field_names(AuditEntry) if name != "sequence")
_read_entry = attrgetter(*_ENTRY_FIELDS)


class SqlTransaction(SqlReader, Transaction):
    """Reads and writes on one connection."""

    def __init__(self, connection: sa.Connection) -> None:
        super().__init__(connection)
        self._counter: int | None = None
        self._before = 0
        self._heads = parse_heads(None)

    # The counter

    def next_sequence(self) -> int:
        counter = self._read_counter() + 1
        self._counter = counter
        return counter

    @property
    def numbers(self) -> tuple[int, int] | None:
        return None if self._counter is None else (self._before, self._counter)

    def _read_counter(self) -> int:
        """Read the counter once per transaction, together with the heads of the hash chains."""
        if self._counter is None:
            found = {row.key: row.value for row in self._iter_rows(statements.META_VALUES, [_COUNTER, HEADS])}
            self._counter = self._before = int(found.get(_COUNTER) or 0)
            self._heads = parse_heads(found.get(HEADS))
        return self._counter

    def flush(self) -> None:
        """Write the counter and the heads of the hash chains back; the store calls it before the commit."""
        if self._counter is not None:
            self._upsert_meta((_COUNTER, str(self._counter)), (HEADS, encode_heads(self._heads)))

    def _get_heads(self) -> dict[Chain, ChainHead]:
        return self._heads

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        counter, heads = self._counter, dict(self._heads)
        execute = self._connection.exec_driver_sql
        execute(f"SAVEPOINT {_SAVEPOINT}")
        try:
            yield
        except BaseException:
            # If this fails too, its error is raised: the transaction must not go on.
            execute(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
            self._counter, self._heads = counter, heads
            raise
        execute(f"RELEASE SAVEPOINT {_SAVEPOINT}")

    # Loading a working set

    def list_active_ids(self) -> list[str]:
        query = sa.select(t.maintenance.c.id).where(t.maintenance.c.state.in_(ACTIVE_STATES))
        return list(self._connection.execute(query).scalars())

    def _find_vms_with_policy(self, names: Iterable[str]) -> list[VirtualMachine]:
        return self._fetch_by_key(VirtualMachine, statements.VMS_WITH_POLICY, names)

    def _find_listed(self, audiences: Iterable[str]) -> dict[str, str]:
        return {row.id: row.maintenance_id for row in self._iter_rows(statements.LISTED_IDS, audiences)}

    def _count_unapproved(self, maintenance_ids: Iterable[str]) -> dict[str, int]:
        rows = self._iter_rows(statements.UNAPPROVED_COUNTS, maintenance_ids)
        return {row.maintenance_id: row.number for row in rows}

    # Rows

    def _insert_rows(self, kind: type[Any], values: Iterable[Any]) -> None:
        names = list_field_names(kind)  # type: ignore[arg-type] # a class is hashable
        self._insert(TABLES[kind], names, map(attrgetter(*names), values))

    def _insert(self, table: sa.Table, names: tuple[str, ...], rows: Iterable[Row]) -> None:
        insert_rows(table, names, self._dialect).execute(self._connection, rows)

    def _upsert_rows(self, kind: type[Any], values: Iterable[Any]) -> None:
        names = list_field_names(kind)  # type: ignore[arg-type] # a class is hashable
        self._upsert(TABLES[kind], names, map(attrgetter(*names), values))

    def _upsert(self, table: sa.Table, names: tuple[str, ...], rows: Iterable[Row]) -> None:
        upsert_rows(table, names, self._dialect).execute(self._connection, rows)

    def _update_rows(self, kind: type[Any], values: Iterable[Any]) -> None:
        names = MUTABLE_FIELDS[kind]
        rows = map(attrgetter(*names, "id"), values)
        update_rows(TABLES[kind], names, self._dialect).execute(self._connection, rows)

    def _delete_rows(self, kind: type[Any], keys: Iterable[str]) -> None:
        self._delete_by_key(TABLES[kind].c[KEY_FIELDS[kind]], keys)

    def _delete_by_key(self, column: sa.Column[Any], keys: Iterable[str]) -> None:
        for piece in split_into_pieces(sorted(set(keys))):
            self._connection.execute(statements.delete_by_key(column), {KEYS: piece})

    def _delete_rows_before(self, kind: type[Any], field: str, moment: datetime) -> None:
        self._connection.execute(sa.delete(TABLES[kind]).where(TABLES[kind].c[field] < moment))

    def _put_meta(self, key: str, value: str | None) -> None:
        if value is None:
            self._connection.execute(sa.delete(t.meta).where(t.meta.c.key == key))
        else:
            self._upsert_meta((key, value))

    def _upsert_meta(self, *rows: tuple[str, str]) -> None:
        self._upsert(t.meta, ("key", "value"), rows)

    # Saving

    def _upsert_marks(self, keys: Iterable[str], sequence: int) -> None:
        self._upsert(t.feed, ("audience", "sequence"), ((key, sequence) for key in keys))

    def _insert_claims(self, maintenances: Iterable[Maintenance]) -> None:
        rows = ((m.id, c.vm, c.scope, c.host, m.is_active) for m in maintenances for c in m.claims)
        self._insert(t.claim, ("maintenance_id", "vm", "scope", "host", "is_active"), rows)

    def _release_claims(self, maintenance_ids: Iterable[str]) -> None:
        # Rows stay after the end, for the history of a VM.
        for piece in split_into_pieces(maintenance_ids):
            query = sa.update(t.claim).where(t.claim.c.maintenance_id.in_(piece))
            self._connection.execute(query.values(is_active=False))

    def _insert_entries(self, entries: Iterable[ChainedEntry]) -> None:
        rows = ((number, name, digest, *_read_entry(entry)) for number, entry, name, digest in entries)
        self._insert(t.audit_log, ("sequence", "chain", "hash", *_ENTRY_FIELDS), rows)

    def _replace_addresses(self, removed: Iterable[VirtualMachine], added: Iterable[VirtualMachine]) -> None:
        self._delete_by_key(t.address.c.vm, (vm.name for vm in removed))
        self._insert(t.address, ("address", "vm"), ((a, vm.name) for vm in added for a in vm.addresses))

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

    def check_writable(self) -> None:
        # This allocates new pages, which are written on commit although they are empty by then.
        self._upsert_meta((_PROBE, "x" * _PROBE_SIZE_BYTES))
        self._connection.execute(sa.delete(t.meta).where(t.meta.c.key == _PROBE))

    def _delete_surplus_revocations(self, actor: str, kept: int) -> None:
        c = t.revocation.c
        newest = sa.select(c.nonce).where(c.actor == actor).order_by(c.expires_at.desc(), c.nonce.desc())
        surplus = self._connection.execute(newest.offset(kept).limit(_SURPLUS_MAX)).scalars()
        self._delete_by_key(c.nonce, surplus)

    def delete_deliveries(self, subscription_id: str, keys: Iterable[tuple[int, str]]) -> None:
        rows = [{"the_sequence": sequence, "the_subject": subject} for sequence, subject in keys]
        if rows:
            columns = t.delivery.c
            query = sa.delete(t.delivery).where(
                columns.subscription_id == subscription_id,
                columns.sequence == sa.bindparam("the_sequence"),
                columns.subject == sa.bindparam("the_subject"),
            )
            self._connection.execute(query, rows)

    def _delete_deliveries_of(self, subscription_id: str) -> None:
        self._delete_by_key(t.delivery.c.subscription_id, [subscription_id])

    # Retention

    def _list_ended_ids(self, before: datetime, limit: int) -> list[str]:
        c = t.maintenance.c
        query = sa.select(c.id).where(c.ended_at < before).order_by(c.ended_at).limit(limit)
        return list(self._connection.execute(query).scalars())

    def _forget_maintenances(self, ids: Collection[str]) -> int:
        columns = (
            t.event.c.maintenance_id,
            t.claim.c.maintenance_id,
            t.alert_check.c.maintenance_id,
            t.maintenance.c.id,
        )
        for column in columns:
            self._delete_by_key(column, ids)
        of_them = t.audit_log.c.maintenance_id
        return sum(forget_events(self._connection, of_them.in_(piece)) for piece in split_into_pieces(ids))

    def _forget_loose_entries(self, before: datetime, limit: int) -> int:
        is_loose = (t.audit_log.c.maintenance_id.is_(None), t.audit_log.c.at < before)
        return forget_events(self._connection, *is_loose, limit=limit)

    def _forget_audit_entries(self, before: datetime, limit: int) -> int:
        return forget_audit(self._connection, before, limit)

    def _delete_ended_tokens(self, before: datetime) -> None:
        has_ended = (t.token.c.revoked_at < before) | (t.token.c.expires_at < before)
        self._connection.execute(sa.delete(t.token).where(has_ended))
