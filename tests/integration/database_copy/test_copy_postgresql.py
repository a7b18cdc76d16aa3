"""Copying from and to PostgreSQL: what is refused, and what is left of a copy that is broken off."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
import sqlalchemy as sa

from forewarn.errors import ConfigError, Conflict, StoreCorrupt, StoreUnavailable
from forewarn.store.copying import copy_database
from forewarn.store.migrate import HEAD
from forewarn.store.sql import ADVISORY_LOCK
from tests.support.copied import Teller, contents, in_a_child, is_as_before, is_upgraded, make_older, run_sql, tables_of
from tests.support.databases import Database, PostgreSql
from tests.support.schema import next_version


@contextmanager
def connected(database: Database, *statements: str) -> Iterator[sa.Connection]:
    """Somebody else in the middle of a transaction."""
    engine = database.engine()
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
        yield connection
    engine.dispose()


@pytest.mark.slow
def test_the_same_postgresql_database_by_another_name_is_refused(filled: Database) -> None:
    other = f"{filled.url}&application_name=other"
    for url in (filled.url, other):
        with pytest.raises(ConfigError, match="source and target are the same database"):
            copy_database(filled.url, url)


@pytest.mark.slow
def test_a_postgresql_database_that_a_service_is_connected_to_is_refused(
    source: Database, filled: Database, target: Database, server: PostgreSql
) -> None:
    with closing(filled.open()), pytest.raises(StoreUnavailable, match="is in use by another forewarn: stop it"):
        copy_database(filled.url, target.url)
    with server.database() as other:
        with closing(other.open()), pytest.raises(StoreUnavailable, match="is in use by another forewarn: stop it"):
            copy_database(source.url, other.url)
        copy_database(source.url, other.url)
    copy_database(filled.url, target.url)


@pytest.mark.slow
def test_a_postgresql_database_that_somebody_writes_to_is_refused(filled: Database, target: Database) -> None:
    with (
        connected(filled, f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"),
        pytest.raises(StoreUnavailable, match="is in use by another forewarn"),
    ):
        copy_database(filled.url, target.url)
    assert is_as_before(target)


@pytest.mark.slow
def test_a_replica_that_holds_the_lease_is_named_and_one_whose_time_is_over_is_not_minded(
    filled: Database, target: Database
) -> None:
    """By the database's clock."""
    run_sql(filled, "INSERT INTO lease VALUES ('scheduler', 'replica-7', 3, 4102444800000000)")
    with pytest.raises(
        StoreUnavailable, match="is served: replica-7 holds its lease until 2100-01-01 00:00:00Z; stop every"
    ):
        copy_database(filled.url, target.url)
    assert is_as_before(target)
    run_sql(filled, "UPDATE lease SET expires_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - 1")
    copy_database(filled.url, target.url)
    assert contents(target) == contents(filled)


@pytest.mark.slow
def test_nobody_can_serve_either_postgresql_database_meanwhile(filled: Database, empty: Database) -> None:
    refused = []

    def try_to_serve() -> None:
        for database in (filled, empty):
            with pytest.raises(StoreUnavailable):
                database.open()
            refused.append(database)

    copy_database(filled.url, empty.url, on_progress=Teller(try_to_serve, at=(False, "audit_log")))
    assert refused == [filled, empty]


def _forget_the_audit_log(database: Database) -> Callable[[], None]:
    return lambda: run_sql(database, "DELETE FROM audit_log", "DELETE FROM vm")


def test_what_is_copied_is_one_view_of_a_file(source: Database, target: Database) -> None:
    before = contents(source)
    copy_database(source.url, target.url, on_progress=Teller(_forget_the_audit_log(source), at=(False, "host")))
    assert contents(source)["audit_log"] == []
    assert contents(target) == before


@pytest.mark.slow
def test_what_is_copied_is_one_view_of_postgresql(filled: Database, target: Database) -> None:
    before = contents(filled)
    copy_database(filled.url, target.url, on_progress=Teller(_forget_the_audit_log(filled), at=(False, "host")))
    assert contents(filled)["audit_log"] == []
    assert contents(target) == before


@pytest.mark.slow
def test_a_postgresql_target_that_holds_anything_is_refused(
    source: Database, filled: Database, empty: Database
) -> None:
    before = contents(filled)
    run_sql(source, "DELETE FROM audit_log")
    with pytest.raises(Conflict, match=r"is not empty: table .* has rows"):
        copy_database(source.url, filled.url)
    assert contents(filled) == before
    run_sql(empty, "CREATE TABLE mine (x INTEGER)")
    with pytest.raises(Conflict, match="is not empty: it has a table mine"):
        copy_database(source.url, empty.url)
    assert tables_of(empty) == ["mine"]


