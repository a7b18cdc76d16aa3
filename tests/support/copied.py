"""Databases with something in them, which tests copy; what is in a database; and ways to spoil one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from alembic import command as alembic
from alembic.config import Config

from forewarn.core.model import Scope, ScopeKind
from forewarn.engine.idempotency import IdempotencyKey
from forewarn.store import SqlStore
from forewarn.store.column_types import StrEnumType
from forewarn.store.copying import COPIED, CopyProgress
from forewarn.store.migrate import COMPATIBLE_SINCE, MIGRATIONS
from tests.support.databases import Database
from tests.support.simulated import inventory, simulated
from tests.support.simulated_world import CAUSE_VM, SCOPES, VMS
from tests.support.world import minutes
from tests.unit.core.builders import vm

__all__ = [
    "CHILD",
    "MEBIBYTE",
    "NAMES",
    "Teller",
    "contents",
    "declared",
    "fill_rest",
    "in_a_child",
    "is_as_before",
    "is_upgraded",
    "letter",
    "live",
    "make_older",
    "missing",
    "nothing",
    "run_sql",
    "somebody_else",
    "tables_of",
]

Rows = dict[str, list[tuple[Any, ...]]]

NAMES = ("größe-1", "仮想機-2", "🦉 o'clock; --", 'back\\slash "quoted"')
MEBIBYTE = 1 << 20


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


def letter(database: Database) -> None:
    database.path.write_bytes(b"This is a letter, and no database. " * 1000)


def nothing(database: Database) -> None:
    database.path.write_bytes(b"")


def somebody_else(database: Database) -> None:
    database.path.unlink()
    run_sql(database, "CREATE TABLE host (address TEXT)")


def missing(database: Database) -> None:
    database.path.unlink()


CHILD = """
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
    script = CHILD.format(act=act, at=at, before=before)
    command = [sys.executable, "-c", script, source.url, target.url]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
