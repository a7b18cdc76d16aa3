"""Part 10: commits of maintenances and approvals per second, on SQLite and on PostgreSQL, each synchronised to disk.

Each maintenance is for one host with twenty VMs, requested at the control API. Each approval is a `POST` of one VM to
the metadata endpoint, from that VM's address. Afterwards, a query of the database counts both in the audit log.

For comparison, the same PostgreSQL server and an etcd on the same disk then carry out small writes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa

from bench.document import PATH, service_child
from bench.fleet import VMS_PER_HOST, address_of, fill, host_name
from bench.postgresql import databases, open_engine
from bench.process import LOAD_CORE, BenchError, Child, python_child
from bench.result import Effort, Result, Row, percentile
from bench.small_writes import press_etcd, press_postgresql

__all__ = ["COMPARED", "compare", "measure"]

_STORES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
_SCHEDULES = (1, 16)
_SENDERS = 64
_APPROVALS_MAX = 1500
_PATIENCE_S = 300.0
_DISK_WRITES = 100
COMPARED = f"approvals, {_SENDERS} VMs at a time, each on another host"
"""The approvals that are compared with the small writes of other servers."""

_OTHERS = {
    "pgbench": "for comparison: PostgreSQL alone, pgbench with one UPDATE of one row",
    "etcd": "for comparison: etcd with one put of one value",
}


def measure(effort: Effort, folder: Path, log: Path) -> Result:
    """Run the same measurement on both databases."""
    result = Result(title="Commits per second, each on disk before it is answered")
    disk_ms = _disk_ms(folder)
    result.raw = {"disk_ms": disk_ms}
    result.rows.append(
        Row(what="the disk: 4 KiB written and synchronised, p50", value=percentile(disk_ms, 50), unit="ms")
    )
    others: dict[str, dict[str, Any]] = {}
    for store, words in _STORES.items():
        place = folder / store
        place.mkdir()
        with _database(store, place) as url:
            fill(url, effort.commits * len(_SCHEDULES))
            with service_child(place, log, database_url=url, inventory=None) as service:
                found = _Store(service, place, log, url).measure(effort.commits)
            if store == "postgresql":
                others["pgbench"] = press_postgresql(url, place, log, clients=_SENDERS, seconds=effort.writes_s)
        result.raw[store] = found
        for name, one in found.items():
            print(
                f"  {words}, {name}: {one['per_s']:.0f} a second, p99 {percentile(one['took_ms'], 99):.0f} ms, "
                f"CPU {one['cpu_ms']:.2f} ms each, {one['busy']:.0%} busy",
                flush=True,
            )
            result.rows += [
                Row(
                    what=f"{words}, {name}",
                    value=one["per_s"],
                    unit="a second",
                    note=f"p50 {percentile(one['took_ms'], 50):.1f} ms, p99 {percentile(one['took_ms'], 99):.1f} ms; "
                    f"{one['cpu_ms']:.2f} ms of CPU time of the service for each, its core {one['busy']:.0%} busy",
                )
            ]
    others["etcd"] = press_etcd(folder, log, clients=_SENDERS, seconds=effort.writes_s)
    result.raw["small_writes"] = others
    compared = compare(result.raw)
    for row in compared:
        print(f"  {row.what}: {row.value:.0f} {row.unit}; {row.note}", flush=True)
    result.rows += compared
    return result


def compare(raw: dict[str, Any]) -> list[Row]:
    """Return a row for each other server, with the ratios of Forewarn's approvals to its writes."""
    rows = []
    for name, words in _OTHERS.items():
        one = raw["small_writes"][name]
        ratios = " and ".join(
            f"{raw[store][COMPARED]['per_s'] / one['per_s']:.2f}x on {stored}" for store, stored in _STORES.items()
        )
        note = f"Forewarn's approvals on other hosts: {ratios}; p50 {one['p50_ms']:.1f} ms, p99 {one['p99_ms']:.1f} ms"
        what = f"{words}, {_SENDERS} at a time"
        rows.append(Row(what=what, value=one["per_s"], unit="a second", note=note))
    return rows


def _disk_ms(folder: Path) -> list[float]:
    took_ms = []
    with (folder / "disk").open("wb", buffering=0) as file:
        for _ in range(_DISK_WRITES):
            before_s = time.monotonic()
            file.write(bytes(4096))
            os.fsync(file.fileno())
            took_ms.append((time.monotonic() - before_s) * 1000)
    return took_ms


@contextmanager
def _database(store: str, place: Path) -> Iterator[str]:
    if store == "sqlite":
        yield f"sqlite:///{place}/forewarn.db"
        return
    with databases(place) as url:
        yield url


