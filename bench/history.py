# ruff: noqa: S608 - all parts of the statements come from this file
"""Part 14: queries of a long history: ten million audit log entries, on SQLite and on PostgreSQL.

SQL statements create the history, without the service: ninety days, and six entries for each maintenance of two VMs.
The queries run in this process, through the reader that the control API uses.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.postgresql import databases, open_engine
from bench.result import Effort, Result, Row, percentile
from forewarn.core.access import Ownership
from forewarn.core.model import EntryKind, EventType, MaintenanceState
from forewarn.core.selection import Selection
from forewarn.store import SqlStore
from forewarn.store import tables as t
from forewarn.store.contract import Reader

__all__ = ["measure"]

_STORES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
_HASTE = {
    "sqlite": (
        "PRAGMA journal_mode=OFF",
        "PRAGMA synchronous=OFF",
        "PRAGMA cache_size=-262144",
        "PRAGMA temp_store=MEMORY",
    ),
    "postgresql": ("SET maintenance_work_mem = '512MB'", "SET synchronous_commit = off"),
}
"""Settings for a fast build of the database, which need not survive a crash."""

_PAGE = 100
_TARGET_MS = 100.0
_ENTRIES_EACH = 6
_NUMBERS_EACH = 8
_VMS = 100_000
_SPAN = timedelta(days=90)
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Query = Callable[[Reader, random.Random], object]
_Owned = Callable[[random.Random], Ownership | None]


def measure(effort: Effort, folder: Path, log: Path) -> Result:  # noqa: ARG001 - all parts have the same arguments
    """Run the same queries on both databases."""
    count = effort.history // _ENTRIES_EACH
    result = Result(title=f"Queries of a history of {count * _ENTRIES_EACH:,} audit log entries, {_PAGE} per page")
    for store, words in _STORES.items():
        place = folder / store
        place.mkdir()
        with _database(store, place) as url:
            began_s = time.monotonic()
            build_history(url, count)
            built_s = time.monotonic() - began_s
            print(f"  {words}: built in {built_s:.0f} s", flush=True)
            found = _ask(url, effort.questions, count)
        result.raw[store] = {"built_s": built_s, "took_ms": found}
        result.rows += [
            Row(
                what=f"{words}, {name}, p99",
                value=percentile(took_ms, 99),
                unit="ms",
                target=_TARGET_MS,
                note=f"p50 {percentile(took_ms, 50):.1f} ms",
            )
            for name, took_ms in found.items()
        ]
    return result


@contextmanager
def _database(store: str, place: Path) -> Iterator[str]:
    if store == "sqlite":
        yield f"sqlite:///{place}/forewarn.db"
        return
    with databases(place) as url:
        yield url


# Building


def build_history(url: str, count: int) -> None:
    """Create a history of that many maintenances in an empty database.

    Indexes are created after the rows: this is many times faster.
    """
    SqlStore(url).close()
    indexes = [index for table in (t.audit_log, t.maintenance, t.claim, t.event) for index in table.indexes]
    is_sqlite = url.startswith("sqlite")
    engine = open_engine(url).execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for setting in _HASTE["sqlite" if is_sqlite else "postgresql"]:
            connection.exec_driver_sql(setting)
        for index in indexes:
            index.drop(connection)
        for statement in _statements(count, is_sqlite=is_sqlite):
            connection.exec_driver_sql(statement if is_sqlite else statement.replace("%", "%%"))
        for index in indexes:
            index.create(connection)
        if not is_sqlite:
            connection.exec_driver_sql("VACUUM (ANALYZE)")  # autovacuum would do this some minutes later


def _statements(count: int, *, is_sqlite: bool) -> Iterator[str]:
    step = int(_SPAN / timedelta(microseconds=1)) // count
    begin = (_BEGIN - _EPOCH) // timedelta(microseconds=1)
    head, source = "", f"generate_series(0, {count - 1}) AS n(k)"
    if is_sqlite:
        head, source = f"WITH RECURSIVE n(k) AS (SELECT 0 UNION ALL SELECT k + 1 FROM n WHERE k < {count - 1}) ", "n"
    at = f"({begin} + CAST(k AS BIGINT) * {step})"
    number = f"CAST(k AS BIGINT) * {_NUMBERS_EACH}"
    vm = f"((CAST(k AS BIGINT) * 7919 + {{other}}) % {_VMS})"
    vms = [vm.format(other=0), vm.format(other=1)]
    claims = " || ',' || ".join(
        f"""'["vm-' || {v} || '","' || {_host(v)} || '","scope-' || ({v} / 10) || '",0]'""" for v in vms
    )
    json = "'[' || {0} || ']'" if is_sqlite else "CAST('[' || {0} || ']' AS JSON)"
    # Nothing here verifies the chain.
    no_hash = "zeroblob(32)" if is_sqlite else "decode(repeat('00', 32), 'hex')"
    empty = json.format(chr(39) * 2)
    state = "CASE WHEN k % 1000 = 0 THEN 'failed' ELSE 'completed' END"
    kind = "CASE WHEN k % 3 = 0 THEN 'Reboot' WHEN k % 10007 = 1 THEN 'Preempt' ELSE 'Freeze' END"
    yield (
        "INSERT INTO maintenance (id, sequence, request_id, cause, type, impact, source, description, duration_s, "
        "state, created_at, notice, not_before, started_at, impacted_at, ended_at, attempts, hosts, claims, "
        "deferrals, extensions, extended, is_at_once_unwarned, moved_by) "
        f"{head}SELECT 'm-' || k, {number} + 1, 'm-' || k, 'host-maintenance', {kind}, {kind}, 'Platform', "
        f"CASE WHEN k % 500000 = 11 THEN 'the Needle in it' ELSE 'Host server is undergoing maintenance.' END, 9, "
        f"{state}, {at}, 900000000, {at} + 900000000, {at} + 900000000, {at} + 907000000, {at} + 1500000000, 0, "
        f"{empty}, {json.format(claims)}, 0, 0, 0, false, {empty} FROM {source}"
    )
    for v in vms:
        yield (
            "INSERT INTO claim (maintenance_id, vm, scope, host, is_active) "
            f"{head}SELECT 'm-' || k, 'vm-' || {v}, 'scope-' || ({v} / 10), {_host(v)}, false FROM {source}"
        )
    resources = f"""'"vm-' || {vms[0]} || '"'"""
    yield (
        "INSERT INTO event (id, sequence, maintenance_id, audience, update_domain, resources, is_iaas, is_listed, "
        f"approved_at, approved_by) {head}SELECT 'E-' || k, {number} + 2, 'm-' || k, "
        f"'scope:scope-' || ({vms[0]} / 10), 0, {json.format(resources)}, true, false, {at} + 60000000, "
        f"'vm:vm-' || {vms[0]} FROM {source}"
    )
    operator = "CASE WHEN k % 100000 = 7 THEN 'operator:eve' ELSE 'operator:o-' || (k % 20) END"
    needle = (
        "CASE WHEN k % 500000 = 11 THEN 'the Needle in it' ELSE 'the impact lasted 4.2 s; announced duration: 9 s' END"
    )
    rows = [
        ("0", "'scheduled'", operator),
        ("60000000", "'approved'", f"'vm:vm-' || {vms[0]}"),
        ("900000000", "'started'", "'forewarn'"),
        ("907000000", "'impacted'", "'actuator'"),
        ("912000000", "'impact-measured'", "'actuator'"),
        ("1500000000", state, "'actuator'"),
    ]
    later, kinds, actors = (
        f"CASE j {' '.join(f'WHEN {turn} THEN {each}' for turn, each in enumerate(column))} END"
        for column in zip(*rows, strict=True)
    )
    approval = (f"'scope:scope-' || ({vms[0]} / 10)", f"'vm-' || {vms[0]}", "'10.0.0.7'", "'2020-07-01'")
    of_approval = ", ".join(f"CASE j WHEN 1 THEN {each} END" for each in approval)
    entries = " UNION ALL ".join(f"SELECT {turn} AS j" for turn in range(_ENTRIES_EACH))
    yield (
        "INSERT INTO audit_log (sequence, at, kind, actor, maintenance_id, audience, vm, source_address, api_version, "
        f"reason, chain, hash) {head}SELECT {number} + 3 + j, {at} + {later}, {kinds}, {actors}, 'm-' || k, "
        f"{of_approval}, CASE j WHEN 4 THEN {needle} END, 'audit', {no_hash} "
        f"FROM {source} CROSS JOIN ({entries}) AS each"
    )
    last = count * _NUMBERS_EACH + _NUMBERS_EACH
    yield f"INSERT INTO meta (key, value) VALUES ('sequence', '{last}'), ('clock', 'real')"


def _host(vm: str) -> str:
    """Return the host of a VM. The oldest entries have a host without any later entries."""
    return f"CASE WHEN k < 300 THEN 'host-idle' ELSE 'host-' || ({vm} / 50) END"


# Asking


def _ask(url: str, times: int, count: int) -> dict[str, list[float]]:
    store = SqlStore(url)
    rng = random.Random(7)
    found: dict[str, list[float]] = {}
    try:
        for name, query in _queries(count).items():
            took_ms = []
            for _ in range(times):
                with store.read() as reader:
                    began_s = time.perf_counter()
                    query(reader, rng)
                    took_ms.append((time.perf_counter() - began_s) * 1000)
            found[name] = took_ms
            p50, p99 = (percentile(took_ms, percent) for percent in (50, 99))
            print(f"    {name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms", flush=True)
    finally:
        store.close()
    return found


def _everything(_rng: random.Random) -> None:
    """Query as an operator, who may see everything."""


def _tenant(rng: random.Random) -> Ownership:
    return Ownership(scopes=frozenset({f"scope-{rng.randrange(_VMS // 10)}"}))


def _queries(count: int) -> dict[str, Query]:
    def day(rng: random.Random) -> dict[str, datetime]:
        since = _BEGIN + rng.random() * (_SPAN - timedelta(days=1))
        return {"since": since, "until": since + timedelta(days=1)}

    def entries(owned: _Owned = _everything, **said: object) -> Query:
        return lambda reader, rng: reader.list_entries(
            limit=_PAGE, newest=True, selection=_selection(rng, said), owned=owned(rng)
        )

    def maintenances(owned: _Owned = _everything, **said: object) -> Query:
        return lambda reader, rng: reader.list_maintenances(
            limit=_PAGE, selection=_selection(rng, said), owned=owned(rng)
        )

    def _selection(rng: random.Random, said: dict[str, object]) -> Selection:
        made = {name: value(rng) if callable(value) else value for name, value in said.items()}
        span: object = made.pop("day", None)
        return Selection(**(made | (span if isinstance(span, dict) else {})))  # type: ignore[arg-type] # callers pass fields of Selection

    def vm(rng: random.Random) -> str:
        return f"vm-{rng.randrange(_VMS)}"

    return {
        "newest page of entries": entries(),
        "entries of a day": entries(day=day),
        "entries of a VM": entries(vm=vm),
        "entries of a VM on a day": entries(vm=vm, day=day),
        "entries of a scope": entries(scope=lambda rng: f"scope-{rng.randrange(_VMS // 10)}"),
        "entries of a host": entries(host=lambda rng: f"host-{rng.randrange(_VMS // 50)}"),
        "entries of a host whose entries are all very old": entries(host="host-idle"),
        "entries of a host without any entry": entries(host="host-none"),
        "entries that a tenant may see": entries(_tenant),
        "entries of a maintenance": entries(maintenance_id=lambda rng: f"m-{rng.randrange(count)}"),
        "entries of a rare kind": entries(kinds=(EntryKind.FAILED,)),
        "entries of a kind on a day": entries(kinds=(EntryKind.APPROVED,), day=day),
        "entries of a person with few entries": entries(actor="operator:eve"),
        "entries of a person on a day": entries(actor="operator:o-3", day=day),
        "entries of a rare event type, one step": entries(type=EventType.PREEMPT),
        "entries with a rare text, one step": entries(text="needle"),
        "newest page of maintenances": maintenances(),
        "maintenances of a VM": maintenances(vm=vm),
        "maintenances of a host": maintenances(host=lambda rng: f"host-{rng.randrange(_VMS // 50)}"),
        "maintenances of a tenant": maintenances(_tenant),
        "maintenances of a day": maintenances(day=day),
        "maintenances that have failed": maintenances(states=(MaintenanceState.FAILED,)),
        "maintenances in one of two states, one step": maintenances(
            states=(MaintenanceState.FAILED, MaintenanceState.CANCELED)
        ),
        "maintenances of a person, one step": maintenances(actor="operator:eve"),
        "maintenances with a text, one step": maintenances(text="needle"),
    }
