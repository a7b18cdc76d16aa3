"""Copying everything from one database to another: from a SQLite file to PostgreSQL, or back.

All rows are copied in one transaction of the target, from one view of the source. They are read back and compared
before that transaction is committed. So the target has everything, or it is unchanged.

Neither may be served meanwhile: an approval during the copy would be missing in it. On SQLite the lock of the file
keeps others away. On PostgreSQL the lock that writers take does so, and no copy begins while a replica holds the lease
or a service is connected.

The schema of the source is left alone unless its owner asks for an upgrade. The source is the way back when a move goes
wrong, and once it has the newest schema, the Forewarn that wrote it can no longer open it. Serving it once upgrades it
too, but that also carries out what is due. The target gets the newest schema in the transaction of the rows.

Leases are not copied: they record which replica serves a database, and no replica serves the new one yet.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from forewarn.errors import ConfigError, Conflict, StoreCorrupt
from forewarn.store import tables as t
from forewarn.store.migrate import COMPATIBLE_SINCE, HEAD, MIGRATIONS, upgrade_schema
from forewarn.store.whole_database import VERSION_TABLE, WholeDatabase, parse_database_url, read_schema_revision

__all__ = ["COPIED", "PIECE_ROWS", "CopiedTable", "CopyProgress", "CopyResult", "copy_database"]

PIECE_ROWS = 200
"""Maximum number of rows in memory at a time."""

COPIED = tuple(table for table in t.metadata.sorted_tables if table is not t.lease)
"""Tables that are copied, in order."""

_CHECKSUM_BYTES = 16
_UNREADABLE = (ArithmeticError, LookupError, TypeError, ValueError)
"""Errors that a value raises if it does not fit its column's type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyProgress:
    """Progress of a copy.

    Attributes:
        is_comparing: True once rows are compared; before that, they are copied.
        table: Name of the present table.
        rows_done: Rows copied, or compared, of all tables.
        rows: Rows of all tables.
    """

    is_comparing: bool
    table: str
    rows_done: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedTable:
    """A table that is the same in both databases.

    Attributes:
        name: Name of the table.
        rows: Number of rows.
        checksum: Checksum of the rows in any order; 32 hexadecimal digits, equal for equal rows on any database.
    """

    name: str
    rows: int
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyResult:
    """A copy that was committed.

    Attributes:
        source: URL of the source without a password.
        target: URL of the target without a password.
        schema: Schema revision of both.
        tables: Every table that was copied and compared.
    """

    source: str
    target: str
    schema: str
    tables: tuple[CopiedTable, ...]

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(table.rows for table in self.tables)


# Copying


def copy_database(
    source_url: str,
    target_url: str,
    *,
    upgrade_source: bool = False,
    on_progress: Callable[[CopyProgress], None] | None = None,
) -> CopyResult:
    """Copy everything from one database to another one that is empty.

    At most `PIECE_ROWS` rows are in memory at a time. If the copy is interrupted, by an exception in the callback or by
    killing the process, the target is unchanged and the copy may be repeated.

    Args:
        source_url: Database to copy. Only read, unless it is upgraded.
        target_url: Database to copy to: without rows, with or without the schema; a SQLite file may be missing.
        upgrade_source: True to upgrade a source with an older schema first, instead of refusing it. The Forewarn that
            wrote it can then no longer open it.
        on_progress: Callback, called after each piece.

    Raises:
        ConfigError: A URL cannot be used, there is no source, or both are the same database.
        Conflict: The target is not empty, or the source has an older schema.
        StoreCorrupt: The source is damaged, newer or not Forewarn's; or a row reads differently in the target.
        StoreUnavailable: One of them is served, away or full.
    """
    source, target = WholeDatabase(parse_database_url(source_url)), WholeDatabase(parse_database_url(target_url))
    source.check_exists()
    _check_different_files(source, target)
    # Both sides lock this number: if two URLs lead to one database, the second lock fails. PostgreSQL's keys are signed
    # 64-bit numbers.
    mark = secrets.randbits(62)
    with (
        source.lock_exclusively(mark),
        target.lock_exclusively(mark),
        _remove_on_failure(target),
        target.write() as writing,
    ):
        _check_empty(writing, target.name)
        is_older = _check_source(source, upgrade_source=upgrade_source)
        with target.wrap_errors():
            upgrade_schema(writing)
        # Upgrading the source cannot be undone, so it comes after everything that may refuse the target.
        if is_older:
            with source.write() as connection:
                upgrade_schema(connection)
        with source.read() as reading:
            run = _CopyRun(source, reading, target, writing, on_progress or (lambda _: None))
            tables = run.copy_and_compare()
        # The target commits right after this, and must not if a lock was lost during the copy.
        source.check_still_locked()
        target.check_still_locked()
    return CopyResult(source=source.name, target=target.name, schema=HEAD, tables=tables)


