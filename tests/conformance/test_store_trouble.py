"""What every store owes when it is locked, full, damaged or away: one of our errors, and nothing changed."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from forewarn.core.inventory import Inventory
from forewarn.core.model import AuditEntry, EntryKind, Host
from forewarn.errors import ConfigError, StoreCorrupt, StoreUnavailable
from forewarn.store import SqlStore
from forewarn.store.sql import ADVISORY_LOCK
from tests.support.databases import Database, PostgreSql, save
from tests.support.spans import GUARD_S
from tests.support.world import NOW

MEBIBYTE = 1 << 20


def entry(reason: str) -> AuditEntry:
    return AuditEntry(kind=EntryKind.QUEUED, at=NOW, actor="forewarn", reason=reason)


def reasons(store: SqlStore) -> list[str | None]:
    with store.read() as reader:
        return [e.reason for e in reader.list_entries(limit=10_000).items]


@contextmanager
def locked(database: Database) -> Iterator[None]:
    """Somebody else writes, for as long as the block lasts."""
    engine = database.engine()
    with engine.connect() as connection:
        if database.is_sqlite:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})")
        yield
    engine.dispose()


@contextmanager
def small_disk(*, mebibytes: int) -> Iterator[Path]:
    """A file system of its own, which PostgreSQL's user reaches."""
    folder = Path(tempfile.mkdtemp(prefix="forewarn-disk-"))
    folder.chmod(0o755)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=777", "tmpfs", str(folder)], check=True, timeout=GUARD_S
    )
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True, timeout=GUARD_S)
        folder.rmdir()


def test_a_locked_database_is_unavailable_for_writing_and_unchanged(shared_database: Database) -> None:
    store = shared_database.open()
    save(store, entry("before"))
    with locked(shared_database):
        with pytest.raises(StoreUnavailable, match="cannot be used now"):
            save(store, entry("meanwhile"))
        assert reasons(store) == ["before"]
    save(store, entry("after"))
    assert reasons(store) == ["before", "after"]
    store.close()


def test_a_database_that_is_locked_at_the_start_is_unavailable(shared_database: Database) -> None:
    shared_database.open().close()
    with locked(shared_database), pytest.raises(StoreUnavailable):
        shared_database.open()
    shared_database.open().close()


def test_a_read_is_one_view_whatever_is_written_meanwhile(shared_database: Database) -> None:
    store = shared_database.open()
    save(store, entry("before"))
    with store.read() as reader:
        assert reader.list_entries().items[-1].reason == "before"
        save(store, entry("meanwhile"))
        with store.write() as tx:
            tx.replace_inventory(Inventory(hosts=(Host(name="new"),)), "f")
        assert [e.reason for e in reader.list_entries().items] == ["before"]
        assert reader.get_inventory() == Inventory()
    assert reasons(store) == ["before", "meanwhile"]
    store.close()


def test_writers_on_several_threads_take_turns(database: Database) -> None:
    store = database.open(busy_timeout_ms=60_000)

    def write() -> None:
        for _ in range(20):
            with store.write() as tx:
                tx.next_sequence()

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.write() as tx:
        assert tx.next_sequence() == 81
    store.close()


@pytest.mark.slow
def test_a_decision_on_postgresql_sees_what_another_process_decided_before(server: PostgreSql) -> None:
    with server.database() as database:
        one, other = database.open(busy_timeout_ms=60_000), database.open(busy_timeout_ms=60_000)
        is_inside = threading.Event()

        def write() -> None:
            is_inside.wait()
            with other.write() as tx:
                assert tx.get_inventory_fingerprint() == "first"
                tx.replace_inventory(Inventory(), "second")

        thread = threading.Thread(target=write)
        thread.start()
        with one.write() as tx:
            is_inside.set()
            thread.join(0.2)
            tx.replace_inventory(Inventory(), "first")
        thread.join()
        with one.read() as reader:
            assert reader.get_inventory_fingerprint() == "second"
        one.close()
        other.close()


