"""A whole database, from outside of a service: one view of it, one transaction on it, and exclusive access to it.

`forewarn.store.copying` copies one to another, `forewarn.store.describing` describes one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa

from forewarn.errors import ConfigError, StoreCorrupt, StoreUnavailable
from forewarn.store import tables as t
from forewarn.store.lock import FileLock
from forewarn.store.sql import ADVISORY_LOCK, postgresql_engine, sqlite_engine, with_driver, wrapped

__all__ = ["VERSION_TABLE", "Holding", "WholeDatabase", "database_url", "leases", "schema_of", "shown_url"]

VERSION_TABLE = sa.table("alembic_version", sa.column("version_num"))
"""Table that holds the schema's revision."""

_BUSY_TIMEOUT_MS = 5000
_LEAVING_TRIES = 40
_LEAVING_PAUSE_S = 0.05
"""Pause between tries; a service that was just stopped may still be connected for a moment."""

_SESSION = "forewarn database"
"""Name of our own connections to PostgreSQL; those of a service are named ``forewarn``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A lease as recorded in a database.

    Attributes:
        name: Name of the lease.
        holder: Present or last holder.
        term: Number of times it was taken anew.
        expires_at: End of the lease, by the database's clock.
        is_over: True if it has expired, by the database's clock.
    """

    name: str
    holder: str
    term: int
    expires_at: datetime
    is_over: bool


# URLs


def database_url(text: str) -> sa.URL:
    """Parse the URL of a database that outlives its process.

    Raises:
        ConfigError: It is no such URL, or is not written as expected.
    """
    try:
        url = with_driver(text)
    except (StoreUnavailable, ValueError) as error:  # a port that is no number is a ValueError
        msg = "the database URL cannot be read: expected sqlite:///FILE or postgresql://USER@HOST/NAME"
        raise ConfigError(msg) from error
    if url.get_backend_name() == "sqlite" and url.database in {None, "", ":memory:"}:
        msg = "a database in memory is gone with its process: expected sqlite:///FILE"
        raise ConfigError(msg)
    if "@" in (url.host or ""):  # the rest of the password: an error about an unknown host would print it
        msg = "the password in the database URL has an @ in it: write it as %40"
        raise ConfigError(msg)
    return url


def shown_url(url: sa.URL) -> str:
    """Return the URL in printable form: with stars for passwords, and without the driver."""
    query = {name: "***" if "password" in name.lower() else value for name, value in url.query.items()}
    return url.set(drivername=url.get_backend_name(), query=query).render_as_string(hide_password=True)


class WholeDatabase:
    """A database to inspect or copy.

    Args:
        url: Result of `database_url`.

    Attributes:
        name: Printable URL.
        path: Path of the SQLite file; None for PostgreSQL.
        is_new: True if the file did not exist before `alone`.
    """

    def __init__(self, url: sa.URL) -> None:
        self.name = shown_url(url)
        self.path = Path(os.path.realpath(str(url.database))) if url.get_backend_name() == "sqlite" else None
        self.is_new = False
        self._url = url
        self._guard: sa.Connection | None = None

    def check_exists(self) -> None:
        """Check that a SQLite file exists, before SQLite creates it.

        Raises:
            ConfigError: There is no such file.
        """
        if self.path is not None and not self.path.is_file():
            msg = f"there is no database {self.path}"
            raise ConfigError(msg)

    @contextmanager
    def wrapped(self) -> Iterator[None]:
        """Turn errors of a driver into ours."""
        with wrapped(self.name):
            yield

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Open one view of it, however long it takes."""
        with self._engine() as engine, self.wrapped(), engine.connect() as connection:
            self._stay(connection)
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Open a transaction, however long it takes: committed at the end, rolled back on an exception."""
        with self._engine(is_writer=True) as engine, self.wrapped(), engine.begin() as connection:
            self._stay(connection)
            yield connection

    def _stay(self, connection: sa.Connection) -> None:
        """Disable the idle time-out: while one of the two databases works, the other one is idle."""
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
            # With a write-ahead log every row would be on disk twice until the end. A service turns it on again.
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
        with self.write() as self._guard:
            if not self._try_lock(mark):
                msg = f"{self.name} is the source as well: choose another database to copy to"
                raise ConfigError(msg)
            self._check_lease()
            self._wait_alone()
            yield
            self.check_alone()

    def check_alone(self) -> None:
        """Check that the lock is still held.

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
        for lease in leases(self._guard):
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
        # A transaction keeps its first view of pg_stat_activity until this.
        self._guard.exec_driver_sql("SELECT pg_stat_clear_snapshot()")
        here = "datname = current_database() AND application_name = 'forewarn' AND pid <> pg_backend_pid()"
        count = self._guard.exec_driver_sql(f"SELECT count(*) FROM pg_stat_activity WHERE {here}")  # noqa: S608 - no input
        return int(count.scalar_one())


# Contents


def schema_of(connection: sa.Connection, name: str) -> str:
    """Return the revision of the schema.

    Raises:
        StoreCorrupt: The database has no schema of Forewarn.
    """
    if not sa.inspect(connection).has_table(VERSION_TABLE.name):
        msg = f"database {name} is not Forewarn's: it has no schema of ours"
        raise StoreCorrupt(msg)
    return str(connection.execute(sa.select(VERSION_TABLE.c.version_num)).scalar())


def leases(connection: sa.Connection) -> list[Holding]:
    """Return the leases of a PostgreSQL database that replicas share, with their present or last holders."""
    if not sa.inspect(connection).has_table(t.lease.name):
        return []
    now = connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one().astimezone(UTC)
    rows = connection.execute(sa.select(t.lease).order_by(t.lease.c.name)).mappings()
    return [Holding(**row, is_over=row["expires_at"] <= now) for row in rows]
