"""Sharing of a PostgreSQL database by replicas: one time for all, a lease, and notifications of changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from forewarn.errors import StoreUnavailable
from forewarn.store import tables as t
from forewarn.store.contract import SharedTransaction
from forewarn.store.lease import Lease
from forewarn.store.sql_transaction import SqlTransaction
from forewarn.store.statements import CLOCK, LEASE

__all__ = ["PostgresSharedStore", "PostgresTransaction", "read_clock"]

_CHANNEL = "forewarn"
_LONG_PAUSE_MS = 60_000
_LISTENERS = sa.text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query = :query")
"""Number of connections whose last statement is the given one: each replica has one that only listens."""

_OVER = datetime.fromtimestamp(0, UTC)


def read_clock(connection: sa.Connection) -> datetime:
    """Return the database's time."""
    moment: datetime = connection.execute(CLOCK).scalar_one()
    return moment.astimezone(UTC)


class PostgresTransaction(SqlTransaction, SharedTransaction):
    """A write transaction that notifies the other replicas."""

    def __init__(self, connection: sa.Connection) -> None:
        super().__init__(connection)
        self._now: datetime | None = None

    def now(self) -> datetime:
        """Return one moment per transaction, later than in earlier ones: it is read under the writers' lock."""
        if self._now is None:
            self._now = read_clock(self._connection)
        return self._now

    def allow_long_pauses(self) -> None:
        self._connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = {_LONG_PAUSE_MS}")

    def get_lease(self, name: str) -> Lease | None:
        row = self._connection.execute(LEASE, {"the_name": name}).first()
        if row is None:
            return None
        return Lease(holder=row.holder, term=row.term, expires_at=row.expires_at, now=read_clock(self._connection))

    def acquire_lease(self, name: str, holder: str, span: timedelta) -> Lease:
        held = self.get_lease(name)
        if held is not None and held.holder != holder and not held.is_over:
            return held
        now = read_clock(self._connection) if held is None else held.now
        # A lapsed lease gets a new term even for the same holder, so that a renewal under the old term fails.
        term = 1 if held is None else held.term + (held.holder != holder or held.is_over)
        insert = postgresql.insert(t.lease).values(name=name, holder=holder, term=term, expires_at=now + span)
        others = {column: insert.excluded[column] for column in ("holder", "term", "expires_at")}
        self._connection.execute(insert.on_conflict_do_update(index_elements=["name"], set_=others))
        return Lease(holder=holder, term=term, expires_at=now + span, now=now)

    def release_lease(self, name: str, holder: str) -> None:
        # The row stays, and its term with it: the next holder must get a larger one.
        query = sa.update(t.lease).where(t.lease.c.name == name, t.lease.c.holder == holder)
        self._connection.execute(query.values(expires_at=_OVER))

    def flush(self) -> None:
        super().flush()
        if self.numbers is not None:
            # PostgreSQL delivers this at the commit, so no replica looks before it can see the change.
            self._connection.exec_driver_sql(f"NOTIFY {_CHANNEL}, '{self.numbers[1]}'")


class PostgresSharedStore:
    """A database as several replicas use it.

    Args:
        engine: Connections to the database.
        write: Function that begins a write transaction.
        wrap_errors: Context that turns errors of a driver into ours.
    """

    def __init__(
        self,
        engine: sa.Engine,
        write: Callable[[], AbstractContextManager[SqlTransaction]],
        wrap_errors: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._engine = engine
        self._write = write
        self._wrap_errors = wrap_errors
        self._listener: Any = None

    @contextmanager
    def write(self) -> Iterator[PostgresTransaction]:
        """Begin a write transaction; only one runs at a time across all replicas."""
        with self._write() as transaction:
            assert isinstance(transaction, PostgresTransaction)  # noqa: S101 - the store makes no other here
            yield transaction

    def renew_lease(self, name: str, holder: str, term: int, span: timedelta) -> Lease | None:
        """Extend a lease that is held and not over; None if it is not held.

        This does not queue behind other writers: the lease is renewed whatever large transaction is running. That is
        safe, since only the end of the holder's own term changes.
        """
        c = t.lease.c
        with self._wrap_errors(), self._engine.begin() as connection:
            now = read_clock(connection)
            query = sa.update(t.lease).where(c.name == name, c.holder == holder, c.term == term, c.expires_at > now)
            count = connection.execute(query.values(expires_at=now + span)).rowcount
        return Lease(holder=holder, term=term, expires_at=now + span, now=now) if count else None

    def count_replicas(self) -> int:
        with self._wrap_errors(), self._engine.connect() as connection:
            return int(connection.execute(_LISTENERS, {"query": f"LISTEN {_CHANNEL}"}).scalar_one())

    def wait_for_change(self, timeout_s: float) -> int | None:
        with self._wrap_errors():
            try:
                if self._listener is None:
                    self._start_listening()
                    return None  # earlier notifications are lost
                found = [each.payload for each in self._listener.notifies(timeout=timeout_s, stop_after=1)]
                # Older replicas announce no number.
                return max(map(int, found)) if found and all(found) else None
            except self._engine.dialect.loaded_dbapi.Error as error:
                self.close()
                msg = f"cannot listen for changes in the database: {' '.join(str(error).split())}"
                raise StoreUnavailable(msg) from error
            # Interrupted while it waited: the state of the connection is unknown, so the next call opens a new one.
            except BaseException:
                self.close()
                raise

    def _start_listening(self) -> None:
        connection = self._engine.raw_connection()
        driver: Any = connection.driver_connection
        connection.detach()  # no longer the pool's, which would try to reset a lost connection
        # Before anything can fail, so that `close` closes this connection too.
        self._listener = driver
        # psycopg changes autocommit only outside of a transaction, and the checkout may have begun one.
        driver.rollback()
        driver.autocommit = True
        driver.execute(f"LISTEN {_CHANNEL}")

    def close(self) -> None:
        """Stop listening."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