_Event = tuple[str, str]
"""Id of an event, and a VM that approves it."""


def _choose_approvals(events: list[list[_Event]], few: int) -> dict[str, tuple[list[_Event], int]]:
    """Return which events are approved in which order, and by how many senders at a time.

    The VMs of one host approve the same maintenance, which starts with the last of them. The VMs of many hosts are
    those of a fleet that sees a rollout: most of their approvals start nothing.

    Args:
        events: Events of each maintenance.
        few: Number of approvals one at a time, which are slow.
    """
    host_by_host = list(chain.from_iterable(events[: len(events) // 2]))
    one_of_each = [event for turn in zip_longest(*events[len(events) // 2 :]) for event in turn if event is not None]
    return {
        "1 VM at a time": (host_by_host[:few], 1),
        f"{_SENDERS} VMs at a time, host by host": (host_by_host[few : few + _APPROVALS_MAX], _SENDERS),
        COMPARED.removeprefix("approvals, "): (one_of_each[:_APPROVALS_MAX], _SENDERS),
    }


class _Store:
    """A service on one of the databases."""

    def __init__(self, service: Child, place: Path, log: Path, url: str) -> None:
        self._service = service
        self._place = place
        self._log = log
        self._url = url
        told = service.hear(_PATIENCE_S)
        self._control, self._metadata = (urlsplit(each).port for each in (told["control"], told["metadata"][0]))

    def measure(self, count: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        events: list[list[_Event]] = []
        for turn, concurrency in enumerate(_SCHEDULES):
            hosts = [host_name(number) for number in range(turn * count, (turn + 1) * count)]
            pressed = self._schedule(hosts, concurrency)
            events += [
                [(event["id"], event["resources"][0]) for event in item["events"]]
                for page in pressed.pop("answers")
                for item in page["items"]
            ]
            found[f"maintenances of a host with {VMS_PER_HOST} VMs, {concurrency} at a time"] = pressed
        self._check("scheduled", count * len(_SCHEDULES))
        approved = 0
        for what, (piece, senders) in _choose_approvals(events, count).items():
            found[f"approvals, {what}"] = self._approve(piece, senders)
            approved += len(piece)
        self._check("approved", approved)
        return found

    def _schedule(self, hosts: list[str], concurrency: int) -> dict[str, Any]:
        token = (self._place / "operator.token").read_text(encoding="utf-8").strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        bodies = [json.dumps({"hosts": [name], "type": "Freeze", "notice_s": 7 * 86400}) for name in hosts]
        requests = [("127.0.0.1", body) for body in bodies]
        return self._press(self._control, "/v1/maintenance", headers, requests, concurrency)

    def _approve(self, events: list[_Event], concurrency: int) -> dict[str, Any]:
        bodies = [json.dumps({"StartRequests": [{"EventId": event}]}) for event, _ in events]
        addresses = [address_of(int(vm.removeprefix("vm-"))) for _, vm in events]
        requests = list(zip(addresses, bodies, strict=True))
        return self._press(self._metadata, PATH, {"Metadata": "true"}, requests, concurrency)

    def _press(
        self, port: int | None, path: str, headers: dict[str, str], requests: list[tuple[str, str]], concurrency: int
    ) -> dict[str, Any]:
        work = {"port": port, "path": path, "headers": headers, "requests": requests, "concurrency": concurrency}
        file = self._place / "work.json"
        file.write_text(json.dumps(work), encoding="utf-8")
        cpu_s = self._service.cpu_s()
        with python_child("bench.press", str(file), core=LOAD_CORE, log=self._log) as load:
            pressed = load.hear(_PATIENCE_S)
        cpu_s = self._service.cpu_s() - cpu_s
        if pressed["wrong"] or len(pressed["took_ms"]) != len(requests):
            raise BenchError(f"{len(pressed['took_ms'])} of {len(requests)} were answered; wrong: {pressed['wrong']}")
        return pressed | {
            "per_s": len(requests) / pressed["seconds"],
            "cpu_ms": cpu_s / len(requests) * 1000,
            "busy": cpu_s / pressed["seconds"],
            "concurrency": concurrency,
        }

    def _check(self, kind: str, expected: int) -> None:
        """Check that the audit log contains all requests that were answered."""
        with open_engine(self._url).connect() as connection:
            query = sa.text("SELECT count(*) FROM audit_log WHERE kind = :kind")
            count = connection.execute(query, {"kind": kind}).scalar_one()
        if count != expected:
            raise BenchError(f"{count} of {expected} stand in the audit log as {kind}")
