"""The store on SQLAlchemy Core, for SQLite and PostgreSQL.

SQLite runs in WAL mode with ``synchronous=FULL``: a transaction that has ended is on disk, and readers never wait for
the writer. On PostgreSQL a write transaction begins with an advisory lock, so that there too a decision sees every
earlier decision, and a read is a snapshot. Errors of a driver become ours here and nowhere else.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import structlog

from forewarn.clock import uptime_s
from forewarn.errors import StoreCorrupt, StoreUnavailable
from forewarn.store import tables as t
from forewarn.store.file_lock import FileLock
from forewarn.store.migrate import upgrade_schema
from forewarn.store.sharing import PostgresSharedStore, PostgresTransaction
from forewarn.store.sql_reader import SqlReader
from forewarn.store.sql_transaction import SqlTransaction

__all__ = [
    "ADVISORY_LOCK",
    "SqlStore",
    "create_postgresql_engine",
    "create_sqlite_engine",
    "load_json_as_text",
    "parse_store_url",
    "wrap_driver_errors",
]

_log = structlog.get_logger("forewarn.store")

_BUSY_TIMEOUT_MS = 5000
_CONNECT_TIMEOUT_S = 10
_KEEPALIVE_S = 2
_HALTED_MS_MIN = 1000
"""Minimum idle time-out of a transaction: a busy machine may pause one for a moment."""

_HALTED_AT_START_MS = 60_000
"""Idle time-out at the start: a machine is busiest then, and a starting service has no changes to commit."""

_PAGE_SIZE_BYTES = 4096
ADVISORY_LOCK = 0x666F72657761726E
"""Advisory lock of the writers on one PostgreSQL database: the word forewarn in ASCII."""

_BEGIN = (
    "SELECT set_config('idle_in_transaction_session_timeout', '{halted_ms}', true), "
    f"pg_advisory_xact_lock({ADVISORY_LOCK})"
)
"""A writer that is halted or cut off must not block the others; a reader blocks none."""

_DAMAGED = (
    "malformed",
    "Could not decode",
    "not a database",
    "disk image",
    "no such table",
    "no such column",
    "already exists",
)
_DAMAGED_SQLSTATES = frozenset({"42P01", "42703", "42P07", "XX001", "XX002"})
"""Undefined table, undefined column, duplicate table, corrupted data, corrupted index."""


class SqlStore:
    """Storage in one database.

    Args:
        url: ``sqlite:///forewarn.db``, ``sqlite://`` for one in memory, or ``postgresql://user@host/name``.
        size_bytes_max: Maximum size of a SQLite file; beyond it writes fail with `StoreUnavailable`.
        busy_timeout_ms: Time limit for a lock that another process holds; then `StoreUnavailable`.

    Raises:
        StoreUnavailable: The database cannot be reached, or another process serves it.
        StoreCorrupt: It is damaged or not ours.
    """

    def __init__(self, url: str, *, size_bytes_max: int | None = None, busy_timeout_ms: int = _BUSY_TIMEOUT_MS) -> None:
        self.url = parse_store_url(url)
        self._is_sqlite = self.url.get_backend_name() == "sqlite"
        self._resources = ExitStack()
        self._write_lock = threading.Lock()
        self._shared_store: PostgresSharedStore | None = None
        self._damage: str | None = None
        self._is_open = False
        self._check_lock = threading.Lock()
        self._is_check_over = False
        self._interrupt: Callable[[], None] = lambda: None
        self._tables_to_check = sorted(t.metadata.tables)
        self._longer_spans_s: dict[str, float] = {}
        self._idle_timeout_ms = max(busy_timeout_ms // 2, _HALTED_MS_MIN)
        try:
            self._open_database(size_bytes_max, busy_timeout_ms)
        # No caller can close a store whose constructor failed, and its file would stay locked.
        except BaseException:
            self.close()
            raise
        self._is_open = True

    def _open_database(self, size_bytes_max: int | None, busy_timeout_ms: int) -> None:
        url = self.url
        if self._is_sqlite:
            is_memory = url.database in (None, "", ":memory:")
            if not is_memory:
                lock = FileLock(Path(os.path.realpath(str(url.database))))
                self._resources.callback(lock.release)
                lock.acquire()
            # A second connection to memory would open a second database.
            pool = {"poolclass": sa.StaticPool} if is_memory else {"pool_size": 1}
            self._writer = create_sqlite_engine(url, busy_timeout_ms, size_bytes_max, is_writer=True, **pool)
            self._resources.callback(self._writer.dispose)
            self._reader = self._writer if is_memory else create_sqlite_engine(url, busy_timeout_ms, None, pool_size=4)
            self._resources.callback(self._reader.dispose)
        else:
            self._writer = create_postgresql_engine(url, busy_timeout_ms)
            self._resources.callback(self._writer.dispose)
            # All statements of a read see one snapshot; at PostgreSQL's default level, each would see a later one.
            self._reader = self._writer.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            self._shared_store = PostgresSharedStore(
                self._writer, self.write, lambda: wrap_driver_errors(str(url.database))
            )
            self._resources.callback(self._shared_store.close)
        with self._begin_transaction(idle_timeout_ms=_HALTED_AT_START_MS) as connection:
            # Under the writers' lock: of replicas that start together, one upgrades the schema and the others wait.
            upgrade_schema(connection)

    @contextmanager
    def _begin_transaction(self, *, idle_timeout_ms: int | None = None) -> Iterator[sa.Connection]:
        # Writers of this process queue here: at the database each would occupy a connection, and on SQLite it would
        # poll for the lock and might starve.
        with self._write_lock, self._watch_for_damage(), self._writer.begin() as connection:
            if not self._is_sqlite:
                connection.exec_driver_sql(_BEGIN.format(halted_ms=idle_timeout_ms or self._idle_timeout_ms))
            yield connection

    @contextmanager
    def write(self) -> Iterator[SqlTransaction]:
        with self._begin_transaction() as connection:
            transaction = SqlTransaction(connection) if self._is_sqlite else PostgresTransaction(connection)
            yield transaction
            # Not after an exception: the counter and the heads are rolled back with everything else.
            transaction.flush()

    @property
    def shared(self) -> PostgresSharedStore | None:
        return self._shared_store

    @contextmanager
    def read(self) -> Iterator[SqlReader]:
        if self._reader is self._writer:  # in memory there is one connection for all
            with self._begin_transaction() as connection:
                yield SqlReader(connection)
            return
        with self._watch_for_damage(), self._reader.connect() as connection:
            yield SqlReader(connection)

    @contextmanager
    def _watch_for_damage(self) -> Iterator[None]:
        """Turn errors into ours, and remember damage: a database that was damaged once is not to be relied on."""
        try:
            with wrap_driver_errors(str(self.url.database)):
                yield
        except StoreCorrupt as error:
            self._record_damage(error.message)
            raise

    def _record_damage(self, words: str) -> None:
        if self._damage is None and self._is_open:  # a store that fails to open reports it in its error
            self._damage = words
            _log.error(
                "the database is damaged: restore it and restart this service, which is not ready until then",
                error=words,
            )

    @property
    def damage(self) -> str | None:
        return self._damage

    def check_pages(self, span_s: float) -> None:
        """Check the tables of a SQLite file in turn; PostgreSQL checks its own pages."""
        if not self._is_sqlite or self._reader is self._writer:
            return
        until_s = uptime_s() + span_s
        count = len(t.metadata.tables)
        for _ in range(count):
            if uptime_s() >= until_s or self._is_check_over:
                return
            table = self._tables_to_check[0]
            allowed_s = max(until_s - uptime_s(), self._longer_spans_s.get(table, 0.0))
            with self._watch_for_damage(), self._reader.connect() as connection:
                is_complete = self._check_table(connection, table, allowed_s)
            # A check of a table cannot be continued, only begun again: without more time it would never be complete.
            if not is_complete:
                self._longer_spans_s[table] = 2 * allowed_s
            # Even if it was interrupted: otherwise a large table would keep the others from their turn.
            self._tables_to_check.append(self._tables_to_check.pop(0))

    def stop_check(self) -> None:
        """End a check on another thread at once: a service that must stop does not wait for it."""
        with self._check_lock:
            self._is_check_over = True
            self._interrupt()

    def _check_table(self, connection: sa.Connection, table: str, span_s: float) -> bool:
        """Check one table; return False if it was interrupted after `span_s`."""
        driver: Any = connection.connection.driver_connection
        timer = threading.Timer(max(span_s, 0.0), driver.interrupt)
        timer.daemon = True
        with self._check_lock:
            # Under the lock: either the check was ended before this, or ending it interrupts this connection.
            if self._is_check_over:
                return False
            self._interrupt = driver.interrupt
        timer.start()
        try:
            # It does not compare indexes with their tables, which would take most of the time.
            [words] = connection.exec_driver_sql(f"PRAGMA quick_check('{table}')").fetchmany(1)[0]
        except sa.exc.OperationalError as error:
            if "interrupted" not in str(error.orig):
                raise
            return False
        finally:
            # A later interrupt would hit another statement: the connection goes back to the pool.
            with self._check_lock:
                self._interrupt = lambda: None
            timer.cancel()
            timer.join()
        if words != "ok":
            self._record_damage(f"database {self.url.database} is damaged: {' '.join(words.split())}")
        return True

    def close(self) -> None:
        # The lock of the file last: see `FileLock.release`.
        self._resources.close()


def parse_store_url(url: str) -> sa.URL:
    """Return the URL with the driver to use for it.

    Raises:
        StoreUnavailable: It is no URL, or its database is not supported.
    """
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError) as error:
        msg = "invalid database URL: expected sqlite:///FILE or postgresql://USER@HOST/NAME"
        raise StoreUnavailable(msg) from error
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        return parsed.set(drivername="sqlite+pysqlite")
    if backend == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    msg = f"database {backend!r} is not supported: expected sqlite:///FILE or postgresql://USER@HOST/NAME"
    raise StoreUnavailable(msg)


def create_sqlite_engine(
    url: sa.URL,
    busy_timeout_ms: int,
    size_bytes_max: int | None,
    *,
    is_writer: bool = False,
    **pool: Any,  # noqa: ANN401 - options of the pool
) -> sa.Engine:
    """Create an engine with one connection for writing, or several for reading, which WAL lets run beside it."""
    # The pool lends a connection to one thread at a time, but not always to the thread that opened it.
    engine = sa.create_engine(url, connect_args={"check_same_thread": False, "timeout": busy_timeout_ms / 1000}, **pool)

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:  # noqa: ANN401 - the driver's own connection
        connection.isolation_level = None  # the driver must not begin transactions on its own: see `begin`
        cursor = connection.cursor()
        if is_writer:
            # SQLite stores this mode in the file, so connections for reading need not set it.
            cursor.execute("PRAGMA journal_mode=WAL")
            # With NORMAL, a power failure could undo the latest commits, and approvals with them (invariant 5).
            cursor.execute("PRAGMA synchronous=FULL")
        if size_bytes_max is not None:
            cursor.execute(f"PRAGMA max_page_count={max(1, size_bytes_max // _PAGE_SIZE_BYTES)}")
        cursor.close()

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # IMMEDIATE takes the write lock now: a transaction that reads first could fail when it comes to write.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")

    return engine


def create_postgresql_engine(url: sa.URL, busy_timeout_ms: int) -> sa.Engine:
    """Create connections to PostgreSQL that neither hang nor block others."""
    options = f"-c lock_timeout={busy_timeout_ms}"
    defaults = {
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "application_name": "forewarn",
        "options": options,
        # With these three, a server that has vanished is noticed after about 5 s; the kernel's default is two hours.
        "keepalives_idle": _KEEPALIVE_S,
        "keepalives_interval": 1,
        "keepalives_count": 3,
        "tcp_user_timeout": busy_timeout_ms,
    }
    # What the URL says overrides our defaults.
    connect_args = {name: value for name, value in defaults.items() if name not in url.query}
    # Checked before use: a connection that the server has ended, as by a restart, must not fail the next command.
    engine = sa.create_engine(url, pool_size=4, pool_pre_ping=True, connect_args=connect_args)
    load_json_as_text(engine)
    return engine


def load_json_as_text(engine: sa.Engine) -> None:
    """Have connections to PostgreSQL return JSON as text, as SQLite does: the types of `tables` decode it."""
    from psycopg.types.string import TextLoader  # noqa: PLC0415 - only for PostgreSQL is it installed

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:  # noqa: ANN401 - the driver's own connection
        connection.adapters.register_loader("json", TextLoader)


@contextmanager
def wrap_driver_errors(name: str) -> Iterator[None]:
    """Turn errors of a driver into ours, in one line."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        words = " ".join(str(error.orig).split())
        if _is_damage(error.orig, words):
            raise StoreCorrupt(f"database {name} is damaged or not a Forewarn database: {words}") from error
        raise StoreUnavailable(f"database {name} cannot be used now: {words}") from error
    except sa.exc.SQLAlchemyError as error:
        raise StoreUnavailable(f"database {name} cannot be used now: {' '.join(str(error).split())}") from error


def _is_damage(error: object, words: str) -> bool:
    # PostgreSQL's errors have a code; SQLite's differ only in their text.
    sqlstate = getattr(error, "sqlstate", None)
    return sqlstate in _DAMAGED_SQLSTATES if sqlstate is not None else any(sign in words for sign in _DAMAGED)
