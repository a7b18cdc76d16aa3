"""The store on SQLAlchemy Core, for SQLite and PostgreSQL.

SQLite runs in WAL mode with ``synchronous=FULL``: a transaction that has ended is on disk, and readers never wait for the writer.
Every error of a driver becomes one of ours here and nowhere else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from forewarn.errors import StoreCorrupt, StoreUnavailable
from forewarn.store.lock import FileLock
from forewarn.store.migrate import upgrade
from forewarn.store.reading import SqlReader
from forewarn.store.writing import SqlTransaction

__all__ = ["SqlStore"]

_BUSY_TIMEOUT_MS = 5000
_PAGE_SIZE_BYTES = 4096
_DAMAGED = ("malformed", "not a database", "disk image", "no such table", "no such column")


class SqlStore:
    """Everything in one database.

    Args:
        url: ``sqlite:///forewarn.db``, ``sqlite://`` for one in memory, or ``postgresql://user@host/name``.
        size_bytes_max: Most that a SQLite file may grow to; beyond it writes fail with `StoreUnavailable`.

    Raises:
        StoreUnavailable: The database cannot be reached, or another process serves it.
        StoreCorrupt: It is damaged or not ours.
    """

    def __init__(self, url: str, *, size_bytes_max: int | None = None) -> None:
        self.url = _with_driver(url)
        self._lock: FileLock | None = None
        self._write_lock = threading.Lock()
        self._writer: sa.Engine | None = None
        self._reader: sa.Engine | None = None
        try:
            self._open(size_bytes_max)
        except BaseException:
            self.close()
            raise

    def _open(self, size_bytes_max: int | None) -> None:
        url = self.url
        if url.get_backend_name() == "sqlite":
            is_memory = url.database in (None, "", ":memory:")
            if not is_memory:
                self._lock = FileLock(Path(f"{url.database}.lock"))
                self._lock.acquire()
            self._writer = _sqlite_engine(url, size_bytes_max, is_writer=True, is_memory=is_memory)
            self._reader = self._writer if is_memory else _sqlite_engine(url, None, is_writer=False, is_memory=False)
        else:
            self._writer = sa.create_engine(url, pool_size=2, pool_pre_ping=True)
            self._reader = self._writer
        with _wrapped(str(url.database)), self._writer.begin() as connection:
            upgrade(connection)
        self._is_shared = self._reader is self._writer and url.get_backend_name() == "sqlite"

    @contextmanager
    def write(self) -> Iterator[SqlTransaction]:
        """A write transaction; one at a time."""
        assert self._writer is not None  # noqa: S101 - set by the constructor
        with self._write_lock, _wrapped(str(self.url.database)), self._writer.begin() as connection:
            transaction = SqlTransaction(connection)
            yield transaction
            transaction.flush()

    @contextmanager
    def read(self) -> Iterator[SqlReader]:
        """A consistent view for reading."""
        assert self._reader is not None  # noqa: S101 - set by the constructor
        if self._is_shared:
            with self.write() as transaction:
                yield transaction
            return
        with _wrapped(str(self.url.database)), self._reader.connect() as connection:
            yield SqlReader(connection)

    def close(self) -> None:
        """Let go of every connection and of the lock."""
        for engine in {self._writer, self._reader} - {None}:
            assert engine is not None  # noqa: S101 - None was taken out
            engine.dispose()
        if self._lock is not None:
            self._lock.release()


def _with_driver(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        msg = "the database URL cannot be read: expected sqlite:///FILE or postgresql://USER@HOST/NAME"
        raise StoreUnavailable(msg) from error
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        return parsed.set(drivername="sqlite+pysqlite")
    if backend == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    msg = f"database {backend!r} is not supported: expected sqlite:///FILE or postgresql://USER@HOST/NAME"
    raise StoreUnavailable(msg)


def _sqlite_engine(url: sa.URL, size_bytes_max: int | None, *, is_writer: bool, is_memory: bool) -> sa.Engine:
    """One connection for writing; several for reading, which WAL lets run beside it."""
    pool: dict[str, Any] = {"poolclass": sa.StaticPool} if is_memory else {"pool_size": 1 if is_writer else 4}
    engine = sa.create_engine(
        url, connect_args={"check_same_thread": False, "timeout": _BUSY_TIMEOUT_MS / 1000}, **pool
    )

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:  # noqa: ANN401 - the driver's own connection
        connection.isolation_level = None  # the driver must not begin transactions by itself: see `begin`
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
        if is_writer:
            cursor.execute("PRAGMA journal_mode=WAL")
            cursor.execute("PRAGMA synchronous=FULL")
        if size_bytes_max is not None:
            cursor.execute(f"PRAGMA max_page_count={max(1, size_bytes_max // _PAGE_SIZE_BYTES)}")
        cursor.close()

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")

    return engine


@contextmanager
def _wrapped(name: str) -> Iterator[None]:
    """Turn what a driver raises into our errors, in one line."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        words = " ".join(str(error.orig).split())
        if any(sign in words for sign in _DAMAGED):
            msg = f"database {name} is damaged or not Forewarn's: {words}"
            raise StoreCorrupt(msg) from error
        msg = f"database {name} cannot be used now: {words}"
        raise StoreUnavailable(msg) from error
    except sa.exc.SQLAlchemyError as error:
        msg = f"database {name} cannot be used now: {' '.join(str(error).split())}"
        raise StoreUnavailable(msg) from error
