"""A whole database, from outside of a service: one view of it, one transaction on it, and exclusive access to it.

`forewarn.store.copying` copies one to another, `forewarn.store.describing` describes one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from forewarn.errors import ConfigError, StoreCorrupt, StoreUnavailable
from forewarn.store import tables as t
from forewarn.store.file_lock import FileLock
from forewarn.store.lease import Lease
from forewarn.store.sharing import read_clock
from forewarn.store.sql import (
    ADVISORY_LOCK,
    create_postgresql_engine,
    create_sqlite_engine,
    parse_store_url,
    wrap_driver_errors,
)

__all__ = [
    "VERSION_TABLE",
    "WholeDatabase",
    "format_url",
    "parse_database_url",
    "read_leases",
    "read_schema_revision",
]

VERSION_TABLE = sa.table("alembic_version", sa.column("version_num"))
"""Table that holds the schema's revision."""

_BUSY_TIMEOUT_MS = 5000
_LEAVING_TRIES = 40
_LEAVING_PAUSE_S = 0.05
"""Pause between tries; a service that was just stopped may still be connected for a moment."""

_SESSION = "forewarn database"
"""Name of our own connections to PostgreSQL; those of a service are named ``forewarn``."""


# URLs


def parse_database_url(text: str) -> sa.URL:
    """Parse the URL of a database that outlives its process.

    Raises:
        ConfigError: It is no such URL, or is not written as expected.
    """
    try:
        url = parse_store_url(text)
    except (StoreUnavailable, ValueError) as error:  # ValueError: the port is not a number
        raise ConfigError("invalid database URL: expected sqlite:///FILE or postgresql://USER@HOST/NAME") from error
    if url.get_backend_name() == "sqlite" and url.database in {None, "", ":memory:"}:
        raise ConfigError("an in-memory database does not outlive its process: expected sqlite:///FILE")
    if "@" in (url.host or ""):  # the rest of the password: an error about an unknown host would print it
        raise ConfigError("the password in the database URL contains @: write it as %40")
    return url


def format_url(url: sa.URL) -> str:
    """Return the URL in printable form: with stars for passwords, and without the driver."""
    query = {name: "***" if "password" in name.lower() else value for name, value in url.query.items()}
    return url.set(drivername=url.get_backend_name(), query=query).render_as_string(hide_password=True)


