"""Moving everything between SQLite and PostgreSQL: all of it arrives, or nothing, and what may not be is refused."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import sqlalchemy as sa
import typer
from alembic import command as alembic
from alembic.config import Config

from forewarn.actuators import Simulate
from forewarn.cli.database import add_database, format_progress
from forewarn.cli.main import format_error
from forewarn.clock import VirtualClock
from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import Scope, ScopeKind
from forewarn.engine.idempotency import IdempotencyKey
from forewarn.errors import ConfigError, Conflict, ForewarnError, StoreCorrupt, StoreUnavailable
from forewarn.scheduling.scheduler import SchedulerSettings
from forewarn.store import SqlStore
from forewarn.store.copying import COPIED, PIECE_ROWS, CopyProgress, copy_database
from forewarn.store.migrate import COMPATIBLE_SINCE, HEAD, MIGRATIONS
from forewarn.store.sql import ADVISORY_LOCK
from forewarn.store.tables import StrEnumType, lease, metadata
from forewarn.store.whole_database import format_url, parse_database_url
from forewarn.util.ids import SeededIds
from forewarn.wire.imds import Dialect
from tests.support.databases import Database, PostgreSql, postgresql
from tests.support.documents import ROOT
from tests.support.processes import Served, served
from tests.support.schema import NEXT, next_version
from tests.support.simulated import OPEN, Simulated, inventory, simulated
from tests.support.simulated_world import CAUSE_VM, SCOPES, VMS
from tests.support.spans import GUARD_S
from tests.support.world import NOW, minutes
from tests.unit.core.builders import vm

Rows = dict[str, list[tuple[Any, ...]]]

PAGE = ROOT / "docs" / "how-to" / "move-a-database.md"
NAMES = ("größe-1", "仮想機-2", "🦉 o'clock; --", 'back\\slash "quoted"')
MEBIBYTE = 1 << 20


# Databases with something in them


def declared() -> Any:  # noqa: ANN401 - an inventory
    odd = [
        replace(vm(name, scope="müller & söhne"), addresses=(f"10.9.1.{n}",), tags=(("ключ", "值"), ("", "\u2028")))
        for n, name in enumerate(NAMES)
    ]
    scope = Scope(name="müller & söhne", kind=ScopeKind.SCALE_SET, fault_domain_count=5)
    return inventory(*VMS, *odd, scopes=(*SCOPES, scope), hosts=("empty",))


async def live(store: SqlStore) -> None:
    """Maintenance of every cause: approved, canceled, forced, completed; some of it is still to come at the end."""
    made = await simulated(declared(), store=store)
    asked = [await made.schedule(cause, name) for cause, name in CAUSE_VM.items()]
    for name in ("db", "web-0", "spot"):
        await made.approve_all(name)
    await made.cancel(asked[2][0])
    await made.advance(minutes(40))
    key = IdempotencyKey(key="ключ", fingerprint="f")
    await made.schedule("host-maintenance", NAMES[0], notice=minutes(30), key=key)
    forced = await made.schedule_one(
        "host-maintenance", NAMES[2], notice=timedelta(days=7), description="Müll \U0001f9f9"
    )
    await made.engine.maintenances.start(forced.id, actor="operator:zoë", reason="'); DROP TABLE audit_log; --\n\tüber")
    await made.approve_all(NAMES[1])
    await made.advance(minutes(5))
    for name in ("lone", NAMES[3]):
        await made.schedule("host-maintenance", name, notice=minutes(50))


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


def contents(database: Database) -> Rows:
    """Every row of every table that is copied, as values; without what migrations say of the schema."""
    with database.engine().connect() as connection:
        rows = {table.name: [tuple(row) for row in connection.execute(sa.select(table))] for table in COPIED}
    rows["meta"] = [row for row in rows["meta"] if row[0] != COMPATIBLE_SINCE]
    return {name: sorted(found, key=repr) for name, found in rows.items()}


def tables_of(database: Database) -> list[str]:
    return sa.inspect(database.engine()).get_table_names()


def is_as_before(database: Database, *, had_schema: bool = False) -> bool:
    """Whether a target that had no rows has still none, and no more tables than it had."""
    if database.is_sqlite and not had_schema:
        return not list(database.path.parent.glob(f"{database.path.name}[!.]*")) and not database.path.exists()
    tables = tables_of(database)
    return tables == [] if not had_schema else not any(contents(database).values())


def run_sql(database: Database, *statements: str) -> None:
    with database.engine().begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def fill_rest(database: Database) -> None:
    """A row in every table that has none, so that none is left out of a test."""
    with database.engine().begin() as connection:
        for table in COPIED:
            if connection.execute(sa.select(table).limit(1)).first() is None:
                columns = [column for column in table.columns if not column.nullable]
                marks = ", ".join(f":{column.name}" for column in columns)
                names = marks.replace(":", "")
                statement = sa.text(f"INSERT INTO {table.name} ({names}) VALUES ({marks})")  # noqa: S608 - no input
                connection.execute(statement, {column.name: _some_value(column.type) for column in columns})


def _some_value(kind: Any) -> object:  # noqa: ANN401 - a column's type
    if isinstance(kind, StrEnumType):
        return next(iter(kind.words)).value
    plain = kind.impl_instance if isinstance(kind, sa.TypeDecorator) else kind
    if isinstance(plain, sa.LargeBinary):
        return bytes(32)
    return "[]" if isinstance(plain, sa.JSON) else "münze" if isinstance(plain, sa.String) else 1


def make_older(database: Database) -> None:
    """Make it as old as the first version, with a host."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with database.engine().begin() as connection:
        config.attributes["connection"] = connection
        alembic.upgrade(config, "0001")
        connection.exec_driver_sql("INSERT INTO host (name) VALUES ('größe')")


