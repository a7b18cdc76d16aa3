"""Every store that there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.store import Store
from tests.support.databases import Database, Dictionaries, PostgreSql, postgresql

SQLITE = ["sqlite-file", "sqlite-memory"]
ON_DISK = ["sqlite-file", pytest.param("postgresql", marks=pytest.mark.slow)]


@pytest.fixture(scope="session")
def server() -> Iterator[PostgreSql]:
    with postgresql() as running:
        yield running


@pytest.fixture(params=["memory", *SQLITE, pytest.param("postgresql", marks=pytest.mark.slow)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database | Dictionaries]:
    """A database that has nothing but the schema, if that."""
    if request.param == "memory":
        yield Dictionaries()
        return
    yield from _database(request, tmp_path)


@pytest.fixture(params=ON_DISK)
def shared_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """One that somebody else can reach too."""
    yield from _database(request, tmp_path)


@pytest.fixture
def store(database: Database | Dictionaries) -> Iterator[Store]:
    store = database.open()
    yield store
    store.close()


def _database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "postgresql":
        server: PostgreSql = request.getfixturevalue("server")
        with server.database() as made:
            yield made
    else:
        yield Database("sqlite://" if request.param == "sqlite-memory" else f"sqlite:///{tmp_path / 'forewarn.db'}")
