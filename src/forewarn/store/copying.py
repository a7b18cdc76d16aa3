"""Moving everything from one database to another: from a SQLite file to PostgreSQL, or back.

All rows go over in one transaction of the target, out of one view of the source. They are read back and compared
before that transaction is committed. So the target has everything, or it is as it was.

Nobody may serve either of them meanwhile: what is approved during the copy would be missing in it. On SQLite the lock
of the file keeps others away. On PostgreSQL it is the lock that writers take, and there no copy begins while a replica
holds the lease or a service is connected.

The schema of the source is left alone unless its owner says otherwise. The source is the way back when a move goes
wrong, and once it has the newest schema, the Forewarn that wrote it opens it no more. Serving it once brings it up to
date too, but that also carries out what is due. The target gets the newest schema in the transaction of the rows.

Leases are not copied: they say who serves a database, and the new one is served by nobody yet.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from forewarn.errors import ConfigError, Conflict, StoreCorrupt, StoreUnavailable
from forewarn.store import tables as t
from forewarn.store.lock import FileLock
from forewarn.store.migrate import HEAD, upgrade
from forewarn.store.sql import ADVISORY_LOCK, postgresql_engine, sqlite_engine, with_driver, wrapped

__all__ = [
    "COPIED",
    "PIECE_ROWS",
    "Copied",
    "CopiedTable",
    "Description",
    "Holding",
    "Progress",
    "copy_database",
    "database_url",
    "describe_database",
    "shown_url",
]

PIECE_ROWS = 200
"""Most rows that are in memory at a time."""

COPIED = tuple(table for table in t.metadata.sorted_tables if table is not t.lease)
"""The tables that are copied, in order."""

_BUSY_TIMEOUT_MS = 5000
_LEAVING_TRIES = 40
_LEAVING_PAUSE_S = 0.05
"""A service that was just stopped may still be connected for a moment."""

_SESSION = "forewarn database"
"""How our own connections to PostgreSQL are named; those of a service are named ``forewarn``."""

_VERSION_TABLE = sa.table("alembic_version", sa.column("version_num"))
_CHECKSUM_BYTES = 16
_UNREADABLE = (ArithmeticError, LookupError, TypeError, ValueError)
"""What a value raises that is none of its column's type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a copy is.

    Attributes:
        is_comparing: Whether rows are compared by now; before, they are copied.
        table: Which table is under way.
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
        checksum: Of its rows, whatever their order; 32 hexadecimal digits, the same for the same rows on any database.
    """

    name: str
    rows: int
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A copy that was committed.

    Attributes:
        source: Its URL without a password.
        target: As `source`.
        schema: The revision that both have.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A lease as it stands in a database.

    Attributes:
        is_over: Whether its time is over, by the database's clock.
    """

    name: str
    holder: str
    term: int
    expires_at: datetime
    is_over: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a database holds.

    Attributes:
        url: Without a password.
        schema: The revision of its schema; `migrate.HEAD` is the newest.
        clock: ``real`` or ``virtual``; None while nobody has served it.
        counter: The number of the last change; 0 if there was none.
        size_bytes: What it takes up on the disk of its server, indexes included.
        leases: Who carries out what is due; none in a SQLite file, which only one process can have.
        rows: How many rows each table has; tables that an older schema lacks are left out.
    """

    url: str
    schema: str
    clock: str | None
    counter: int
    size_bytes: int
    leases: tuple[Holding, ...]
    rows: dict[str, int]


# URLs


def database_url(text: str) -> sa.URL:
    """The URL of a database that outlives its process.

    Raises:
        ConfigError: It is none, or is not written as expected.
    """
    try:
        url = with_driver(text)
    except (StoreUnavailable, ValueError) as error:  # a port that is no number is a ValueError
        msg = "the database URL cannot be read: expected sqlite:///FILE or postgresql://USER@HOST/NAME"
        raise ConfigError(msg) from error
    if url.get_backend_name() == "sqlite" and url.database in {None, "", ":memory:"}:
        msg = "a database in memory is gone with its process: expected sqlite:///FILE"
        raise ConfigError(msg)
    if "@" in (url.host or ""):  # the rest of the password: whoever says that the host is unknown would print it
        msg = "the password in the database URL has an @ in it: write it as %40"
        raise ConfigError(msg)
    return url


def shown_url(url: sa.URL) -> str:
    """The URL as it may be printed: with stars for passwords, and without the driver."""
    query = {name: "***" if "password" in name.lower() else value for name, value in url.query.items()}
    return url.set(drivername=url.get_backend_name(), query=query).render_as_string(hide_password=True)


class _Database:
    """One of the two databases.

    Attributes:
        name: Its URL, as it may be printed.
        path: The file, if it is SQLite.
    """

    def __init__(self, url: sa.URL) -> None:
        self.name = shown_url(url)
        self.path = Path(os.path.realpath(str(url.database))) if url.get_backend_name() == "sqlite" else None
        self._url = url
        self._guard: sa.Connection | None = None

    def check_exists(self) -> None:
        """SQLite makes a file that is not there, so look before it is asked.

        Raises:
            ConfigError: There is no such file.
        """
        if self.path is not None and not self.path.is_file():
            msg = f"there is no database {self.path}"
            raise ConfigError(msg)

    @contextmanager
    def wrapped(self) -> Iterator[None]:
        """Turn what a driver raises into our errors."""
        with wrapped(self.name):
            yield

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """One view of it, however long it takes."""
        with self._engine() as engine, self.wrapped(), engine.connect() as connection:
            self._stay(connection)
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction, however long it takes: committed at the end, rolled back on an exception."""
        with self._engine(is_writer=True) as engine, self.wrapped(), engine.begin() as connection:
            self._stay(connection)
            yield connection

    def _stay(self, connection: sa.Connection) -> None:
        """While one of the two databases works, the other one is idle; it must not break off."""
        if self.path is None:
            connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")

    @contextmanager
    def _engine(self, *, is_writer: bool = False) -> Iterator[sa.Engine]:
        engine = self._sqlite(is_writer=is_writer) if self.path is not None else self._postgresql(is_writer=is_writer)
        try:
            yield engine
        finally:
            engine.dispose()

    def _sqlite(self, *, is_writer: bool) -> sa.Engine:
        engine = sqlite_engine(self._url, _BUSY_TIMEOUT_MS, None, is_writer=is_writer, poolclass=sa.NullPool)
        if is_writer:
            # With a write-ahead log every row would be on the disk twice until the end. Whoever serves it turns it on.
            sa.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA journal_mode=DELETE"))
        return engine

    def _postgresql(self, *, is_writer: bool) -> sa.Engine:
        url = self._url.update_query_dict({"application_name": _SESSION} | dict(self._url.query))
        try:
            engine = postgresql_engine(url, _BUSY_TIMEOUT_MS)
        except ModuleNotFoundError as error:
            msg = f"PostgreSQL needs a library ({error.name} is missing): pip install 'forewarn[postgresql]'"
            raise ConfigError(msg) from error
        if is_writer:
            return engine
        return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    # Keeping others away

    @contextmanager
    def alone(self, mark: int) -> Iterator[None]:
        """Keep every other Forewarn off it for as long as the block lasts.

        Args:
            mark: A number that is locked as well; two names of one database are found out by it.

        Raises:
            StoreUnavailable: Another process has it.
            ConfigError: This process has locked it with the same mark.
        """
        if self.path is not None:
            lock = FileLock(Path(f"{self.path}.lock"))
            lock.acquire()
            try:
                yield
            finally:
                lock.release()
            return
        # A connection of its own: the view of a transaction that waits for a lock is from before it got it.
        with self.write() as self._guard:
            if not self._try_lock(mark):
                msg = f"{self.name} is the source as well: choose another database to copy to"
                raise ConfigError(msg)
            self._check_lease()
            self._wait_alone()
            yield
            self.check_alone()

    def check_alone(self) -> None:
        """See that the lock is still held.

        Raises:
            StoreUnavailable: The connection that held it is lost.
        """
        if self._guard is not None:
            with self.wrapped():
                self._guard.exec_driver_sql("SELECT 1")

    def _try_lock(self, number: int) -> bool:
        assert self._guard is not None  # noqa: S101 - set by `alone`
        return bool(self._guard.exec_driver_sql(f"SELECT pg_try_advisory_xact_lock({number})").scalar())

    def _check_lease(self) -> None:
        assert self._guard is not None  # noqa: S101 - set by `alone`
        for lease in _leases(self._guard):
            if not lease.is_over:
                until = f"{lease.expires_at:%Y-%m-%d %H:%M:%SZ}"
                msg = (
                    f"database {self.name} is served: {lease.holder} holds it until {until}; stop every forewarn serve"
                )
                raise StoreUnavailable(msg)

    def _wait_alone(self) -> None:
        for _ in range(_LEAVING_TRIES):
            if self._try_lock(ADVISORY_LOCK) and not self._count_services():
                return
            time.sleep(_LEAVING_PAUSE_S)
        msg = f"database {self.name} is in use by another forewarn: stop it first"
        raise StoreUnavailable(msg)

    def _count_services(self) -> int:
        assert self._guard is not None  # noqa: S101 - set by `alone`
        self._guard.exec_driver_sql("SELECT pg_stat_clear_snapshot()")
        here = "datname = current_database() AND application_name = 'forewarn' AND pid <> pg_backend_pid()"
        count = self._guard.exec_driver_sql(f"SELECT count(*) FROM pg_stat_activity WHERE {here}")  # noqa: S608 - no input
        return int(count.scalar_one())