class WholeDatabase:
    """A database to inspect or copy.

    Args:
        url: Result of `parse_database_url`.

    Attributes:
        name: Printable URL.
        path: Path of the SQLite file; None for PostgreSQL.
        is_new: True if the file did not exist before `lock_exclusively`.
    """

    def __init__(self, url: sa.URL) -> None:
        self.name = format_url(url)
        # Lock and journal belong to the file itself, whatever link leads to it.
        self.path = Path(os.path.realpath(str(url.database))) if url.get_backend_name() == "sqlite" else None
        self.is_new = False
        self._url = url
        self._lock_connection: sa.Connection | None = None

    def check_exists(self) -> None:
        """Check that a SQLite file exists, before SQLite creates it.

        Raises:
            ConfigError: There is no such file.
        """
        if self.path is not None and not self.path.is_file():
            raise ConfigError(f"database {self.path} does not exist")

    @contextmanager
    def wrap_errors(self) -> Iterator[None]:
        """Turn errors of a driver into ours."""
        with wrap_driver_errors(self.name):
            yield

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Open one view of it, however long it takes."""
        with self._open_engine() as engine, self.wrap_errors(), engine.connect() as connection:
            self._disable_idle_timeout(connection)
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Open a transaction, however long it takes: committed at the end, rolled back on an exception."""
        with self._open_engine(is_writer=True) as engine, self.wrap_errors(), engine.begin() as connection:
            self._disable_idle_timeout(connection)
            yield connection

    def _disable_idle_timeout(self, connection: sa.Connection) -> None:
        """Disable the idle time-out: while one of the two databases works, the other one is idle."""
        if self.path is None:
            connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")

    @contextmanager
    def _open_engine(self, *, is_writer: bool = False) -> Iterator[sa.Engine]:
        engine = (
            self._create_sqlite_engine(is_writer=is_writer)
            if self.path is not None
            else self._create_postgresql_engine(is_writer=is_writer)
        )
        try:
            yield engine
        finally:
            engine.dispose()

    def _create_sqlite_engine(self, *, is_writer: bool) -> sa.Engine:
        engine = create_sqlite_engine(self._url, _BUSY_TIMEOUT_MS, None, is_writer=is_writer, poolclass=sa.NullPool)
        if is_writer:
            # With a write-ahead log every row would be on disk twice until the end. A service turns it on again.
            sa.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA journal_mode=DELETE"))
        return engine

    def _create_postgresql_engine(self, *, is_writer: bool) -> sa.Engine:
        url = self._url.update_query_dict({"application_name": _SESSION} | dict(self._url.query))
        try:
            engine = create_postgresql_engine(url, _BUSY_TIMEOUT_MS)
        except ModuleNotFoundError as error:
            msg = f"cannot use PostgreSQL: library {error.name} is missing; run pip install 'forewarn[postgresql]'"
            raise ConfigError(msg) from error
        if is_writer:
            return engine
        return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    # Keeping others away

    @contextmanager
    def lock_exclusively(self, mark: int) -> Iterator[None]:
        """Keep every other Forewarn off it for as long as the block lasts.

        Args:
            mark: Number that is locked as well; it reveals two names of one database.

        Raises:
            StoreUnavailable: Another process has it.
            ConfigError: This process has locked it with the same mark.
        """
        if self.path is not None:
            lock = FileLock(self.path)
            lock.acquire()
            self.is_new = lock.has_made_file
            try:
                yield
            finally:
                lock.release()
            return
        # On a separate connection: a transaction that waits for a lock has a view from before it got the lock.
        with self.write() as connection:
            self._lock_connection = connection
            # First: if source and target are one database, the checks below would find only this copy in the way.
            if not _try_lock(connection, mark):
                raise ConfigError(f"source and target are the same database, {self.name}: choose another target")
            self._check_lease(connection)
            self._wait_until_unused(connection)
            yield
            self.check_still_locked()

    def check_still_locked(self) -> None:
        """Check that the lock is still held.

        Raises:
            StoreUnavailable: The connection that held it is lost.
        """
        if self._lock_connection is not None:
            with self.wrap_errors():
                self._lock_connection.exec_driver_sql("SELECT 1")

    def _check_lease(self, connection: sa.Connection) -> None:
        # A replica that was cut off has no connection here, but may come back while it holds the lease.
        for lease in read_leases(connection).values():
            if not lease.is_over:
                until = f"{lease.expires_at:%Y-%m-%d %H:%M:%SZ}"
                msg = (
                    f"database {self.name} is served: {lease.holder} holds its lease until {until}; stop every replica"
                )
                raise StoreUnavailable(msg)

    def _wait_until_unused(self, connection: sa.Connection) -> None:
        for _ in range(_LEAVING_TRIES):
            if _try_lock(connection, ADVISORY_LOCK) and not _count_services(connection):
                return
            time.sleep(_LEAVING_PAUSE_S)
        raise StoreUnavailable(f"database {self.name} is in use by another forewarn: stop it first")


def _try_lock(connection: sa.Connection, number: int) -> bool:
    return bool(connection.exec_driver_sql(f"SELECT pg_try_advisory_xact_lock({number})").scalar())


def _count_services(connection: sa.Connection) -> int:
    # A transaction keeps its first view of pg_stat_activity until this.
    connection.exec_driver_sql("SELECT pg_stat_clear_snapshot()")
    here = "datname = current_database() AND application_name = 'forewarn' AND pid <> pg_backend_pid()"
    count = connection.exec_driver_sql(f"SELECT count(*) FROM pg_stat_activity WHERE {here}")  # noqa: S608 - no input
    return int(count.scalar_one())


# Contents


def read_schema_revision(connection: sa.Connection, name: str) -> str:
    """Return the revision of the schema.

    Raises:
        StoreCorrupt: The database has no schema of Forewarn.
    """
    if not sa.inspect(connection).has_table(VERSION_TABLE.name):
        raise StoreCorrupt(f"database {name} is not a Forewarn database: it has no schema revision")
    return str(connection.execute(sa.select(VERSION_TABLE.c.version_num)).scalar())


def read_leases(connection: sa.Connection) -> dict[str, Lease]:
    """Return the leases of a PostgreSQL database that replicas share, with their present or last holders, by name."""
    if not sa.inspect(connection).has_table(t.lease.name):
        return {}
    now = read_clock(connection)
    rows = connection.execute(sa.select(t.lease).order_by(t.lease.c.name))
    return {r.name: Lease(holder=r.holder, term=r.term, expires_at=r.expires_at, now=now) for r in rows}
