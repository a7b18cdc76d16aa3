"""Databases that are copied, and others that they are copied to."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.store import SqlStore
from forewarn.store.copying import copy_database
from tests.support.copied import live, make_older
from tests.support.databases import Database, PostgreSql, postgresql
from tests.support.schema import next_version
from tests.support.simulated import OPEN


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that is not to be changed."""
    path = tmp_path_factory.mktemp("lived") / "forewarn.db"
    store = SqlStore(f"sqlite:///{path}")
    asyncio.run(live(store))
    OPEN.remove(store)
    store.close()
    return path


@pytest.fixture
def source(lived: Path, tmp_path: Path) -> Database:
    shutil.copy(lived, tmp_path / "source.db")
    return Database(f"sqlite:///{tmp_path / 'source.db'}")


@pytest.fixture
def target(tmp_path: Path) -> Database:
    """A file that is not there yet."""
    return Database(f"sqlite:///{tmp_path / 'target.db'}")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSql]:
    with postgresql() as running:
        yield running


@pytest.fixture
def empty(server: PostgreSql) -> Iterator[Database]:
    """A PostgreSQL database without even the schema."""
    with server.database("template0") as made:
        yield made


@pytest.fixture
def older(source: Database, tmp_path: Path) -> Iterator[Database]:
    """A source with the schema of the version before."""
    source.path.unlink()
    make_older(source)
    with next_version(tmp_path / "migrations"):
        yield source


@pytest.fixture
def filled(source: Database, server: PostgreSql) -> Iterator[Database]:
    """A PostgreSQL database that has what `source` has."""
    with server.database() as made:
        copy_database(source.url, made.url)
        yield made
