"""Part 12: one replica with a million VMs on twenty thousand hosts, on PostgreSQL."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa

from bench.document import service_child
from bench.fleet import host_name, multiply
from bench.operator import Operator
from bench.postgresql import databases, open_engine
from bench.process import LOAD_CORE, Child, python_child
from bench.result import Effort, Result, Row, median

__all__ = ["VMS_PER_HOST", "measure"]

VMS_PER_HOST = 50
_PATIENCE_S = 600.0
_WINDOW = 64
_SCHEDULES = 20
_IDLE_S = 10.0


def measure(effort: Effort, folder: Path, log: Path) -> Result:
    """Start the replica, let some hosts watch, schedule maintenance, and reload the inventory."""
    hosts, watches = effort.fleet_hosts, effort.fleet_watches
    vms = hosts * VMS_PER_HOST
    with databases(folder) as url:
        before_s = time.monotonic()
        multiply(url, hosts, VMS_PER_HOST)
        print(f"  {vms:,} VMs written in {time.monotonic() - before_s:.0f} s", flush=True)
        with service_child(folder, log, database_url=url, inventory=None) as replica:
            told = replica.hear(_PATIENCE_S)
            found: dict[str, Any] = {
                "hosts": hosts,
                "vms": vms,
                "ready_s": told["ready_s"] - replica.started_s,
                "rss_mib": told["rss_bytes"] / (1 << 20),
            }
            print(f"  ready after {found['ready_s']:.1f} s, {found['rss_mib']:.0f} MiB", flush=True)
            found |= _database(url)
            port = str(urlsplit(told["control"]).port)
            with python_child("bench.watchers", port, str(watches), core=LOAD_CORE, log=log) as crowd:
                found |= _watch(replica, crowd, watches)
                found |= _schedule(replica, crowd, Operator(told["control"], folder), watches)
            found |= replica.ask(do="take_inventory", timeout_s=_PATIENCE_S)
            found["connections"] = _connections(url)
    result = Result(title=f"{vms:,} VMs on {hosts:,} hosts, one replica on PostgreSQL", raw=found)
    result.rows = _rows(found, watches)
    return result


def _rows(found: dict[str, Any], watches: int) -> list[Row]:
    return [
        Row(what="start of the process until it answers", value=found["ready_s"], unit="s"),
        Row(what="resident memory after the start", value=found["rss_mib"], unit="MiB"),
        Row(
            what=f"memory for each watch of a host with {VMS_PER_HOST} VMs",
            value=found["kib_each"],
            unit="KiB",
            note=f"of {watches:,} watches",
        ),
        Row(
            what="CPU time of the replica for one host that connects",
            value=found["join_cpu_ms"],
            unit="ms",
            note=f"its state has {found['state_bytes'] / 1024:.1f} KiB",
        ),
        Row(
            what=f"schedule for one host of {VMS_PER_HOST}, request to answer, median",
            value=median(found["schedule_ms"]),
            unit="ms",
        ),
        Row(
            what="the same maintenance, commit until the host has it, median", value=median(found["told_ms"]), unit="ms"
        ),
        Row(what="a changed inventory, time to read it", value=found["read_s"], unit="s"),
        Row(what="a changed inventory, pause without answers", value=found["halted_s"], unit="s"),
        Row(what="transactions of one replica while nothing changes", value=found["idle_per_s"], unit="a second"),
        Row(what="connections of one replica to PostgreSQL", value=found["connections"], unit=""),
    ]


def _watch(replica: Child, crowd: Child, watches: int) -> dict[str, float]:
    before_bytes, before_s = replica.ask(do="rss", timeout_s=_PATIENCE_S)["rss_bytes"], replica.cpu_s()
    joined = crowd.ask(do="join", window=_WINDOW, timeout_s=_PATIENCE_S)
    spent_s = replica.cpu_s() - before_s
    after_bytes = replica.ask(do="rss", timeout_s=_PATIENCE_S)["rss_bytes"]
    return {
        "watches": watches,
        "kib_each": (after_bytes - before_bytes) / watches / 1024,
        "join_cpu_ms": spent_s / watches * 1000,
        "join_ms": joined["joined_s"] / watches * 1000,
        "state_bytes": joined["state_bytes"],
    }


def _schedule(replica: Child, crowd: Child, operator: Operator, watches: int) -> dict[str, list[float]]:
    """Return the milliseconds from request to answer, and from commit to host, for hosts that watch."""
    schedule_ms, told_ms = [], []
    for number in range(min(_SCHEDULES, watches)):
        crowd.ask(do="expect", count=1)
        before_s = time.monotonic()
        operator.post("/v1/maintenance", {"hosts": [host_name(number)], "type": "Freeze"})
        schedule_ms.append((time.monotonic() - before_s) * 1000)
        heard = crowd.hear(_PATIENCE_S)
        committed_s = replica.ask(do="changes_seen")["changes"][-1]["committed_s"]
        told_ms.append((heard["moments_s"][0] - committed_s) * 1000)
    return {"schedule_ms": schedule_ms, "told_ms": told_ms}


def _database(url: str) -> dict[str, float]:
    """Measure the load of the database while nothing changes."""
    query = sa.text("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()")
    engine = open_engine(url)

    def count() -> int:
        with engine.connect() as connection:
            return int(connection.execute(query).scalar_one())

    before, began_s = count(), time.monotonic()
    time.sleep(_IDLE_S)
    return {"idle_per_s": (count() - before) / (time.monotonic() - began_s)}


def _connections(url: str) -> int:
    query = sa.text("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'forewarn'")
    with open_engine(url).connect() as connection:
        return int(connection.execute(query).scalar_one())
