"""Description of a database, seen from outside of a service."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from forewarn.store import tables as t
from forewarn.store.lease import Lease
from forewarn.store.whole_database import WholeDatabase, parse_database_url, read_leases, read_schema_revision

__all__ = ["DatabaseDescription", "describe_database"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseDescription:
    """Contents of a database.

    Attributes:
        url: URL without a password.
        schema: Revision of its schema; `migrate.HEAD` is the newest.
        clock: ``real`` or ``virtual``; None before it is first served.
        counter: Number of the last change; 0 if there was none.
        size_bytes: Size on the disk of its server, indexes included.
        leases: Leases of the replicas that carry out what is due, by name; empty for SQLite, which only one process can
            use.
        rows: Number of rows of each table; tables that an older schema lacks are left out.
    """

    url: str
    schema: str
    clock: str | None
    counter: int
    size_bytes: int
    leases: dict[str, Lease]
    rows: dict[str, int]


def describe_database(url: str) -> DatabaseDescription:
    """Describe the contents of a database. It may be served meanwhile; nothing is locked or changed.

    Raises:
        ConfigError: The URL cannot be used, or there is no such file.
        StoreCorrupt: It is damaged or not Forewarn's.
        StoreUnavailable: It is away.
    """
    database = WholeDatabase(parse_database_url(url))
    database.check_exists()
    with database.read() as connection:
        schema = read_schema_revision(connection, database.name)
        found = set(sa.inspect(connection).get_table_names())
        tables = [table for table in t.metadata.sorted_tables if table.name in found]
        rows = {x.name: connection.execute(sa.select(sa.func.count()).select_from(x)).scalar_one() for x in tables}
        meta = {row.key: row.value for row in connection.execute(sa.select(t.meta))}
        return DatabaseDescription(
            url=database.name,
            schema=schema,
            clock=meta.get("clock"),
            counter=int(meta.get("sequence") or 0),
            size_bytes=_measure_size_bytes(database, connection),
            leases=read_leases(connection) if database.path is None else {},
            rows=rows,
        )


def _measure_size_bytes(database: WholeDatabase, connection: sa.Connection) -> int:
    if database.path is None:
        return int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())
    # Until a checkpoint, the latest commits are only in the write-ahead log.
    files = [Path(f"{database.path}{suffix}") for suffix in ("", "-wal")]
    return sum(file.stat().st_size for file in files if file.exists())