def is_upgraded(database: Database) -> bool:
    return "to_come" in {column["name"] for column in sa.inspect(database.engine()).get_columns("host")}


class Teller:
    """Notes how far a copy is, and does something at some point of it."""

    def __init__(self, act: Callable[[], object] = lambda: None, *, at: tuple[bool, str] | None = None) -> None:
        self.seen: list[CopyProgress] = []
        self._act, self._at = act, at

    def __call__(self, progress: CopyProgress) -> None:
        self.seen.append(progress)
        if self._at == (progress.is_comparing, progress.table):
            self._at = None
            self._act()


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


# Refused


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


def _letter(database: Database) -> None:
    database.path.write_bytes(b"This is a letter, and no database. " * 1000)


def _nothing(database: Database) -> None:
    database.path.write_bytes(b"")


def _somebody_else(database: Database) -> None:
    database.path.unlink()
    run_sql(database, "CREATE TABLE host (address TEXT)")


def _newer(database: Database) -> None:
    run_sql(database, "UPDATE alembic_version SET version_num = '9999'")


def _missing(database: Database) -> None:
    database.path.unlink()


SOURCES: list[tuple[Callable[[Database], None], type[ForewarnError], str]] = [
    (_word, StoreCorrupt, "is damaged: a row of table maintenance cannot be read"),
    (_moment, StoreCorrupt, "is damaged: a row of table audit_log cannot be read"),
    (_far_moment, StoreCorrupt, "is damaged: a row of table audit_log cannot be read"),
    (_text_as_json, StoreCorrupt, "is damaged: a row of table vm cannot be read"),
    (_no_audit_log, StoreCorrupt, "no such table: audit_log"),
    (_pages, StoreCorrupt, "is damaged"),
    (_letter, StoreCorrupt, "is damaged or not a Forewarn database: file is not a database"),
    (_nothing, StoreCorrupt, "is not a Forewarn database"),
    (_somebody_else, StoreCorrupt, "is not a Forewarn database"),
    (_newer, StoreCorrupt, "has unknown schema 9999: use the version of Forewarn that wrote it"),
    (_missing, ConfigError, "database .*source.db does not exist"),
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


@pytest.fixture
def older(source: Database, tmp_path: Path) -> Iterator[Database]:
    """A source with the schema of the version before."""
    source.path.unlink()
    make_older(source)
    with next_version(tmp_path / "migrations"):
        yield source


def test_an_older_source_is_refused_and_left_alone(older: Database, target: Database) -> None:
    said = "has schema 0001, but only schema .* can be copied: add --upgrade-source, or run forewarn serve on it"
    refused_and_left_alone(older, target, Conflict, said)


def test_an_older_source_is_upgraded_when_its_owner_says_so(older: Database, target: Database) -> None:
    copied = copy_database(older.url, target.url, upgrade_source=True)
    assert copied.schema == NEXT
    assert is_upgraded(older)
    assert contents(target) == contents(older)
    assert contents(target)["host"] == [("größe", None, None)]
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


_CHILD = """
import os, resource, signal, sys
from forewarn.store.copying import copy_database
seen = []
def tell(progress):
    seen.append(progress)
    if len(seen) == {at}:
        {act}
{before}
copy_database(sys.argv[1], sys.argv[2], on_progress=tell)
"""


def in_a_child(source: Database, target: Database, *, act: str = "pass", at: int = 8, before: str = "") -> Any:  # noqa: ANN401 - a finished process
    """Copy in a process of its own."""
    script = _CHILD.format(act=act, at=at, before=before)
    command = [sys.executable, "-c", script, source.url, target.url]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)


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
    script = _CHILD.format(act="pass", at=0, before="")
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


# PostgreSQL