# Copying


def copy_database(
    source_url: str, target_url: str, *, upgrade_source: bool = False, tell: Callable[[Progress], None] | None = None
) -> Copied:
    """Copy everything from one database to another one that is empty.

    At most `PIECE_ROWS` rows are in memory at a time. Breaking it off, by an exception in `tell` or by killing the
    process, leaves the target as it was. It may be repeated then.

    Args:
        source_url: What is copied. Only read, unless it is upgraded.
        target_url: Where it is copied to: without rows, with the schema or without; a SQLite file may be missing.
        upgrade_source: Bring a source with an older schema to the newest first, instead of refusing it. The Forewarn
            that wrote it opens it no more then.
        tell: Called after each piece.

    Raises:
        ConfigError: A URL cannot be used, there is no source, or both are the same database.
        Conflict: The target holds something, or the source has an older schema.
        StoreCorrupt: The source is damaged, newer or not Forewarn's; or a row reads differently in the target.
        StoreUnavailable: One of them is served, away or full.
    """
    source, target = _Database(database_url(source_url)), _Database(database_url(target_url))
    source.check_exists()
    _check_files(source, target)
    mark = secrets.randbits(62)
    with source.alone(mark), target.alone(mark), _unmade(target), target.write() as writing:
        _check_empty(writing, target.name)
        is_older = _check_source(source, upgrade_source=upgrade_source)
        with target.wrapped():
            upgrade(writing)
        if is_older:
            with source.write() as connection:
                upgrade(connection)
        with source.read() as reading:
            run = _Run(source, reading, target, writing, tell or (lambda _: None))
            tables = run.run()
        source.check_alone()
        target.check_alone()
    return Copied(source=source.name, target=target.name, schema=HEAD, tables=tables)


