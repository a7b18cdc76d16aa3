"""Databases that cannot be copied, or copied to, are refused and left as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from forewarn.errors import ConfigError, Conflict, ForewarnError, StoreCorrupt, StoreUnavailable
from forewarn.store.copying import copy_database
from forewarn.store.migrate import COMPATIBLE_SINCE
from forewarn.store.tables import metadata
from forewarn.store.whole_database import format_url, parse_database_url
from tests.support.copied import (
    Teller,
    contents,
    fill_rest,
    is_as_before,
    is_upgraded,
    letter,
    make_older,
    missing,
    nothing,
    run_sql,
    somebody_else,
)
from tests.support.databases import Database
from tests.support.schema import NEXT, next_version


def _word(database: Database) -> None:
    run_sql(database, "UPDATE maintenance SET state = 'asleep'")


def _moment(database: Database) -> None:
    run_sql(database, "UPDATE audit_log SET at = 'noon'")


def _far_moment(database: Database) -> None:
    run_sql(database, "UPDATE audit_log SET at = 4611686018427387904")


def _text_as_json(database: Database) -> None:
    run_sql(database, "UPDATE vm SET tags = 'nothing'")


def _no_audit_log(database: Database) -> None:
    run_sql(database, "DROP TABLE audit_log")


def _pages(database: Database) -> None:
    size = database.path.stat().st_size
    with database.path.open("r+b") as raw:
        raw.seek(size // 4)
        raw.write(b"\xa5" * (size // 2))


def _newer(database: Database) -> None:
    run_sql(database, "UPDATE alembic_version SET version_num = '9999'")


SOURCES: list[tuple[Callable[[Database], None], type[ForewarnError], str]] = [
    (_word, StoreCorrupt, "is damaged: a row of table maintenance cannot be read"),
    (_moment, StoreCorrupt, "is damaged: a row of table audit_log cannot be read"),
    (_far_moment, StoreCorrupt, "is damaged: a row of table audit_log cannot be read"),
    (_text_as_json, StoreCorrupt, "is damaged: a row of table vm cannot be read"),
    (_no_audit_log, StoreCorrupt, "no such table: audit_log"),
    (_pages, StoreCorrupt, "is damaged"),
    (letter, StoreCorrupt, "is damaged or not a Forewarn database: file is not a database"),
    (nothing, StoreCorrupt, "is not a Forewarn database"),
    (somebody_else, StoreCorrupt, "is not a Forewarn database"),
    (_newer, StoreCorrupt, "has unknown schema 9999: use the version of Forewarn that wrote it"),
    (missing, ConfigError, "database .*source.db does not exist"),
]


@pytest.mark.parametrize(("spoil", "kind", "said"), SOURCES, ids=[spoil.__name__ for spoil, _, _ in SOURCES])
def test_a_source_that_cannot_be_copied_is_refused_and_left_alone(
    spoil: Callable[[Database], None], kind: type[ForewarnError], said: str, source: Database, target: Database
) -> None:
    spoil(source)
    refused_and_left_alone(source, target, kind, said)


def refused_and_left_alone(source: Database, target: Database, kind: type[ForewarnError], said: str) -> None:
    before = source.path.read_bytes() if source.path.exists() else None
    with pytest.raises(kind, match=said) as caught:
        copy_database(source.url, target.url)
    assert "\n" not in caught.value.message
    assert (source.path.read_bytes() if source.path.exists() else None) == before
    assert is_as_before(target)


def test_an_older_source_is_refused_and_left_alone(older: Database, target: Database) -> None:
    said = "has schema 0001, but only schema .* can be copied: add --upgrade-source, or run forewarn serve on it"
    refused_and_left_alone(older, target, Conflict, said)


def test_an_older_source_is_upgraded_when_its_owner_says_so(older: Database, target: Database) -> None:
    copied = copy_database(older.url, target.url, upgrade_source=True)
    assert copied.schema == NEXT
    assert is_upgraded(older)
    assert contents(target) == contents(older)
    assert contents(target)["host"] == [("größe", None, None, ())]
    older.open().close()


def test_a_target_of_an_older_schema_without_rows_is_upgraded(
    source: Database, target: Database, tmp_path: Path
) -> None:
    make_older(target)
    run_sql(target, "DELETE FROM host")
    with next_version(tmp_path / "migrations"):
        source.open().close()
        copy_database(source.url, target.url)
    assert is_upgraded(target)
    assert contents(target) == contents(source)


def test_an_older_source_is_not_upgraded_for_a_target_that_is_refused(older: Database, target: Database) -> None:
    before = older.path.read_bytes()
    run_sql(target, "CREATE TABLE mine (x INTEGER)")
    with pytest.raises(Conflict, match="has a table mine"):
        copy_database(older.url, target.url, upgrade_source=True)
    assert older.path.read_bytes() == before


@pytest.mark.parametrize("name", sorted(metadata.tables))
def test_a_target_with_a_row_in_any_table_is_refused_and_left_alone(
    name: str, source: Database, target: Database
) -> None:
    target.open().close()
    fill_rest(source)
    run_sql(source, "INSERT INTO lease VALUES ('scheduler', 'replica-1', 3, 1)")
    table = metadata.tables[name]
    with source.engine().connect() as connection:
        rows = connection.execute(sa.select(table)).mappings().all()
        row = next(row for row in rows if COMPATIBLE_SINCE not in row.values())
    with target.engine().begin() as connection:
        connection.execute(sa.insert(table), [dict(row)])
    before = contents(target)
    with pytest.raises(Conflict, match=rf"target\.db is not empty: table {name} has rows"):
        copy_database(source.url, target.url)
    assert contents(target) == before


def test_the_same_file_by_any_name_is_refused(source: Database, tmp_path: Path) -> None:
    (tmp_path / "soft.db").symlink_to(source.path)
    (tmp_path / "hard.db").hardlink_to(source.path)
    before = source.path.read_bytes()
    for name in ("source.db", "./source.db", "soft.db", "hard.db"):
        with pytest.raises(ConfigError, match="source and target are the same database"):
            copy_database(source.url, f"sqlite:///{tmp_path}/{name}")
    assert source.path.read_bytes() == before


def test_a_file_that_is_served_is_neither_copied_nor_written(source: Database, target: Database) -> None:
    store = source.open()
    with pytest.raises(StoreUnavailable, match=r"source\.db is in use by another forewarn: stop it"):
        copy_database(source.url, target.url)
    assert is_as_before(target)
    store.close()
    store = target.open()
    with pytest.raises(StoreUnavailable, match=r"target\.db is in use by another forewarn: stop it"):
        copy_database(source.url, target.url)
    store.close()
    copy_database(source.url, target.url)


def test_nobody_can_serve_either_of_them_meanwhile(source: Database, target: Database) -> None:
    refused = []

    def try_to_serve() -> None:
        for database in (source, target):
            with pytest.raises(StoreUnavailable, match="is in use"):
                database.open()
            refused.append(database)

    copy_database(source.url, target.url, on_progress=Teller(try_to_serve, at=(False, "audit_log")))
    assert refused == [source, target]
    for database in (source, target):
        database.open().close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("forewarn.db", "expected sqlite:///FILE or postgresql://USER@HOST/NAME"),
        ("mysql://ann:secret@host/x", "expected sqlite:///FILE or postgresql://USER@HOST/NAME"),
        ("postgresql://ann:secret@host:port/x", "expected sqlite:///FILE or postgresql://USER@HOST/NAME"),
        ("postgresql://ann:se@cret@host/x", "write it as %40"),
        ("sqlite://", "an in-memory database does not outlive its process"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_telling_its_password(
    url: str, said: str, source: Database
) -> None:
    for urls in ((source.url, url), (url, source.url)):
        with pytest.raises(ConfigError, match=said) as caught:
            copy_database(*urls)
        assert "cret" not in caught.value.message


def test_passwords_are_not_shown_wherever_they_stand_in_a_url() -> None:
    url = "postgresql://ann:s%40cret@db:5432/forewarn?sslpassword=cret&password=cret&host=/run"
    shown = format_url(parse_database_url(url))
    assert "cret" not in shown
    assert shown == "postgresql://ann:***@db:5432/forewarn?host=%2Frun&password=%2A%2A%2A&sslpassword=%2A%2A%2A"


def test_a_missing_driver_is_said_with_its_remedy(source: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"pip install 'forewarn\[postgresql\]'"):
        copy_database(source.url, "postgresql://ann@db/forewarn")
