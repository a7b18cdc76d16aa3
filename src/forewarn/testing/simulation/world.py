"""A cluster with everything in it, from one seed."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from forewarn.actuators import Progress, Simulate
from forewarn.agent.configuration import Configuration
from forewarn.agent.rule import Hook, Rule
from forewarn.client import Pace
from forewarn.clock import replace_uptime
from forewarn.core.model import ACTIVE_STATES, Maintenance
from forewarn.errors import ActuatorError
from forewarn.testing.simulation.chaos import Chaos
from forewarn.testing.simulation.database import Database, LinkState
from forewarn.testing.simulation.host import METADATA_ADDRESS, TLS, HostEndpoint
from forewarn.testing.simulation.machine import Machine
from forewarn.testing.simulation.machine_clock import START, MachineClock
from forewarn.testing.simulation.network import Network, Node
from forewarn.testing.simulation.outcome import Outcome
from forewarn.testing.simulation.randomness import seeded_randomness, virtual_time
from forewarn.testing.simulation.replica import CONTROL_PORT, Replica
from forewarn.testing.simulation.trace import Trace
from forewarn.testing.simulation.virtual_loop import SimulatedProcess, VirtualLoop, read_uptime_s
from forewarn.testing.simulation.vm import SimulatedVm
from forewarn.util.tasks import cancel_tasks

__all__ = ["Size", "World", "simulate"]

_REST_S_MAX = 4 * 3600.0
_LOOK_S = 20.0
_ALL = 100_000
_UNAPPROVING = 0.05
"""Share of the agents that never approve. Each event of theirs takes fifteen minutes."""

_OPERATIONS_MAX = 8
_WEB = 2
"""Number of VMs in the availability set; the others are alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of a world.

    Attributes:
        span_s: Duration of the phase with faults, in seconds.
    """

    replicas: int = 3
    hosts: int = 2
    vms: int = 4
    span_s: float = 300.0


class Hypervisor:
    """Actuator of all replicas: `simulate`, with failures, and a fact in the trace for each impact.

    Attributes:
        failures: Probability that a call fails.
    """

    is_observable = True

    def __init__(self, trace: Trace, rng: random.Random) -> None:
        self.failures = 0.0
        self._trace = trace
        self._rng = rng
        # Short, or most of the simulated time would pass while nothing happens.
        self._simulate = Simulate(timedelta(seconds=5), timedelta(seconds=20))
        self._hit: dict[str, None] = {}

    def plan(self, maintenance: Maintenance) -> tuple[str, ...]:
        """Return what would be done."""
        return self._simulate.plan(maintenance)

    async def check(self) -> None:
        """Do nothing."""

    async def execute(self, maintenance: Maintenance, now: datetime) -> Progress:
        """Begin, or go on."""
        return await self.observe(maintenance, now)

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress:
        """Return how far it is."""
        await asyncio.sleep(self._rng.uniform(0.001, 0.5))
        if self._rng.random() < self.failures:
            raise ActuatorError("the hypervisor is busy")
        progress = await self._simulate.observe(maintenance, now)
        if progress.is_impacted and maintenance.id not in self._hit:
            self._hit[maintenance.id] = None
            self._trace.note("hypervisor", "impact", maintenance=maintenance.id, vms=list(maintenance.vms))
        return progress

    async def abort(self, maintenance: Maintenance, now: datetime) -> None:
        """Note it."""
        del now
        self._trace.note("hypervisor", "abort", maintenance=maintenance.id)

    async def close(self) -> None:
        """Do nothing."""


class World:
    """Replicas, hosts, VMs, an operator, and what lies between them.

    Args:
        seed: Everything follows from it.
        size: Size of the world.
        state_dir: Folder with the operator's token.
    """

    def __init__(self, seed: int, size: Size, state_dir: Path) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)  # noqa: S101 - made by `simulate`
        self.seed = seed
        self.size = size
        self.trace = Trace()
        self._loop = loop
        self._rng = self._make_rng("world")
        self.network = loop.network = Network(self._make_rng("network"))
        self.database = Database(MachineClock(loop))
        self.hypervisor = Hypervisor(self.trace, self._make_rng("hypervisor"))
        self.replicas = [self._add(Replica, f"replica-{n}", f"10.0.0.{n + 1}") for n in range(size.replicas)]
        self.hosts = [self._add(HostEndpoint, f"host-{n}", f"10.0.2.{n + 1}") for n in range(size.hosts)]
        self.vms = [self._add(SimulatedVm, f"vm-{n}", f"10.0.3.{n + 1}") for n in range(size.vms)]
        self.urls = [f"http://{replica.node.address}:{CONTROL_PORT}" for replica in self.replicas]
        links = self._make_rng("database")
        for replica in self.replicas:
            replica.prepare(self.database, LinkState(links.random), self.hypervisor, state_dir)
        self._operator = self.network.add_node("operator", "10.0.1.1")
        self._token = (state_dir / "operator.token").read_text().strip()

    @property
    def machines(self) -> list[Machine]:
        """All machines."""
        return [*self.replicas, *self.hosts, *self.vms]

    def _make_rng(self, name: str) -> random.Random:
        return random.Random(f"{name} {self.seed}")  # noqa: S311 - for simulations only

    def _add(self, kind: type[Any], name: str, address: str) -> Any:  # noqa: ANN401 - a machine of that kind
        node: Node = self.network.add_node(name, address)
        return kind(node, self.network, MachineClock(self._loop), self.trace)

    async def run(self) -> Outcome:
        """Run it to its end: set up, faults, healing, rest."""
        operator = SimulatedProcess("operator", self._operator, MachineClock(self._loop))
        await operator.start(self._set_up())
        chaos = Chaos(self, self._make_rng("chaos"))
        self.trace.note("chaos", "kinds", kinds=chaos.kinds)
        trouble = asyncio.create_task(chaos.run())
        await operator.start(self._operate())
        await cancel_tasks(trouble)
        chaos.heal()
        return await self._come_to_rest()

    # Set-up

    async def _set_up(self) -> None:
        for replica in self.replicas:
            replica.start()
        await asyncio.sleep(3)
        names = [host.name for host in self.hosts]
        inventory: dict[str, Any] = {
            "hosts": [{"name": name} for name in names],
            "scopes": [{"name": "web", "kind": "availability-set"}],
            "vms": [
                {"name": vm.name, "host": names[n % len(names)], "addresses": [vm.node.address]}
                | ({"scope": "web"} if n < _WEB else {})
                for n, vm in enumerate(self.vms)
            ],
        }
        async with self._connect(0) as client:
            (await client.put("/v1/inventory?remove_missing=true", json=inventory)).raise_for_status()
            for host in self.hosts:
                host.prepare(self.urls, (await client.post(f"/v1/hosts/{host.name}/tokens")).json()["token"])
                host.start()
        for n, vm in enumerate(self.vms):
            vm.node.routes[METADATA_ADDRESS] = self.hosts[n % len(self.hosts)].node
            vm.prepare(self._draw_configuration(), self._draw_pace(), self._make_rng(vm.name))
            vm.start()
        await asyncio.sleep(30)

    def _draw_configuration(self) -> Configuration:
        hook = (Hook(shell="something"),)  # noqa: S604 - never run: the steps are simulated
        kinds: list[dict[str, Any]] = [
            {"prepare": hook, "recover": hook},
            {"prepare": hook, "recover": hook},
            {"prepare": hook, "recover": hook, "on_failure": "approve"},
            {"approve": "at-once", "recover": hook},
        ]
        kind = self._rng.choice(kinds)
        if self._rng.random() < _UNAPPROVING:
            kind = {"approve": "never", "prepare": hook, "recover": hook}
        return Configuration(rule=(Rule(name="all", **kind),), timezone="UTC")

    def _draw_pace(self) -> Pace:
        return Pace(wait_s=self._rng.choice([0, 60, 120]), poll_interval_s=self._rng.choice([5, 10]))

    def _connect(self, number: int) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {self._token}"}
        return httpx.AsyncClient(base_url=self.urls[number], headers=headers, trust_env=False, verify=TLS, timeout=10.0)

    # Operators

    async def _operate(self) -> None:
        until_s = self._loop.time() + self.size.span_s
        for _ in range(_OPERATIONS_MAX):
            await asyncio.sleep(self._rng.expovariate(_OPERATIONS_MAX / self.size.span_s))
            with suppress(httpx.HTTPError, ValueError):
                async with self._connect(self._rng.randrange(len(self.replicas))) as client:
                    await self._act(client)
        await asyncio.sleep(max(0.0, until_s - self._loop.time()))

    async def _act(self, client: httpx.AsyncClient) -> None:
        rng, host, vm = self._rng, self._rng.choice(self.hosts).name, self._rng.choice(self.vms).name
        kind = rng.choice(["host", "host", "host", "vm", "restart", "cancel"])
        key = {"idempotency-key": f"{rng.getrandbits(64):x}"}
        if kind == "cancel":
            answer = await client.get("/v1/maintenance?state=scheduled")
            if answer.is_success and (items := answer.json()["items"]):
                await client.post(f"/v1/maintenance/{rng.choice(items)['id']}/cancel", headers=key)
            return
        if kind == "restart":
            answer = await client.post(f"/v1/vms/{vm}/restart", headers=key)
        else:
            what = {"hosts": [host]} if kind == "host" else {"vms": [vm]}
            body = what | {"type": rng.choice(["Freeze", "Reboot", "Redeploy"]), "duration_s": 9}
            answer = await client.post("/v1/maintenance", json=body, headers=key)
        self.trace.note("operator", kind, status=answer.status_code)

    # The end

    async def _come_to_rest(self) -> Outcome:
        deadline_s = self._loop.time() + _REST_S_MAX
        while True:
            await asyncio.sleep(_LOOK_S)
            for machine in self.machines:
                machine.start()
            for vm in self.vms:
                vm.retry_failed_recoveries()
            outcome = self._read_outcome()
            if not outcome.left or self._loop.time() > deadline_s:
                return outcome

    def _read_outcome(self) -> Outcome:
        with self.database.read() as reader:
            maintenances = reader.list_maintenances(limit=_ALL).items
            events = reader.find_events_of([m.id for m in maintenances])
            entries = reader.list_entries(limit=_ALL).items
        web = frozenset(vm.name for vm in self.vms[:_WEB])
        return Outcome(
            facts=self.trace.facts,
            maintenances=maintenances,
            events=events,
            entries=entries,
            left=[
                *(f"maintenance {m.id} is {m.state}" for m in maintenances if m.state in ACTIVE_STATES),
                *(f"{vm.name}: its agent is not at rest" for vm in self.vms if not vm.is_at_rest),
            ],
            visible={vm.name: web if vm.name in web else frozenset({vm.name}) for vm in self.vms},
        )


def simulate(seed: int, state_dir: Path, size: Size | None = None) -> tuple[Outcome, Trace]:
    """Run a world from a seed; the same seed gives the same trace.

    Args:
        seed: Everything follows from it.
        state_dir: Folder with the operator's token.
        size: Size of the world; None for the default.
    """
    report, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        return _simulate(seed, state_dir, size or Size())
    finally:
        # Now, while nothing is reported: what killed processes have left behind complains when it is collected.
        gc.collect()
        sys.unraisablehook = report


def _simulate(seed: int, state_dir: Path, size: Size) -> tuple[Outcome, Trace]:
    async def run() -> tuple[Outcome, Trace]:
        world = World(seed, size, state_dir)
        try:
            return await world.run(), world.trace
        finally:
            world.network.close()

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