def _write_while_dropped(store: SqlStore, database: Database) -> None:
    with store.write() as tx:
        tx.replace_inventory(Inventory(), "lost")
        with database.engine().connect() as connection:
            mine = "datname = current_database() AND pid <> pg_backend_pid()"
            connection.execute(sa.text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {mine}"))  # noqa: S608 - no input
        tx.save_clock_kind("real")


@pytest.mark.slow
def test_a_connection_that_postgresql_has_dropped_is_replaced(server: PostgreSql) -> None:
    with server.database() as database:
        store = database.open()
        save(store, entry("before"))
        with pytest.raises(StoreUnavailable):
            _write_while_dropped(store, database)
        save(store, entry("after"))
        assert reasons(store) == ["before", "after"]
        with store.read() as reader:
            assert reader.get_inventory_fingerprint() is None
        store.close()


@pytest.mark.slow
def test_a_postgresql_that_is_not_there_is_unavailable(server: PostgreSql, tmp_path: Path) -> None:
    with server.database() as database:
        url = sa.make_url(database.url)
    for missing in (url.render_as_string(hide_password=False), f"postgresql://nobody@/x?host={tmp_path}"):
        with pytest.raises(StoreUnavailable):
            SqlStore(missing)


# SQLite files


@pytest.fixture
def file(tmp_path: Path) -> Database:
    return Database(f"sqlite:///{tmp_path / 'forewarn.db'}")


def test_a_second_store_on_the_same_file_is_refused_by_whatever_path(file: Database, tmp_path: Path) -> None:
    first = file.open()
    link = tmp_path / "link.db"
    link.symlink_to(file.path)
    for url in (file.url, f"sqlite:///{tmp_path}/./forewarn.db", f"sqlite:///{link}"):
        with pytest.raises(StoreUnavailable, match="is in use by another forewarn"):
            SqlStore(url)
    first.close()
    first.close()
    file.open().close()


def test_a_full_file_takes_no_changes_and_is_read_all_the_same(file: Database) -> None:
    store = file.open(size_bytes_max=MEBIBYTE)
    save(store, entry("before"))
    with pytest.raises(StoreUnavailable, match="full"):
        save(store, *(entry("x" * 1000) for _ in range(2000)))
    assert reasons(store) == ["before"]
    save(store, entry("small enough"))
    assert reasons(store) == ["before", "small enough"]
    store.close()


def test_a_full_file_has_room_again_after_pruning(file: Database) -> None:
    store = file.open(size_bytes_max=MEBIBYTE)

    def fill() -> int:
        count = 0
        while True:
            try:
                save(store, entry("x" * 10_000))
            except StoreUnavailable:
                return count
            count += 1

    assert fill() > 0
    with store.write() as tx:
        tx.prune_history(NOW.replace(year=NOW.year + 1), NOW, 10)
    assert fill() > 0
    store.close()


def test_a_file_that_is_no_database_is_damaged(file: Database) -> None:
    file.path.write_bytes(b"This is a letter, and no database. " * 1000)
    with pytest.raises(StoreCorrupt, match=r"forewarn\.db is damaged or not a Forewarn database"):
        file.open()
    file.path.unlink()
    file.open().close()


def test_a_file_with_damaged_pages_is_damaged_when_they_are_read(file: Database) -> None:
    store = file.open()
    save(store, *(entry("x" * 1000) for _ in range(500)))
    store.close()
    with file.path.open("r+b") as raw:
        size = file.path.stat().st_size
        raw.seek(size // 4)
        raw.write(b"\xa5" * (size // 2))
    with pytest.raises(StoreCorrupt), file.open().read() as reader:
        reader.list_entries(limit=10_000)


def test_somebody_elses_database_is_refused_and_left_alone(file: Database) -> None:
    with sqlite3.connect(file.path) as connection:
        connection.execute("CREATE TABLE host (address TEXT)")
        connection.execute("INSERT INTO host VALUES ('kept')")
    connection.close()
    with pytest.raises(StoreCorrupt, match="tables of another program"):
        file.open()
    with sqlite3.connect(file.path) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
        assert tables == [("host",)]
    connection.close()


def test_a_missing_table_is_damage(file: Database) -> None:
    file.open().close()
    with sqlite3.connect(file.path) as connection:
        connection.execute("DROP TABLE audit_log")
    connection.close()
    store = file.open()
    with pytest.raises(StoreCorrupt):
        save(store, entry("x"))
    store.close()


def test_a_database_of_a_newer_version_is_refused(file: Database) -> None:
    file.open().close()
    file.migrate_further(compatible_since=None)
    with pytest.raises(StoreCorrupt, match="schema 9998"):
        file.open()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"cannot write .*nowhere"):
        SqlStore(f"sqlite:///{tmp_path}/nowhere/forewarn.db")


@pytest.mark.parametrize("url", ["", "forewarn.db", "mysql://root:secret@host/x", "sqlite3:///x", "postgres://host/x"])
def test_a_url_of_another_kind_is_refused_without_telling_its_password(url: str) -> None:
    with pytest.raises((StoreUnavailable, ConfigError), match="expected sqlite:///FILE or postgresql://") as caught:
        SqlStore(url)
    assert "secret" not in str(caught.value)


def test_every_error_is_one_line(file: Database) -> None:
    file.path.write_bytes(b"x" * 5000)
    with pytest.raises(StoreCorrupt) as caught:
        file.open()
    assert "\n" not in caught.value.message


# PostgreSQL


def test_a_postgresql_of_another_application_is_refused_and_left_alone(server: PostgreSql) -> None:
    with server.database("template0") as database:
        with database.engine().begin() as connection:
            connection.exec_driver_sql("CREATE TABLE orders (number INTEGER)")
            connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32))")
            connection.exec_driver_sql("INSERT INTO alembic_version VALUES ('a1b2c3')")
        with pytest.raises(StoreCorrupt, match=r"tables of another program \(orders\): use an empty database"):
            database.open()
        with database.engine().connect() as connection:
            assert sorted(sa.inspect(connection).get_table_names()) == ["alembic_version", "orders"]


def test_a_postgresql_of_a_newer_version_is_refused(server: PostgreSql) -> None:
    with server.database() as database:
        database.migrate_further(compatible_since=None)
        with pytest.raises(
            StoreCorrupt, match="unknown schema 9998: use the version of Forewarn that wrote it, or a newer"
        ):
            database.open()


def test_a_postgresql_that_became_read_only_takes_no_changes_and_is_read_all_the_same(server: PostgreSql) -> None:
    """As a standby is, or a primary whose operator has stopped it from writing."""
    with server.database() as database:
        store = database.open()
        save(store, entry("before"))
        with database.read_only():
            with pytest.raises(StoreUnavailable, match="read-only transaction"):
                save(store, entry("lost?"))
            assert reasons(store) == ["before"]
            other = database.open()
            assert reasons(other) == ["before"]
            other.close()
        save(store, entry("after"))
        assert reasons(store) == ["before", "after"]
        store.close()


def test_an_empty_postgresql_that_is_read_only_cannot_be_used(server: PostgreSql) -> None:
    refused = pytest.raises(StoreUnavailable, match="read-only transaction")
    with server.database("template0") as database, database.read_only(), refused:
        database.open()


def fill(store: SqlStore) -> None:
    """Far more than fits."""
    for _ in range(200):
        save(store, *(entry("x" * 1000) for _ in range(20)))


@pytest.mark.slow
@pytest.mark.namespaces
def test_a_full_postgresql_takes_no_changes_and_is_read_all_the_same(server: PostgreSql) -> None:
    """A real file system without room; its log of changes lies on another one, as it should."""
    with small_disk(mebibytes=32) as disk, server.database_at(disk / "space") as database:
        store = database.open()
        save(store, entry("before"))
        ballast = disk / "ballast"
        ballast.write_bytes(b"x" * (shutil.disk_usage(disk).free - 256 * 1024))
        with pytest.raises(StoreUnavailable, match="No space left on device"):
            fill(store)
        kept = reasons(store)
        assert kept[0] == "before"
        assert (len(kept) - 1) % 20 == 0, "a transaction is there as a whole or not at all"
        ballast.unlink()
        save(store, entry("after"))
        assert reasons(store)[-1] == "after"
        store.close()