def _check_different_files(source: WholeDatabase, target: WholeDatabase) -> None:
    if source.path is None or target.path is None:
        return
    if source.path == target.path or (target.path.exists() and source.path.samefile(target.path)):
        raise ConfigError(f"source and target are the same database, {target.name}: choose another target")


@contextmanager
def _remove_on_failure(target: WholeDatabase) -> Iterator[None]:
    """Remove the file that was made if the copy fails. No other process has it: we hold its lock."""
    try:
        yield
    # KeyboardInterrupt as well: a copy that is interrupted must leave no file behind.
    except BaseException:
        if target.is_new and target.path is not None:
            for suffix in ("", "-journal", "-wal", "-shm"):
                Path(f"{target.path}{suffix}").unlink(missing_ok=True)
        raise


def _check_empty(connection: sa.Connection, name: str) -> None:
    found = set(sa.inspect(connection).get_table_names())
    others = found - t.metadata.tables.keys() - {VERSION_TABLE.name}
    if others:
        raise Conflict(f"database {name} is not empty: it has a table {min(others)}; copy to a new database")
    for table in t.metadata.sorted_tables:
        if table.name in found and connection.execute(_select_content(table, sa.literal(1)).limit(1)).first():
            raise Conflict(f"database {name} is not empty: table {table.name} has rows; copy to a new database")


