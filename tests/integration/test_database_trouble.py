"""A service that cannot write, or whose database is damaged, says so at `/readyz`, and answers VMs all the same."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path

import pytest
import structlog

from forewarn.core.model import AuditEntry, EntryKind
from forewarn.errors import StoreCorrupt, StoreUnavailable
from forewarn.store import SqlStore
from tests.support.control import error
from tests.support.databases import Database, save
from tests.support.service import eventually, running
from tests.support.wire import get
from tests.support.world import NOW

MEBIBYTE = 1 << 20


def entry(size: int) -> AuditEntry:
    return AuditEntry(kind=EntryKind.QUEUED, at=NOW, actor="forewarn", reason="x" * size)


def has_room(store: SqlStore, size: int) -> bool:
    try:
        save(store, entry(size))
    except StoreUnavailable:
        return False
    return True


def fill(store: SqlStore) -> None:
    """Until not even a small entry fits."""
    for size in (100_000, 10_000, 1000, 10):
        while has_room(store, size):
            pass


def test_a_probe_fails_where_nothing_more_fits_and_leaves_nothing_behind(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path / 'forewarn.db'}", size_bytes_max=MEBIBYTE)
    for _ in range(3):
        with store.write() as tx:
            tx.check_writable()
    fill(store)
    with pytest.raises(StoreUnavailable, match="full"), store.write() as tx:
        tx.check_writable()
    with store.write() as tx:
        tx.prune_history(NOW.replace(year=NOW.year + 1), NOW, 100)
        tx.check_writable()
    store.close()


def test_a_full_database_makes_the_service_unready_until_there_is_room(tmp_path: Path) -> None:
    with running(tmp_path, database_size_bytes_max=2 * MEBIBYTE) as service, service.operator() as api:
        vm = service.vm()
        service.enable(vm)
        assert api.get("/readyz").json() == {"status": "ready"}
        store = service.service.store
        assert isinstance(store, SqlStore)
        service.service._writer.submit(fill, store).result()
        assert eventually(lambda: api.get("/readyz").status_code == 503), "what was found a moment ago may stand"
        assert "full" in error(api.get("/readyz"), 503, "store_unavailable")["message"]
        with service.wire(vm) as wire:
            assert wire.ask(get()).status == 200


def test_probes_that_come_together_write_once(tmp_path: Path) -> None:
    with running(tmp_path) as service, service.operator() as api:
        probes: list[int] = []
        probe = service.service.engine.committer.probe_store

        async def counted() -> None:
            probes.append(1)
            await probe()

        service.service.engine.committer.probe_store = counted  # type: ignore[method-assign]
        service.service._probed_s = float("inf")
        for _ in range(5):
            assert api.get("/readyz").status_code == 200
        assert probes == []
        service.service._probed_s = float("-inf")
        assert api.get("/readyz").status_code == 200
        assert probes == [1]


# Damage


def overwrite(path: Path) -> None:
    with path.open("r+b") as raw:
        size = path.stat().st_size
        raw.seek(size // 2)
        raw.write(b"\xa5" * (size // 4))


def filled(tmp_path: Path) -> Database:
    database = Database(f"sqlite:///{tmp_path / 'forewarn.db'}")
    store = database.open()
    save(store, *(entry(1000) for _ in range(1000)))
    store.close()
    return database


def test_a_check_finds_damaged_pages_that_nothing_has_read(tmp_path: Path) -> None:
    database = filled(tmp_path)
    overwrite(database.path)
    store = database.open()
    assert store.damage is None
    with structlog.testing.capture_logs() as logs:
        store.check_pages(60)
        store.check_pages(60)
    assert "is damaged" in str(store.damage)
    assert len(logs) == 1
    store.close()


def test_a_check_of_a_whole_database_finds_nothing_and_needs_no_more_than_its_span(tmp_path: Path) -> None:
    store = filled(tmp_path).open()
    store.check_pages(60)
    store.check_pages(0)
    assert store.damage is None
    store.close()


def test_a_check_reaches_the_end_of_a_table_that_takes_longer_than_a_span(tmp_path: Path) -> None:
    database = filled(tmp_path)
    is_required, is_optional = "kind VARCHAR NOT NULL", "kind VARCHAR"
    insert = "INSERT INTO audit_log (sequence, at, chain, hash, kind, actor)"
    many = "WITH RECURSIVE n(i) AS (SELECT 10000 UNION ALL SELECT i + 1 FROM n WHERE i < 110000)"
    with contextlib.closing(sqlite3.connect(database.path, isolation_level=None)) as raw:
        raw.execute(f"{many} {insert} SELECT i, 0, 'events', x'00', 'queued', 'x' FROM n")  # noqa: S608 - no input
        # Its last row is damaged: it lacks a value that it must have.
        raw.execute("PRAGMA writable_schema = ON")
        swap = "UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE name = 'audit_log'"
        assert raw.execute(swap, (is_required, is_optional)).rowcount == 1
        raw.execute("PRAGMA writable_schema = RESET")
        raw.execute(f"{insert} VALUES (999999, 0, 'events', x'00', NULL, 'x')")
        raw.execute("PRAGMA writable_schema = ON")
        raw.execute(swap, (f"{is_optional},", f"{is_required},"))
    store = database.open()
    store._tables_to_check = ["audit_log"]  # it has the whole span each time
    with structlog.testing.capture_logs():
        for _ in range(20):
            store.check_pages(0.005)
    assert "NULL value in audit_log.kind" in str(store.damage)
    store.close()


def test_damage_that_a_read_runs_into_is_remembered(tmp_path: Path) -> None:
    database = filled(tmp_path)
    overwrite(database.path)
    store = database.open()
    with structlog.testing.capture_logs(), pytest.raises(StoreCorrupt), store.read() as reader:
        reader.list_entries(limit=10_000)
    assert store.damage is not None
    store.close()


def test_a_service_with_damage_is_unready_until_it_is_restarted_and_answers_vms(tmp_path: Path) -> None:
    with running(tmp_path) as service, service.operator() as api:
        vm = service.vm()
        store = service.service.store
        assert isinstance(store, SqlStore)
        assert api.get("/readyz").status_code == 200
        with structlog.testing.capture_logs():
            store._record_damage("database x is damaged: Tree 7 page 9: btreeInitPage() returns error code 11")
        message = error(api.get("/readyz"), 503, "store_unavailable")["message"]
        assert "Tree 7" in message
        assert "restore the database from a backup" in message
        with service.wire(vm) as wire:
            assert wire.ask(get()).status == 200


def test_a_check_that_goes_on_is_ended_by_the_end_of_the_service(tmp_path: Path) -> None:
    store = filled(tmp_path).open()
    interrupted: list[bool] = []
    store._interrupt = lambda: interrupted.append(True)
    store.stop_check()
    assert interrupted == [True]
    store.check_pages(60)
    assert store.damage is None
    store.close()


def test_the_check_has_a_thread_of_its_own(tmp_path: Path) -> None:
    seen: list[str] = []
    original = SqlStore.check_pages

    def noted(self: SqlStore, span_s: float) -> None:
        seen.append(threading.current_thread().name)
        original(self, span_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqlStore, "check_pages", noted)
        with running(tmp_path):
            assert eventually(lambda: bool(seen))
    assert seen[0].startswith("forewarn-check")