@pytest.mark.slow
def test_a_postgresql_source_that_cannot_be_copied_is_refused(
    filled: Database, empty: Database, target: Database
) -> None:
    with pytest.raises(StoreCorrupt, match="is not a Forewarn database"):
        copy_database(empty.url, target.url)
    run_sql(filled, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreCorrupt, match="has unknown schema 9999"):
        copy_database(filled.url, target.url)
    with filled.engine().begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = :head"), {"head": HEAD})
        connection.exec_driver_sql("DROP TABLE audit_log")
    with pytest.raises(StoreCorrupt, match="is damaged or not a Forewarn database"):
        copy_database(filled.url, target.url)
    assert is_as_before(target)


@pytest.mark.slow
def test_an_older_postgresql_source_is_upgraded_only_when_its_owner_says_so(
    empty: Database, target: Database, tmp_path: Path
) -> None:
    make_older(empty)
    with next_version(tmp_path / "migrations"):
        with pytest.raises(Conflict, match="add --upgrade-source"):
            copy_database(empty.url, target.url)
        assert not is_upgraded(empty)
        copy_database(empty.url, target.url, upgrade_source=True)
    assert is_upgraded(empty)
    assert contents(target)["host"] == [("größe", None, None, ())]


@pytest.mark.slow
@pytest.mark.parametrize("at", [(False, "vm"), (True, "vm")])
def test_a_copy_to_postgresql_that_is_broken_off_leaves_not_even_the_schema(
    at: tuple[bool, str], source: Database, empty: Database
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_database(source.url, empty.url, on_progress=Teller(interrupt, at=at))
    assert is_as_before(empty)
    copy_database(source.url, empty.url)
    assert contents(empty) == contents(source)


@pytest.mark.slow
def test_after_a_kill_postgresql_has_not_even_the_schema(source: Database, empty: Database) -> None:
    assert in_a_child(source, empty, act="os.kill(os.getpid(), signal.SIGKILL)").returncode == -signal.SIGKILL
    assert is_as_before(empty)
    copy_database(source.url, empty.url)  # the server has noticed, or does in time
    assert contents(empty) == contents(source)


@pytest.mark.slow
def test_a_full_disk_of_postgresql_leaves_nothing_behind(source: Database, server: PostgreSql) -> None:
    with server.database() as target:
        body = "BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END"
        run_sql(
            target,
            f"CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$",
            "CREATE TRIGGER t BEFORE INSERT ON audit_log FOR EACH ROW EXECUTE FUNCTION full_disk()",
        )
        with pytest.raises(StoreUnavailable, match="cannot be used now: could not extend file: No space left"):
            copy_database(source.url, target.url)
        assert is_as_before(target, had_schema=True)


@pytest.mark.slow
def test_a_row_that_postgresql_cannot_keep_is_told_with_its_table(source: Database, empty: Database) -> None:
    run_sql(source, "UPDATE vm SET size = 'a' || char(0) || 'b' WHERE name = 'db'")
    with pytest.raises(StoreCorrupt, match=r"a row of table vm does not fit into database postgresql://.*NUL"):
        copy_database(source.url, empty.url)
    assert is_as_before(empty)


@pytest.mark.slow
@pytest.mark.parametrize("whose", ["filled", "empty"])
def test_a_copy_that_has_lost_its_lock_is_not_kept(
    whose: str, filled: Database, empty: Database, request: pytest.FixtureRequest
) -> None:
    database: Database = request.getfixturevalue(whose)
    end = (
        "SELECT pg_terminate_backend(pid) FROM (SELECT DISTINCT pid FROM pg_locks WHERE locktype = 'advisory' "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) AS held"
    )
    with pytest.raises(StoreUnavailable, match=r"terminating connection|closed"):
        copy_database(
            filled.url, empty.url, on_progress=Teller(lambda: run_sql(database, end), at=(False, "audit_log"))
        )
    assert is_as_before(empty)


@pytest.mark.slow
def test_neither_database_breaks_off_because_the_other_one_is_slow(filled: Database, empty: Database) -> None:
    # Long enough for a busy machine between two statements: only once connected does the copy switch it off.
    hasty = "&options=" + quote("-c idle_in_transaction_session_timeout=5s")
    slow = Teller(lambda: time.sleep(6), at=(False, "host"))
    copy_database(filled.url + hasty, empty.url + hasty, on_progress=slow)
    assert contents(empty) == contents(filled)


@pytest.mark.slow
def test_a_postgresql_that_is_not_there_is_said_without_its_password(source: Database, tmp_path: Path) -> None:
    url = f"postgresql://ann:secret@/x?host={tmp_path}"
    for urls in ((source.url, url), (url, source.url)):
        with pytest.raises(StoreUnavailable, match=r"postgresql://ann:\*\*\*@/x.* cannot be used now") as caught:
            copy_database(*urls)
        assert "secret" not in caught.value.message
