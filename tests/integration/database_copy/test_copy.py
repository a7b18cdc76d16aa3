"""What of a database arrives in another one, and what is left there of a copy that is broken off."""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
import subprocess
import sys
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from forewarn.actuators import Simulate
from forewarn.clock import VirtualClock
from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.engine.idempotency import IdempotencyKey
from forewarn.errors import ForewarnError, StoreCorrupt
from forewarn.scheduling.scheduler import SchedulerSettings
from forewarn.store import SqlStore
from forewarn.store.copying import PIECE_ROWS, copy_database
from forewarn.store.migrate import HEAD
from forewarn.store.tables import lease
from forewarn.util.ids import SeededIds
from forewarn.wire.imds import Dialect
from tests.support.copied import (
    CHILD,
    MEBIBYTE,
    NAMES,
    Teller,
    contents,
    declared,
    fill_rest,
    in_a_child,
    is_as_before,
    run_sql,
    tables_of,
)
from tests.support.databases import Database, PostgreSql
from tests.support.simulated import Simulated
from tests.support.world import NOW, minutes


async def go_on(store: SqlStore) -> list[Any]:
    """What happens later; hands back what the VMs are shown."""
    made = Simulated(
        store=store,
        clock=VirtualClock(NOW + minutes(46)),
        actuator=Simulate(),
        rules=DecisionRules(),
        pace=SchedulerSettings(),
        dialect=Dialect(),
        ids=SeededIds(7),
    )
    await made.engine.restore_state()
    shown = [made.shown(each.name) for each in declared().vms]
    await made.schedule("host-maintenance", "web-0", notice=minutes(20))
    with pytest.raises(ForewarnError):  # the copy knows what that key led to
        await made.engine.maintenances.schedule(
            MaintenanceRequest(cause="host-maintenance", vms=(NAMES[0],)),
            actor="x",
            key=IdempotencyKey(key="ключ", fingerprint="g"),
        )
    await made.approve_all(NAMES[3])
    await made.advance(timedelta(hours=3))
    return [*shown, *(made.shown(each.name) for each in declared().vms)]


# What arrives


def test_a_copy_has_every_row_and_says_so(source: Database, target: Database) -> None:
    fill_rest(source)
    before = source.path.read_bytes()
    teller = Teller()
    copied = copy_database(source.url, target.url, on_progress=teller)
    found = contents(target)
    assert found == contents(source)
    assert {table.name: table.rows for table in copied.tables} == {name: len(rows) for name, rows in found.items()}
    assert all(found.values()), "a table has no rows, so the test says nothing about it"
    assert all(re.fullmatch("[0-9a-f]{32}", table.checksum) for table in copied.tables)
    assert source.path.read_bytes() == before
    assert (copied.source, copied.target, copied.schema) == (source.url, target.url, HEAD)
    for is_comparing in (False, True):
        steps = [p for p in teller.seen if p.is_comparing is is_comparing]
        assert steps[-1].rows_done == steps[-1].rows == copied.rows


def test_a_copy_has_the_schema_that_the_migrations_make(source: Database, target: Database, tmp_path: Path) -> None:
    fresh = Database(f"sqlite:///{tmp_path / 'fresh.db'}")
    fresh.open().close()
    copy_database(source.url, target.url)
    query = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
    with target.engine().connect() as one, fresh.engine().connect() as other:
        assert one.exec_driver_sql(query).all() == other.exec_driver_sql(query).all()


def test_a_database_with_the_schema_only_is_empty(source: Database, target: Database) -> None:
    target.open().close()
    copy_database(source.url, target.url)
    assert contents(target) == contents(source)


def test_leases_are_not_copied(source: Database, target: Database) -> None:
    run_sql(source, "INSERT INTO lease VALUES ('scheduler', 'replica-1', 3, 4102444800000000)")
    copy_database(source.url, target.url)
    with target.engine().connect() as connection:
        assert connection.execute(sa.select(lease)).all() == []


def test_the_checksum_tells_a_changed_row_and_not_another_order(source: Database, tmp_path: Path) -> None:
    one = copy_database(source.url, f"sqlite:///{tmp_path / 'one.db'}")
    rows = "SELECT * FROM audit_log ORDER BY sequence DESC"
    run_sql(
        source, f"CREATE TABLE other AS {rows}", "DELETE FROM audit_log", "INSERT INTO audit_log SELECT * FROM other"
    )
    run_sql(source, "DROP TABLE other")
    assert copy_database(source.url, f"sqlite:///{tmp_path / 'two.db'}").tables == one.tables
    run_sql(source, "UPDATE audit_log SET actor = actor || ' ' WHERE sequence = (SELECT max(sequence) FROM audit_log)")
    three = copy_database(source.url, f"sqlite:///{tmp_path / 'three.db'}")
    assert [a.name for a, b in zip(one.tables, three.tables, strict=True) if a != b] == ["audit_log"]


@pytest.mark.slow
def test_to_postgresql_and_back_everything_is_the_same(source: Database, target: Database, empty: Database) -> None:
    fill_rest(source)
    there = copy_database(source.url, empty.url)
    assert contents(empty) == contents(source)
    back = copy_database(empty.url, target.url)
    assert contents(target) == contents(source)
    assert there.tables == back.tables


@pytest.mark.slow
def test_from_one_postgresql_to_another(source: Database, server: PostgreSql) -> None:
    with server.database() as one, server.database("template0") as other:
        copy_database(source.url, one.url)
        copy_database(one.url, other.url)
        assert contents(other) == contents(source)


