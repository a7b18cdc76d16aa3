"""A cluster with everything in it, from one seed."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from forewarn.actuators import Progress, Simulate
from forewarn.agent.configuration import Configuration
from forewarn.agent.rule import Hook, Rule
from forewarn.client import Pace
from forewarn.clock import replace_uptime
from forewarn.core.model import Maintenance
from forewarn.testing.simulation.database import Database, LinkState
from forewarn.testing.simulation.host import METADATA_ADDRESS, TLS, HostEndpoint
from forewarn.testing.simulation.machine_clock import START, MachineClock
from forewarn.testing.simulation.network import Network
from forewarn.testing.simulation.randomness import seeded_randomness, virtual_time
from forewarn.testing.simulation.replica import CONTROL_PORT, Replica
from forewarn.testing.simulation.trace import Trace
from forewarn.testing.simulation.virtual_loop import SimulatedProcess, VirtualLoop, read_uptime_s
from forewarn.testing.simulation.vm import SimulatedVm

__all__ = ["Size", "World", "simulate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much there is in a world."""

    replicas: int = 3
    hosts: int = 2
    vms: int = 4
    span_s: float = 600.0


class _Hypervisor:
    """Actuator of all replicas: `simulate`, and a fact in the trace for each impact."""

    is_observable = True

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._simulate = Simulate()
        self._hit: dict[str, None] = {}

    async def execute(self, maintenance: Maintenance, now: datetime) -> Progress:
        return await self.observe(maintenance, now)

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress:
        progress = await self._simulate.observe(maintenance, now)
        if progress.is_impacted and maintenance.id not in self._hit:
            self._hit[maintenance.id] = None
            self._trace.note("hypervisor", "impact", maintenance=maintenance.id, vms=list(maintenance.vms))
        return progress

    async def abort(self, maintenance: Maintenance, now: datetime) -> None:
        del now
        self._trace.note("hypervisor", "abort", maintenance=maintenance.id)

    async def close(self) -> None:
        """Do nothing."""


class World:
    """Replicas, hosts, VMs, an operator, and what lies between them."""

    def __init__(self, seed: int, size: Size, state_dir: Path) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)  # noqa: S101 - made by `simulate`
        self.rng = random.Random(f"world {seed}")  # noqa: S311 - no secrets
        self.trace = Trace()
        self.size = size
        self.network = loop.network = Network(random.Random(f"network {seed}"))  # noqa: S311 - as above
        self.database = Database(MachineClock(loop))
        self.hypervisor = _Hypervisor(self.trace)
        links = random.Random(f"database {seed}")  # noqa: S311 - as above
        self.replicas = [
            Replica(
                self.network.add_node(f"replica-{n}", f"10.0.0.{n + 1}"),
                self.network,
                self.database,
                LinkState(links.random),
                MachineClock(loop),
                self.hypervisor,
                self.trace,
                state_dir,
            )
            for n in range(size.replicas)
        ]
        self.urls = [f"http://10.0.0.{n + 1}:{CONTROL_PORT}" for n in range(size.replicas)]
        self.operator_node = self.network.add_node("operator", "10.0.1.1")
        self.hosts: list[HostEndpoint] = []
        self.vms: list[SimulatedVm] = []
        self._loop = loop
        self._seed = seed
        self._token = (state_dir / "operator.token").read_text().strip()

    async def run(self) -> None:
        """Run it to its end."""
        operator = SimulatedProcess("operator", self.operator_node, MachineClock(self._loop))
        await operator.start(self._operate())
        for each in (*self.vms, *self.hosts, *self.replicas):
            each.kill()
        self.network.close()

    async def _operate(self) -> None:
        for replica in self.replicas:
            replica.start()
        await asyncio.sleep(3)
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                httpx.AsyncClient(
                    base_url=self.urls[0], headers={"authorization": f"Bearer {self._token}"}, trust_env=False, verify=TLS
                )
            )
            names = [f"host-{n}" for n in range(self.size.hosts)]
            inventory: dict[str, Any] = {
                "hosts": [{"name": name} for name in names],
                "vms": [
                    {"name": f"vm-{n}", "host": names[n % len(names)], "addresses": [f"10.0.3.{n + 1}"]}
                    for n in range(self.size.vms)
                ],
            }
            answer = await client.put("/v1/inventory?remove_missing=true", json=inventory)
            self.trace.note("operator", "inventory", status=answer.status_code)
            for n, name in enumerate(names):
                token = (await client.post(f"/v1/hosts/{name}/tokens")).json()["token"]
                node = self.network.add_node(name, f"10.0.2.{n + 1}")
                self.hosts.append(
                    HostEndpoint(node, self.network, MachineClock(self._loop), self.trace, self.urls, token)
                )
                self.hosts[-1].start()
            for n in range(self.size.vms):
                node = self.network.add_node(f"vm-{n}", f"10.0.3.{n + 1}")
                node.routes[METADATA_ADDRESS] = self.hosts[n % len(names)].node
                hook = (Hook(shell="something"),)  # noqa: S604 - never run: the steps are simulated
                configuration = Configuration(rule=(Rule(name="all", prepare=hook, recover=hook),), timezone="UTC")
                vm = SimulatedVm(
                    node,
                    configuration,
                    Pace(wait_s=60, poll_interval_s=1),
                    MachineClock(self._loop),
                    self.trace,
                    random.Random(f"vm {n} {self._seed}"),  # noqa: S311 - no secrets
                )
                self.vms.append(vm)
                vm.start()
            await asyncio.sleep(30)
            for name in names:
                answer = await client.post(
                    "/v1/maintenance", json={"hosts": [name], "type": "Reboot", "duration_s": 9}
                )
                self.trace.note("operator", "schedule", status=answer.status_code, ids=len(answer.json()["items"]))
            await asyncio.sleep(self.size.span_s)
            answer = await client.get("/v1/maintenance")
            for item in answer.json()["items"]:
                self.trace.note("operator", "maintenance", id=item["id"], state=item["state"])


def simulate(seed: int, state_dir: Path, size: Size | None = None) -> World:
    """Run a world from a seed."""

    async def run() -> World:
        world = World(seed, size or Size(), state_dir)
        await world.run()
        return world

    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        with (
            replace_uptime(read_uptime_s),
            seeded_randomness(seed),
            virtual_time(loop.time, START.timestamp()),
        ):
            return loop.run_until_complete(run())
    finally:
        loop.drop_tasks()
        loop.close()
        asyncio.set_event_loop(None)