def _select_content(table: sa.Table, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Select the rows that were put there. Schema facts that migrations record are there from the start."""
    rows = sa.select(*columns).select_from(table) if columns else sa.select(table)
    return rows.where(t.meta.c.key != COMPATIBLE_SINCE) if table is t.meta else rows


def _check_source(source: WholeDatabase, *, upgrade_source: bool) -> bool:
    """Check the source, and return True if it needs an upgrade."""
    with source.read() as connection:
        if source.path is not None:
            # SQLite may return rows from a damaged page without an error, and the comparison would not notice.
            fault = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar_one()
            if fault != "ok":
                msg = f"database {source.name} is damaged: {' '.join(str(fault).split())}; restore a backup"
                raise StoreCorrupt(msg)
        revision = read_schema_revision(connection, source.name)
        if revision == HEAD:
            return False
        if revision not in _list_older_revisions():
            msg = f"database {source.name} has unknown schema {revision}: use the version of Forewarn that wrote it"
            raise StoreCorrupt(msg)
    if not upgrade_source:
        msg = (
            f"database {source.name} has schema {revision}, but only schema {HEAD} can be copied: add "
            "--upgrade-source, or run forewarn serve on it once; older versions of Forewarn then cannot open it"
        )
        raise Conflict(msg)
    return True


def _list_older_revisions() -> set[str]:
    """Return every revision before the newest."""
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - a fifth of a second to import, and seldom needed

    script = ScriptDirectory(str(MIGRATIONS))
    return {revision.revision for revision in script.walk_revisions()} - {HEAD}


class _CopyRun:
    """A run that copies every table, then compares every table."""

    def __init__(
        self,
        source: WholeDatabase,
        reading: sa.Connection,
        target: WholeDatabase,
        writing: sa.Connection,
        on_progress: Callable[[CopyProgress], None],
    ) -> None:
        self._source, self._reading = source, reading
        self._target, self._writing = target, writing
        self._on_progress = on_progress
        with source.wrap_errors():
            queries = [sa.select(sa.func.count()).select_from(_select_content(table).subquery()) for table in COPIED]
            counts = [reading.execute(query).scalar_one() for query in queries]
        self._rows = sum(counts)
        self._rows_done = 0

    def copy_and_compare(self) -> tuple[CopiedTable, ...]:
        copied = [self._copy_table(table) for table in COPIED]
        self._rows_done = 0
        for table, expected in zip(COPIED, copied, strict=True):
            self._compare_table(table, expected)
        return tuple(copied)

    def _copy_table(self, table: sa.Table) -> CopiedTable:
        checksum = _Checksum()
        names = [column.name for column in table.columns]
        with _open_pieces(self._source, self._reading, table, checksum) as pieces:
            for piece in pieces:
                self._insert_rows(table, [dict(zip(names, row, strict=True)) for row in piece])
                self._report_progress(table, len(piece), is_comparing=False)
        return checksum.to_copied_table(table)

    def _insert_rows(self, table: sa.Table, rows: list[dict[str, Any]]) -> None:
        with self._target.wrap_errors():
            try:
                self._writing.execute(sa.insert(table), rows)
            # For example a NUL character, which SQLite stores in a text and PostgreSQL refuses.
            except sa.exc.DataError as error:
                words = " ".join(str(error.orig).split())
                msg = f"a row of table {table.name} does not fit into database {self._target.name}: {words}"
                raise StoreCorrupt(msg) from error

    def _compare_table(self, table: sa.Table, expected: CopiedTable) -> None:
        checksum = _Checksum()
        with _open_pieces(self._target, self._writing, table, checksum) as pieces:
            for piece in pieces:
                self._report_progress(table, len(piece), is_comparing=True)
        found = checksum.to_copied_table(table)
        if found != expected:
            counts = f"{expected.rows} rows {expected.checksum}, not {found.rows} rows {found.checksum}"
            msg = f"table {table.name} reads differently in {self._target.name}: expected {counts}; nothing was copied"
            raise StoreCorrupt(msg)

    def _report_progress(self, table: sa.Table, count: int, *, is_comparing: bool) -> None:
        self._rows_done += count
        self._on_progress(
            CopyProgress(is_comparing=is_comparing, table=table.name, rows_done=self._rows_done, rows=self._rows)
        )


class _Checksum:
    """The sum of the checksums of rows: databases return rows in different orders."""

    def __init__(self) -> None:
        self._rows = 0
        self._sum = 0

    def add_rows(self, rows: list[tuple[Any, ...]]) -> None:
        self._rows += len(rows)
        for row in rows:
            digest = blake2b(msgspec.json.encode(row), digest_size=_CHECKSUM_BYTES).digest()
            # A sum, not an exclusive or, in which two equal rows would cancel each other out.
            self._sum += int.from_bytes(digest)

    def to_copied_table(self, table: sa.Table) -> CopiedTable:
        checksum = self._sum % (1 << 8 * _CHECKSUM_BYTES)
        return CopiedTable(name=table.name, rows=self._rows, checksum=f"{checksum:0{2 * _CHECKSUM_BYTES}x}")


@contextmanager
def _open_pieces(
    database: WholeDatabase, connection: sa.Connection, table: sa.Table, checksum: _Checksum
) -> Iterator[Iterator[list[tuple[Any, ...]]]]:
    """Yield the rows as values, each checked by the type of its column, in the database's preferred order."""
    with database.wrap_errors():
        rows = connection.execute(_select_content(table), execution_options={"yield_per": PIECE_ROWS})
        with closing(rows):
            yield _iter_pieces(database, table, rows, checksum)


def _iter_pieces(
    database: WholeDatabase, table: sa.Table, rows: sa.CursorResult[Any], checksum: _Checksum
) -> Iterator[list[tuple[Any, ...]]]:
    try:
        for piece in rows.partitions():
            values = [tuple(row) for row in piece]
            checksum.add_rows(values)
            yield values
    except _UNREADABLE as error:
        words = " ".join(str(error).split())
        msg = f"database {database.name} is damaged: a row of table {table.name} cannot be read: {words}"
        raise StoreCorrupt(msg) from error