@pytest.mark.slow
def test_a_copy_goes_on_as_its_source_would_have(source: Database, target: Database, empty: Database) -> None:
    """Incarnations, ids, the counter, deadlines, keys: what happens later is the same in all three."""
    copy_database(source.url, empty.url)
    copy_database(empty.url, target.url)
    before = contents(source)
    shown, later = [], []
    for database in (source, empty, target):
        store = database.open(busy_timeout_ms=60_000)
        shown.append(asyncio.run(go_on(store)))
        store.close()
        later.append(contents(database))
    assert shown[0] == shown[1] == shown[2]
    assert later[0] == later[1] == later[2]
    assert later[0]["event"] != before["event"]
    assert len(later[0]["audit_log"]) > len(before["audit_log"]) + 10


# Broken off


@pytest.mark.parametrize("at", [(False, "host"), (False, "vm"), (True, "host"), (True, "vm")])
@pytest.mark.parametrize("had_schema", [False, True])
def test_a_copy_that_is_broken_off_leaves_the_target_as_it_was(
    at: tuple[bool, str], had_schema: bool, source: Database, target: Database
) -> None:
    if had_schema:
        target.open().close()

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_database(source.url, target.url, on_progress=Teller(interrupt, at=at))
    assert is_as_before(target, had_schema=had_schema)
    copy_database(source.url, target.url)
    assert contents(target) == contents(source)


def test_rows_that_read_differently_are_not_kept(source: Database, target: Database) -> None:
    target.open().close()
    change = "UPDATE audit_log SET actor = 'nobody' WHERE sequence = new.sequence"
    run_sql(target, f"CREATE TRIGGER t AFTER INSERT ON audit_log BEGIN {change}; END")
    with pytest.raises(
        StoreCorrupt, match=r"table audit_log reads differently in .*target\.db: expected .* nothing was copied"
    ):
        copy_database(source.url, target.url)
    assert is_as_before(target, had_schema=True)


@pytest.mark.parametrize("had_schema", [False, True])
def test_after_a_kill_the_target_is_as_empty_as_before(had_schema: bool, source: Database, target: Database) -> None:
    if had_schema:
        target.open().close()
    tables = tables_of(target)
    assert in_a_child(source, target, act="os.kill(os.getpid(), signal.SIGKILL)").returncode == -signal.SIGKILL
    assert tables_of(target) == tables
    assert not had_schema or is_as_before(target, had_schema=True)
    copy_database(source.url, target.url)
    assert contents(target) == contents(source)


def fill(database: Database, rows: int, width: int) -> None:
    """So many more audit log entries, each with so long a reason."""
    statement = sa.text(
        "WITH RECURSIVE n(i) AS (SELECT 1000000 UNION ALL SELECT i + 1 FROM n WHERE i < :last) "
        "INSERT INTO audit_log (sequence, at, kind, actor, reason, chain, hash) "
        "SELECT i, i, 'queued', 'forewarn', substr(hex(zeroblob(:width)), 1, :width) || i, 'events', zeroblob(32) "
        "FROM n"
    )
    with database.engine().begin() as connection:
        connection.execute(statement, {"last": 1_000_000 + rows - 1, "width": width})


def test_a_file_that_may_not_grow_leaves_nothing_behind(source: Database, target: Database) -> None:
    fill(source, 2000, 1000)
    limit = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({MEBIBYTE}, {MEBIBYTE}))"
    done = in_a_child(source, target, before=limit)
    assert "StoreUnavailable" in done.stderr
    assert is_as_before(target)


@pytest.mark.namespaces
def test_a_full_disk_leaves_nothing_behind(source: Database, tmp_path: Path) -> None:
    fill(source, 2000, 1000)
    disk = tmp_path / "disk"
    disk.mkdir()
    target = Database(f"sqlite:///{disk / 'target.db'}")
    script = CHILD.format(act="pass", at=0, before="")
    copy = shlex.join([sys.executable, "-c", script, source.url, target.url])
    inside = f"mount -t tmpfs -o size=1m none {disk} && {{ {copy}; ls -A {disk}; }}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", inside], check=False, capture_output=True, text=True, timeout=60
    )
    assert "StoreUnavailable" in done.stderr
    assert "full" in done.stderr
    assert done.stdout.split() == ["target.db.lock"]


def test_never_more_rows_are_fetched_than_a_piece_has(source: Database, target: Database) -> None:
    fill(source, 10 * PIECE_ROWS, 10)
    teller, written = Teller(), []

    def note(_c: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:  # noqa: ANN401 - the driver's
        if statement.startswith("INSERT INTO audit_log"):
            written.append(len(parameters))

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        copied = copy_database(source.url, target.url, on_progress=teller)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert copied.rows > 10 * PIECE_ROWS
    assert max(written) == PIECE_ROWS
    steps = [later.rows_done - earlier.rows_done for earlier, later in pairwise(teller.seen)]
    assert max(steps) == PIECE_ROWS


_MEMORY = """
import resource, sys
from forewarn.store.copying import copy_database
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
copy_database(sys.argv[1], sys.argv[2])
before = peak()
copy_database(sys.argv[3], sys.argv[4])
copy_database(sys.argv[4], sys.argv[5])
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_does_not_grow_with_the_audit_log(
    lived: Path, source: Database, server: PostgreSql, tmp_path: Path
) -> None:
    """Of the whole process, so with what the drivers hold outside of Python."""
    fill(source, 60_000, 2000)
    assert source.path.stat().st_size > 100 * MEBIBYTE
    with server.database() as small, server.database() as large:
        urls = [f"sqlite:///{lived}", small.url, source.url, large.url, f"sqlite:///{tmp_path}/back.db"]
        done = subprocess.run(
            [sys.executable, "-c", _MEMORY, *urls], check=False, capture_output=True, text=True, timeout=280
        )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 30 * 1024
