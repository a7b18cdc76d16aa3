"""What a run takes place in: a PostgreSQL, three replicas, an endpoint on each host, and links that can be cut."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa

from forewarn.config import Settings
from forewarn.secret import kept_token
from tests.faultrun.links import Link
from tests.faultrun.parts import Part
from tests.faultrun.records import Place, Run
from tests.support.databases import Database, postgresql

__all__ = ["LEASE_S", "REPLICAS", "World", "is_exec", "read_runs", "world"]

REPLICAS = 3
LEASE_S = 4.0
_SET_SHARE = 0.4
_SERVICE_SHARE = 0.2
_PATIENCE_S = 2.5

_SCRIPT = """#!/bin/sh
echo "$FOREWARN_MAINTENANCE_ID start $(date +%s.%N)" >> {record}
sleep 0.4
echo "$FOREWARN_MAINTENANCE_ID end $(date +%s.%N)" >> {record}
"""
_OBSERVE = """#!/bin/sh
grep -q "^$FOREWARN_MAINTENANCE_ID end" {record} && exit 0
grep -q "^$FOREWARN_MAINTENANCE_ID start" {record} && exit 3
exit 4
"""


def is_exec() -> bool:
    """Whether `serve` can be told to run a command; otherwise it simulates, and the ledger is the record."""
    return {"actuator", "exec_command", "exec_observe_command"} <= set(Settings.model_fields)


class World:
    """All parts and links.

    Attributes:
        database: The real one.
        places: Where the VMs are.
        addresses: Of the VMs.
        replicas: The processes of `serve`.
        endpoints: The processes of `forewarn endpoint`, by host.
        to_database: The links of the replicas to the database.
        to_replica: The links of the endpoints to the replicas, by host and number of the replica.
    """

    def __init__(self, folder: Path, database: Database, host_count: int, vm_count: int) -> None:
        self.folder = folder
        self.database = database
        self.hosts = [f"host-{number}" for number in range(host_count)]
        self.places, self.addresses, inventory = _inventory(host_count, vm_count)
        (folder / "inventory.json").write_text(json.dumps(inventory))
        self.replicas: list[Part] = []
        self.endpoints: dict[str, Part] = {}
        self.to_database: list[Link] = []
        self.to_replica: dict[tuple[str, int], Link] = {}
        self.token = kept_token(folder / "operator.token")
        self._settings = _actuator_settings(folder)

    @property
    def links(self) -> list[Link]:
        """All of them."""
        return [*self.to_database, *self.to_replica.values()]

    @property
    def parts(self) -> list[Part]:
        """All of them."""
        return [*self.replicas, *self.endpoints.values()]

    def operator(self, number: int) -> httpx.AsyncClient:
        """A client of that replica as it is now; the caller closes it."""
        urls = self.replicas[number].urls
        return httpx.AsyncClient(
            base_url=urls[-1] if urls else "http://127.0.0.1:1",
            headers={"authorization": f"Bearer {self.token}"},
            timeout=_PATIENCE_S,
            trust_env=False,
            verify=False,  # noqa: S501 - there is no TLS, and making its context takes time
        )

    async def begin(self) -> None:
        """Start everything, and wait until it is ready."""
        await asyncio.gather(*(self._begin_replica(number) for number in range(REPLICAS)))
        await asyncio.gather(*(self._begin_endpoint(host) for host in self.hosts))

    async def _begin_replica(self, number: int) -> None:
        mine = self.folder / f"r{number}"
        mine.mkdir()
        shutil.copy(self.folder / "operator.token", mine / "operator.token")
        url = sa.make_url(self.database.url)
        socket = Path(str(url.query["host"])) / ".s.PGSQL.5432"
        link = Link(f"replica {number} to the database", lambda: socket)
        await link.listen(mine / ".s.PGSQL.5432")
        self.to_database.append(link)
        words = ["serve", "--database-url", url.set(query={"host": str(mine)}).render_as_string(hide_password=False)]
        words += ["--inventory", str(self.folder / "inventory.json")]
        words += ["--metadata-listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0"]
        part = Part(f"replica-{number}", self.folder, words, self._settings | {"FOREWARN_STATE_DIR": str(mine)})
        self.replicas.append(part)
        await part.start()

    async def _begin_endpoint(self, host: str) -> None:
        async with self.operator(0) as client:
            answer = await client.post(f"/v1/hosts/{host}/tokens", timeout=20)
            (self.folder / f"{host}.token").write_text(answer.json()["token"])
        words = ["endpoint", "--host", host, "--token-file", str(self.folder / f"{host}.token")]
        for number in range(REPLICAS):
            link = Link(f"{host} to replica {number}", lambda number=number: self.replicas[number].address(-1))  # type: ignore[misc] # the default binds the number
            self.to_replica[host, number] = link
            words += ["--control-url", f"http://127.0.0.1:{await link.listen()}"]
        words += ["--metadata-listen", "127.0.0.1:0", "--listen", "", "--state-file", str(self.folder / f"{host}.json")]
        part = self.endpoints[host] = Part(f"endpoint-{host}", self.folder, words, {})
        await part.start()

    async def end_connections(self) -> int:
        """Have the database end every connection of the replicas; hands back how many."""
        name = sa.make_url(self.database.url).database
        query = sa.text("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = :name")
        admin = sa.make_url(self.database.url).set(drivername="postgresql+psycopg", database="postgres")

        def end() -> int:
            engine = sa.create_engine(admin, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
            with engine.connect() as connection:
                return int(connection.execute(query, {"name": name}).scalar_one())

        return await asyncio.to_thread(end)

    async def end(self) -> None:
        """Kill everything that was started."""
        for part in self.parts:
            part.kill()
        for link in self.links:
            await link.close()


@asynccontextmanager
async def world(host_count: int, vm_count: int) -> AsyncIterator[World]:
    """A world that has begun, gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="fw-"))
    with postgresql() as server, server.database() as database:
        made = World(folder, database, host_count, vm_count)
        try:
            await made.begin()
            yield made
        finally:
            await made.end()
            shutil.rmtree(folder, ignore_errors=True)