def _check_files(source: _Database, target: _Database) -> None:
    if source.path is None or target.path is None:
        return
    if source.path == target.path or (target.path.exists() and source.path.samefile(target.path)):
        msg = f"{target.name} is the source as well: choose another database to copy to"
        raise ConfigError(msg)


@contextmanager
def _unmade(target: _Database) -> Iterator[None]:
    """Remove a file that SQLite made for nothing. Nobody else has it: its lock is ours."""
    is_new = target.path is not None and not target.path.exists()
    try:
        yield
    except BaseException:
        if is_new and target.path is not None:
            for suffix in ("", "-journal", "-wal", "-shm"):
                Path(f"{target.path}{suffix}").unlink(missing_ok=True)
        raise


def _check_empty(connection: sa.Connection, name: str) -> None:
    found = set(sa.inspect(connection).get_table_names())
    others = found - t.metadata.tables.keys() - {_VERSION_TABLE.name}
    if others:
        msg = f"database {name} is not empty, it has a table {min(others)}: choose a new one to copy to"
        raise Conflict(msg)
    for table in t.metadata.sorted_tables:
        if table.name in found and connection.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first():
            msg = f"database {name} is not empty, its table {table.name} has rows: choose a new one to copy to"
            raise Conflict(msg)


def _check_source(source: _Database, *, upgrade_source: bool) -> bool:
    """Whether it is to be upgraded."""
    with source.read() as connection:
        if source.path is not None:
            fault = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar_one()
            if fault != "ok":
                msg = f"database {source.name} is damaged: {' '.join(str(fault).split())}; restore a backup"
                raise StoreCorrupt(msg)
        revision = _revision(connection, source.name)
        if revision == HEAD:
            return False
        if revision not in _older():
            msg = f"database {source.name} has schema {revision}, unknown here: use the Forewarn that wrote it"
            raise StoreCorrupt(msg)
    if not upgrade_source:
        msg = (
            f"database {source.name} has schema {revision}, and only {HEAD} is copied: say --upgrade-source, "
            "or start forewarn serve with it once; an older Forewarn opens it no more then"
        )
        raise Conflict(msg)
    return True