@pytest.fixture
def filled(source: Database, server: PostgreSql) -> Iterator[Database]:
    """A PostgreSQL database that has what `source` has."""
    with server.database() as made:
        copy_database(source.url, made.url)
        yield made


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
    assert contents(target)["host"] == [("größe", None, None)]


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
    hasty = "&options=" + quote("-c idle_in_transaction_session_timeout=100ms")
    slow = Teller(lambda: time.sleep(0.5), at=(False, "host"))
    copy_database(filled.url + hasty, empty.url + hasty, on_progress=slow)
    assert contents(empty) == contents(filled)


@pytest.mark.slow
def test_a_postgresql_that_is_not_there_is_said_without_its_password(source: Database, tmp_path: Path) -> None:
    url = f"postgresql://ann:secret@/x?host={tmp_path}"
    for urls in ((source.url, url), (url, source.url)):
        with pytest.raises(StoreUnavailable, match=r"postgresql://ann:\*\*\*@/x.* cannot be used now") as caught:
            copy_database(*urls)
        assert "secret" not in caught.value.message


# The commands


class Cli:
    """The commands of `database`, in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._app = typer.Typer()
        add_database(self._app)
        self._capsys = capsys

    def run(self, *arguments: str) -> str:
        self._app(args=["database", *arguments], standalone_mode=False)
        captured = self._capsys.readouterr()
        assert captured.err == ""
        return captured.out

    def fails(self, *arguments: str) -> str:
        with pytest.raises((ForewarnError, typer.BadParameter)) as caught:
            self._app(args=["database", *arguments], standalone_mode=False)
        captured = self._capsys.readouterr()
        assert (captured.out, captured.err) == ("", "")
        return format_error(caught.value)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


def test_copy_tells_people_what_it_did(cli: Cli, source: Database, target: Database) -> None:
    rows = {name: len(found) for name, found in contents(source).items()}
    lines = cli.run("copy", source.url, target.url).splitlines()
    assert lines[0].split() == ["TABLE", "ROWS", "CHECKSUM"]
    told = {words[0]: int(words[1]) for words in (line.split() for line in lines[1 : 1 + len(rows)])}
    assert told == rows
    assert f"copied {sum(rows.values())} rows from {source.url} to {target.url}" in lines
    assert "row counts and checksums match for every table" in lines


def test_copy_tells_programs_what_it_did(cli: Cli, source: Database, target: Database) -> None:
    told = json.loads(cli.run("copy", source.url, target.url, "--json"))
    assert set(told) == {"from", "to", "schema", "rows", "tables"}
    assert (told["from"], told["to"], told["schema"]) == (source.url, target.url, HEAD)
    assert [table["name"] for table in told["tables"]] == [table.name for table in COPIED]
    assert sum(table["rows"] for table in told["tables"]) == told["rows"]


def test_copy_upgrades_a_source_when_it_is_told_to(cli: Cli, older: Database, target: Database) -> None:
    assert "--upgrade-source" in cli.fails("copy", older.url, target.url)
    cli.run("copy", older.url, target.url, "--upgrade-source")
    assert contents(target) == contents(older)


def test_progress_is_told_in_words() -> None:
    progress = CopyProgress(is_comparing=False, table="audit_log", rows_done=1200, rows=1_000_000)
    assert format_progress(progress) == "copying audit_log: 1,200 of 1,000,000 rows"
    assert format_progress(replace(progress, is_comparing=True)).startswith("comparing audit_log")


def test_a_wrong_url_is_a_matter_of_usage_and_says_which(cli: Cli, source: Database) -> None:
    assert cli.fails("copy", "forewarn.db", source.url).startswith("invalid value for FROM: invalid database URL")
    assert cli.fails("copy", source.url, "mysql://a:secret@b/c").startswith(
        "invalid value for TO: invalid database URL"
    )
    assert cli.fails("show", "forewarn.db").startswith("invalid value for URL")


def test_show_tells_what_a_served_file_holds(cli: Cli, source: Database) -> None:
    rows = {name: len(found) for name, found in contents(source).items()}
    with closing(source.open()) as store:
        told = json.loads(cli.run("show", source.url, "--json"))
        with store.read() as reader:
            assert told["counter"] == reader.get_position() > 0
        words = cli.run("show", source.url)
    assert told["rows"] == rows | {"lease": 0}
    assert (told["url"], told["schema"], told["newest_schema"], told["leases"]) == (source.url, HEAD, HEAD, [])
    assert told["size_bytes"] >= source.path.stat().st_size
    assert f"schema    {HEAD} (the newest)" in words
    assert re.search(r"^lease +none$", words, re.MULTILINE)
    assert re.search(rf"^audit_log +{rows['audit_log']}$", words, re.MULTILINE)


def test_show_tells_that_a_schema_is_old_and_leaves_it(cli: Cli, older: Database) -> None:
    run_sql(older, "DROP TABLE lease")  # as if it had come later
    before = older.path.read_bytes()
    assert f"0001 (the newest here is {NEXT})" in cli.run("show", older.url)
    assert "lease" not in json.loads(cli.run("show", older.url, "--json"))["rows"]
    assert older.path.read_bytes() == before


@pytest.mark.parametrize("spoil", [_letter, _nothing, _somebody_else, _missing], ids=lambda spoil: spoil.__name__)
def test_show_refuses_what_is_no_database_of_ours(
    spoil: Callable[[Database], None], cli: Cli, source: Database
) -> None:
    spoil(source)
    assert re.search("not a Forewarn database|does not exist", cli.fails("show", source.url))
    assert source.path.exists() is (spoil is not _missing)


@pytest.mark.slow
def test_show_tells_who_holds_the_lease_of_a_postgresql_database(cli: Cli, filled: Database) -> None:
    run_sql(filled, "INSERT INTO lease VALUES ('scheduler', 'replica-7', 3, 4102444800000000)")
    assert re.search("lease scheduler +replica-7 until 2100-01-01 00:00:00Z", cli.run("show", filled.url))
    run_sql(filled, "UPDATE lease SET expires_at = 0")
    assert re.search("lease scheduler +expired; last held by replica-7", cli.run("show", filled.url))
    told = json.loads(cli.run("show", filled.url, "--json"))
    expected = {"name": "scheduler", "holder": "replica-7", "term": 3, "expires_at": "1970-01-01T00:00:00Z"}
    assert told["leases"] == [expected | {"is_over": True}]
    assert told["size_bytes"] > MEBIBYTE


# The page


_BLOCK = re.compile(r"<!-- moves: [^>]+ -->\n *```\n(.*?)```", re.DOTALL)


class Reader:
    """Does what the page says, line by line: services are real processes, one at a time."""

    def __init__(self, folder: Path, server: PostgreSql, cli: Cli) -> None:
        socket = sa.make_url(server._url("postgres")).query["host"]
        self.url = f"postgresql://forewarn@/forewarn?host={quote(str(socket))}"
        self.service: Served | None = None
        self.shown: list[Any] = []
        self._folder, self._cli = folder, cli
        self._environment = os.environ | {"PGHOST": str(socket), "PGUSER": "postgres"}
        self._environment["PATH"] = f"{server._server.bin_path}:{self._environment['PATH']}"
        self._stack = ExitStack()

    def serve(self, *arguments: str) -> None:
        self.service = self._stack.enter_context(served(self._folder, *arguments))

    def stop(self) -> None:
        self._stack.close()
        self.service = None

    def do(self, line: str) -> None:
        words = shlex.split(line.replace("postgresql://forewarn@db.example/forewarn", shlex.quote(self.url)))
        match words:
            case ["forewarn", "database", "copy", *_]:
                self.note()
                assert re.search("is in use by another forewarn|is served", self._cli.fails(*words[2:]))
                self.stop()
                self._cli.run(*words[2:])
            case ["forewarn", "database", *_]:
                self._cli.run(*words[2:])
            case ["forewarn", "serve", *arguments]:
                self.serve(*arguments)
                self.note()
            case ["forewarn", *arguments]:
                assert self.service is not None
                assert self.service.forewarn(*arguments)
            case _:
                subprocess.run(words, check=True, cwd=self._folder, env=self._environment, timeout=60)

    def document(self) -> Any:  # noqa: ANN401 - JSON
        """What the VM sees."""
        assert self.service is not None
        url = f"{self.service.metadata_url}/metadata/scheduledevents?api-version=2020-07-01"
        return httpx.get(url, headers={"Metadata": "true"}, trust_env=False, timeout=GUARD_S).json()

    def note(self) -> None:
        """What is there to see."""
        assert self.service is not None
        self.shown.append(
            {noun: self.service.forewarn(noun, "list") for noun in ("vm", "maintenance", "event")}
            | {"audit_log": self.service.forewarn("audit-log")}
        )


@pytest.mark.slow
def test_the_page_moves_a_service_there_and_back(
    cli: Cli, server: PostgreSql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path, server, cli)
    try:
        reader.serve()
        assert reader.service is not None
        assert reader.document()["DocumentIncarnation"] == 1
        reader.service.forewarn("maintenance", "schedule", "--vm", "vm-1", "--type", "Redeploy")
        lines = [line for block in _BLOCK.findall(PAGE.read_text()) for line in block.splitlines() if line.strip()]
        assert len(lines) > 8
        for line in lines:
            reader.do(line)
        document = reader.document()
        assert document["DocumentIncarnation"] == 2
        assert [event["EventStatus"] for event in document["Events"]] == ["Scheduled"]
    finally:
        reader.stop()
    assert len(reader.shown) == 4
    assert all(shown == reader.shown[0] for shown in reader.shown)