def _actuator_settings(folder: Path) -> dict[str, str]:
    common = {"NO_COLOR": "1", "FOREWARN_ACTUATOR_RETRY": "0.5s"}
    if not is_exec():
        return common | {"FOREWARN_SIMULATE_IMPACT_AFTER": "0.2s", "FOREWARN_SIMULATE_COMPLETE_AFTER": "0.6s"}
    record = folder / "actuator.record"
    record.touch()
    for name, text in {"carry-out": _SCRIPT, "observe": _OBSERVE}.items():
        (folder / name).write_text(text.format(record=record))
        (folder / name).chmod(0o700)
    return common | {
        "FOREWARN_ACTUATOR": "exec",
        "FOREWARN_EXEC_COMMAND": str(folder / "carry-out"),
        "FOREWARN_EXEC_OBSERVE_COMMAND": str(folder / "observe"),
        "FOREWARN_ACTUATOR_LOOK_EVERY": "0.3s",
    }


def read_runs(folder: Path, entries: list[dict[str, Any]]) -> list[Run]:
    """What the actuator did: from the file that its script wrote; where it simulates, from the ledger."""
    if not is_exec():
        ends = {e["maintenance_id"]: _at(e["at"]) for e in entries if e["kind"] == "completed"}
        begun = [e for e in entries if e["kind"] == "impacted"]
        return [
            Run(maintenance_id=i, started_at=_at(e["at"]), ended_at=ends.get(i))
            for e in begun
            if (i := e["maintenance_id"])
        ]
    runs: list[Run] = []
    for line in (folder / "actuator.record").read_text().splitlines():
        id_, word, seconds = line.split(" ")
        moment = datetime.fromtimestamp(float(seconds), UTC)
        if word == "start":
            runs.append(Run(maintenance_id=id_, started_at=moment))
        else:
            place = next(n for n, run in enumerate(runs) if run.maintenance_id == id_ and run.ended_at is None)
            runs[place] = Run(maintenance_id=id_, started_at=runs[place].started_at, ended_at=moment)
    return runs


def _inventory(host_count: int, vm_count: int) -> tuple[dict[str, Place], dict[str, str], dict[str, Any]]:
    """Availability sets over all hosts, a fault domain each; a cloud service with update domains; the rest alone."""
    set_count = max(int(vm_count * _SET_SHARE) // host_count, 1)
    service_until = set_count * host_count + int(vm_count * _SERVICE_SHARE)
    places: dict[str, Place] = {}
    vms: list[dict[str, Any]] = []
    for number in range(vm_count):
        host = number % host_count
        scope, fault_domain, update_domain = "", 0, 0
        if number < set_count * host_count:
            scope, fault_domain, update_domain = f"set-{number // host_count}", host, host
        elif number < service_until:
            scope, fault_domain, update_domain = "service", host % 2, number % 3
        name = f"vm-{number}"
        address = f"127.7.{number // 200}.{number % 200 + 1}"
        vm = {"name": name, "host": f"host-{host}", "addresses": [address], "fault_domain": fault_domain}
        vms.append(vm | {"update_domain": update_domain} | ({"scope": scope} if scope else {}))
        places[name] = Place(host=f"host-{host}", label=scope or name, fault_domain=fault_domain, is_spread=bool(scope))
    scopes = [{"name": f"set-{number}", "kind": "availability-set"} for number in range(set_count)]
    inventory = {
        "hosts": [{"name": f"host-{number}"} for number in range(host_count)],
        "scopes": [*scopes, {"name": "service", "kind": "cloud-service"}],
        "vms": vms,
    }
    return places, {vm["name"]: vm["addresses"][0] for vm in vms}, inventory


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)