def _revision(connection: sa.Connection, name: str) -> str:
    if not sa.inspect(connection).has_table(_VERSION_TABLE.name):
        msg = f"database {name} is not Forewarn's: it has no schema of ours"
        raise StoreCorrupt(msg)
    return str(connection.execute(sa.select(_VERSION_TABLE.c.version_num)).scalar())


def _older() -> set[str]:
    """Every revision that there was before the newest."""
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - a fifth of a second to import, and seldom needed

    script = ScriptDirectory(str(Path(__file__).parent / "migrations"))
    return {revision.revision for revision in script.walk_revisions()} - {HEAD}


class _Run:
    """Copies every table, then compares every table."""

    def __init__(
        self,
        source: _Database,
        reading: sa.Connection,
        target: _Database,
        writing: sa.Connection,
        tell: Callable[[Progress], None],
    ) -> None:
        self._source, self._reading = source, reading
        self._target, self._writing = target, writing
        self._tell = tell
        with source.wrapped():
            counts = [reading.execute(sa.select(sa.func.count()).select_from(table)).scalar_one() for table in COPIED]
        self._rows = sum(counts)
        self._done = 0

    def run(self) -> tuple[CopiedTable, ...]:
        copied = [self._copy(table) for table in COPIED]
        self._done = 0
        for table, expected in zip(COPIED, copied, strict=True):
            self._compare(table, expected)
        return tuple(copied)

    def _copy(self, table: sa.Table) -> CopiedTable:
        checksum = _Checksum()
        names = [column.name for column in table.columns]
        with _pieces(self._source, self._reading, table, checksum) as pieces:
            for piece in pieces:
                self._insert(table, [dict(zip(names, row, strict=True)) for row in piece])
                self._progress(table, len(piece), is_comparing=False)
        return checksum.of(table)

    def _insert(self, table: sa.Table, rows: list[dict[str, Any]]) -> None:
        with self._target.wrapped():
            try:
                self._writing.execute(sa.insert(table), rows)
            except sa.exc.DataError as error:
                words = " ".join(str(error.orig).split())
                msg = f"a row of table {table.name} does not fit into database {self._target.name}: {words}"
                raise StoreCorrupt(msg) from error

    def _compare(self, table: sa.Table, expected: CopiedTable) -> None:
        checksum = _Checksum()
        with _pieces(self._target, self._writing, table, checksum) as pieces:
            for piece in pieces:
                self._progress(table, len(piece), is_comparing=True)
        found = checksum.of(table)
        if found != expected:
            counts = f"{expected.rows} rows {expected.checksum}, not {found.rows} rows {found.checksum}"
            msg = f"table {table.name} reads differently in {self._target.name}: expected {counts}; nothing was kept"
            raise StoreCorrupt(msg)

    def _progress(self, table: sa.Table, count: int, *, is_comparing: bool) -> None:
        self._done += count
        self._tell(Progress(is_comparing=is_comparing, table=table.name, rows_done=self._done, rows=self._rows))


class _Checksum:
    """The sum of the checksums of rows: databases hand rows out in different orders."""

    def __init__(self) -> None:
        self._rows = 0
        self._sum = 0

    def add(self, rows: list[tuple[Any, ...]]) -> None:
        self._rows += len(rows)
        for row in rows:
            digest = blake2b(msgspec.json.encode(row), digest_size=_CHECKSUM_BYTES).digest()
            self._sum += int.from_bytes(digest)

    def of(self, table: sa.Table) -> CopiedTable:
        checksum = self._sum % (1 << 8 * _CHECKSUM_BYTES)
        return CopiedTable(name=table.name, rows=self._rows, checksum=f"{checksum:0{2 * _CHECKSUM_BYTES}x}")


@contextmanager
def _pieces(
    database: _Database, connection: sa.Connection, table: sa.Table, checksum: _Checksum
) -> Iterator[Iterator[list[tuple[Any, ...]]]]:
    """The rows as values, each checked by the type of its column, in whichever order the database likes best."""
    with database.wrapped():
        rows = connection.execute(sa.select(table), execution_options={"yield_per": PIECE_ROWS})
        with closing(rows):
            yield _read(database, table, rows, checksum)


def _read(
    database: _Database, table: sa.Table, rows: sa.CursorResult[Any], checksum: _Checksum
) -> Iterator[list[tuple[Any, ...]]]:
    try:
        for piece in rows.partitions():
            values = [tuple(row) for row in piece]
            checksum.add(values)
            yield values
    except _UNREADABLE as error:
        words = " ".join(str(error).split())
        msg = f"database {database.name} is damaged: a row of table {table.name} cannot be read: {words}"
        raise StoreCorrupt(msg) from error


# Looking


def describe_database(url: str) -> Description:
    """What a database holds. It may be served meanwhile; nothing is locked or changed.

    Raises:
        ConfigError: The URL cannot be used, or there is no such file.
        StoreCorrupt: It is damaged or not Forewarn's.
        StoreUnavailable: It is away.
    """
    database = _Database(database_url(url))
    database.check_exists()
    with database.read() as connection:
        schema = _revision(connection, database.name)
        found = set(sa.inspect(connection).get_table_names())
        tables = [table for table in t.metadata.sorted_tables if table.name in found]
        rows = {x.name: connection.execute(sa.select(sa.func.count()).select_from(x)).scalar_one() for x in tables}
        meta = {row.key: row.value for row in connection.execute(sa.select(t.meta))}
        return Description(
            url=database.name,
            schema=schema,
            clock=meta.get("clock"),
            counter=int(meta.get("sequence") or 0),
            size_bytes=_size_bytes(database, connection),
            leases=tuple(_leases(connection)) if database.path is None else (),
            rows=rows,
        )


def _leases(connection: sa.Connection) -> list[Holding]:
    if not sa.inspect(connection).has_table(t.lease.name):
        return []
    now = connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one().astimezone(UTC)
    rows = connection.execute(sa.select(t.lease).order_by(t.lease.c.name)).mappings()
    return [Holding(**row, is_over=row["expires_at"] <= now) for row in rows]


def _size_bytes(database: _Database, connection: sa.Connection) -> int:
    if database.path is None:
        return int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())
    files = [Path(f"{database.path}{suffix}") for suffix in ("", "-wal")]
    return sum(file.stat().st_size for file in files if file.exists())
