"""A cluster with everything in it, from one seed."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec

from forewarn.actuators import Actuator
from forewarn.agent.configuration import Configuration
from forewarn.agent.rule import Hook, Rule
from forewarn.client import Pace
from forewarn.clock import replace_uptime
from forewarn.core.model import ACTIVE_STATES, EventType
from forewarn.testing.simulation.agent_group import AgentGroup
from forewarn.testing.simulation.agent_vm import AgentVm
from forewarn.testing.simulation.chaos import KINDS, Chaos, draw_plan
from forewarn.testing.simulation.database import Database, LinkState
from forewarn.testing.simulation.handler_vm import HandlerVm
from forewarn.testing.simulation.host import METADATA_ADDRESS, HostEndpoint
from forewarn.testing.simulation.hypervisor import Hypervisor, HypervisorActuator
from forewarn.testing.simulation.libraries import spare_work
from forewarn.testing.simulation.machine import Machine
from forewarn.testing.simulation.machine_clock import START, MachineClock
from forewarn.testing.simulation.network import Network, Node
from forewarn.testing.simulation.operators import Operators
from forewarn.testing.simulation.outcome import Outcome
from forewarn.testing.simulation.parts import Parts
from forewarn.testing.simulation.properties import find_missing_notifications
from forewarn.testing.simulation.randomness import seeded_randomness, virtual_time
from forewarn.testing.simulation.receiver import Receiver
from forewarn.testing.simulation.replica import CONTROL_PORT, Replica
from forewarn.testing.simulation.strikes import Strikes
from forewarn.testing.simulation.trace import Trace
from forewarn.testing.simulation.virtual_loop import SimulatedProcess, VirtualLoop, read_uptime_s
from forewarn.testing.simulation.vm import SimulatedVm
from forewarn.util.failpoint import listen_to_failpoints
from forewarn.util.tasks import cancel_tasks
from forewarn.wire.rollout import decode_rollout

__all__ = ["Size", "World", "make_rng", "simulate"]

_REST_S_MAX = 4 * 3600.0
_SILENT_S_MAX = 30 * 60.0
"""Time without a fact after which there will be none: nothing but a notification waits for longer."""

_RETRY_S_MAX = 70 * 60.0
"""The same while a notification is missing: an hour may pass before its next attempt."""

_LOOK_S = 20.0
_DELAYS_S_MAX = (0.005, 0.02, 0.2)
"""Maximum time for a request to the database, and for its answer, in seconds. Each world has one of these values."""

_ALL = 100_000
_UNAPPROVING = 0.05
"""Share of the worlds in which some agents never approve. Each event of theirs may take fifteen minutes."""

_QUIET = 0.1
"""Share of the worlds whose availability set has quiet hours. Its maintenance takes until their end."""

_QUIET_FROM, _QUIET_UNTIL = timedelta(minutes=10), timedelta(minutes=22)
_SHORT_NOTICE = 0.9
"""Share of the worlds without quiet hours whose operator gives less notice than the minimum."""

_SIZES_MAX = {"replicas": 9, "hosts": 50, "vms": 200, "operations": 10_000, "span_s": 86_400}
_AT_ONCE_MAX = 4
"""Maximum number of things that operators do at once, in a busy world."""

_WEB = 2
"""Number of VMs in the availability set; the others are alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of a simulated cluster.

    Attributes:
        replicas: Number of replicas of the service; 1 to 9.
        hosts: Number of hosts, each with an endpoint; 1 to 50.
        vms: Number of VMs, spread over the hosts; 1 to 200. The first two are an availability set.
        operations: Number of requests of operators and tenants; 1 to 10,000.
        span_s: Duration of the phase with faults, in simulated seconds; 1 to 86,400.
        kinds: Kinds of faults, from `KINDS`; ``()`` for none. None draws up to ten for each seed.

    Raises:
        ValueError: A number is out of range, or a kind is unknown.
    """

    replicas: int = 3
    hosts: int = 2
    vms: int = 4
    operations: int = 8
    span_s: float = 300.0
    kinds: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Check everything."""
        for name, most in _SIZES_MAX.items():
            if not 1 <= (value := getattr(self, name)) <= most:
                raise ValueError(f"{name} is {value}, expected 1 to {most}")
        if unknown := sorted(set(self.kinds or ()) - KINDS.keys()):
            raise ValueError(f"unknown kinds of faults: {', '.join(unknown)}; expected some of {', '.join(KINDS)}")


def make_rng(name: str, seed: int) -> random.Random:
    """Return the source of one part's randomness, so that parts do not change what others draw."""
    return random.Random(f"{name} {seed}")  # noqa: S311 - for simulations only


class World:
    """Replicas, hosts, VMs, an operator, tenants, a receiver of notifications, and what lies between them.

    Args:
        seed: Everything follows from it.
        size: Size of the world.
        state_dir: Folder with the operator's token.
        parts: What is not Forewarn's own.

    Attributes:
        delay_s_max: `Database.delay_s_max` without faults.
    """

    def __init__(self, seed: int, size: Size, state_dir: Path, parts: Parts) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)  # noqa: S101 - made by `simulate`
        self.seed = seed
        self.size = size
        self._parts = parts
        self.trace = Trace()
        self._loop = loop
        self._rng = self._make_rng("world")
        self.network = loop.network = Network(self._make_rng("network"))
        self.database = Database(MachineClock(loop))
        self._is_observable = self._rng.random() < 0.5  # noqa: PLR2004 - a coin
        self.hypervisor = Hypervisor(
            self.trace, self._make_rng("hypervisor"), loses_answers=parts.make_actuator is not None
        )
        self.hypervisor.on_impact, self.hypervisor.on_complete = self._interrupt_vms, self._return_vms
        self.replicas = [self._add(Replica, f"replica-{n}", f"10.0.0.{n + 1}") for n in range(size.replicas)]
        self.hosts: list[HostEndpoint] = [
            self._add(HostEndpoint, f"host-{n}", f"10.0.2.{n + 1}") for n in range(size.hosts)
        ]
        kind = HandlerVm if parts.handler else AgentVm
        self.vms: list[SimulatedVm] = [self._add(kind, f"vm-{n}", f"10.0.3.{n + 1}") for n in range(size.vms)]
        web = {vm.name: vm.node.address for vm in self.vms[:_WEB]}
        self._group = AgentGroup(self._make_rng("peers"), web, has_one_host=size.hosts == 1)
        self.receiver = self._add(Receiver, "receiver", "10.0.4.1")
        self.receiver.prepare(self._make_rng("receiver"))
        self.strikes = Strikes({machine.name: machine for machine in self.machines}.__getitem__)
        links = self._make_rng("database")
        delays = self._make_rng("delays")
        self.delay_s_max = self.database.delay_s_max = delays.choice(_DELAYS_S_MAX)
        loop.draw_delay_s = lambda: delays.uniform(0.0, self.database.delay_s_max)
        for replica in self.replicas:
            replica.prepare(self.database, LinkState(links.random), self._make_actuator, state_dir)
        urls = [f"http://{replica.node.address}:{CONTROL_PORT}" for replica in self.replicas]
        token = (state_dir / "operator.token").read_text().strip()
        self.operators = Operators(urls, token, self._make_rng("operators"), self.trace)
        self._urls = urls
        self._people = self.network.add_node("operator", "10.0.1.1")
        self._has_quiet_hours = self._rng.random() < _QUIET
        self._has_unapproving = self._rng.random() < _UNAPPROVING
        is_short = self._make_rng("notice").random() < _SHORT_NOTICE
        self.operators.gives_short_notice = is_short and not self._has_quiet_hours  # forced maintenance ignores them

    @property
    def machines(self) -> list[Machine]:
        """All machines."""
        return [*self.replicas, *self.hosts, *self.vms, self.receiver]

    def _make_rng(self, name: str) -> random.Random:
        return make_rng(name, self.seed)

    def _add(self, kind: type[Any], name: str, address: str) -> Any:  # noqa: ANN401 - a machine of that kind
        node: Node = self.network.add_node(name, address)
        return kind(node, self.network, MachineClock(self._loop), self.trace)

    async def run(self) -> Outcome:
        """Run it to its end: set up, faults, healing, rest."""
        people = SimulatedProcess("operator", self._people, MachineClock(self._loop))
        await people.start(self._set_up())
        rng = self._make_rng("chaos")
        plan = draw_plan(rng, self._make_rng("busy world"), self.size.kinds)
        chaos = Chaos(self, rng, plan)
        self.trace.note("chaos", "kinds", kinds=list(plan.kinds))
        trouble = asyncio.create_task(chaos.run())
        await people.start(self._operate(is_busy=plan.is_busy))
        if trouble.done() and plan.kinds:
            trouble.result()  # raises its error: a run without its faults must not pass
        await cancel_tasks(trouble)
        chaos.heal()
        return await self._come_to_rest(people)

    # Set-up

    async def _set_up(self) -> None:
        self.receiver.start()
        for replica in self.replicas:
            replica.start()
        await asyncio.sleep(3)
        self.operators.hosts = [host.name for host in self.hosts]
        async with self.operators.connect(0) as client:
            inventory = self._describe_inventory()
            (await client.put("/v1/inventory?remove_missing=true", json=inventory)).raise_for_status()
            subscription = {"name": "all", "url": self.receiver.url}
            (await client.post("/v1/subscriptions", json=subscription)).raise_for_status()
            for host in self.hosts:
                host.prepare(self._urls, (await client.post(f"/v1/hosts/{host.name}/tokens")).json()["token"])
                host.start()
            for n, vm in enumerate(self.vms):
                if n == 0 or n >= _WEB:
                    owned = {"scopes": ["web"]} if n < _WEB else {"vms": [vm.name]}
                    body = {"name": f"owner-{vm.name}", "role": "tenant", **owned}
                    self.operators.tenants[vm.name] = (await client.post("/v1/tokens", json=body)).json()["token"]
        for n, vm in enumerate(self.vms):
            vm.node.routes[METADATA_ADDRESS] = self._find_host(n).node
            self._prepare_vm(vm)
            vm.start()
        await asyncio.sleep(30)

    def _find_host(self, n: int) -> HostEndpoint:
        """Return the host of a VM."""
        return self.hosts[0 if self._group.mode and n < _WEB else n % len(self.hosts)]

    def _describe_inventory(self) -> dict[str, Any]:
        names = [host.name for host in self.hosts]
        web: dict[str, Any] = {"name": "web", "kind": "availability-set"}
        if self._has_quiet_hours:
            quiet = {"from": f"{START + _QUIET_FROM:%H:%M}", "to": f"{START + _QUIET_UNTIL:%H:%M}", "timezone": "UTC"}
            web["policy"] = {"quiet_hours": [quiet]}
        return {
            "hosts": [{"name": name} for name in names],
            "scopes": [web],
            "vms": [
                {"name": vm.name, "host": self._find_host(n).name, "addresses": [vm.node.address]}
                | ({"scope": "web"} if n < _WEB else {})
                for n, vm in enumerate(self.vms)
            ],
        }

    def _prepare_vm(self, vm: SimulatedVm) -> None:
        vm.prepare(self._make_rng(vm.name))
        if isinstance(vm, AgentVm):
            configuration = self._draw_configuration()
            if vm in self.vms[:_WEB]:
                configuration = msgspec.structs.replace(configuration, together=self._group.make_settings(vm.name))
            vm.configure(configuration, self._draw_pace(), self._group)
        elif isinstance(vm, HandlerVm) and self._parts.handler is not None:
            vm.configure(self._parts.handler)

    def _make_actuator(self) -> Actuator:
        if self._parts.make_actuator is not None:
            return self._parts.make_actuator(self.hypervisor)
        return HypervisorActuator(self.hypervisor, is_observable=self._is_observable)

    def _draw_configuration(self) -> Configuration:
        hook = (Hook(shell="something"),)  # noqa: S604 - never run: the steps are simulated
        kinds: list[dict[str, Any]] = [
            {"prepare": hook, "recover": hook},
            {"prepare": hook, "recover": hook},
            {"prepare": hook, "recover": hook, "on_failure": "approve"},
            {"approve": "at-once", "recover": hook},
        ]
        kind = self._rng.choice(kinds)
        if self._has_unapproving and self._rng.random() < 0.5:  # noqa: PLR2004 - a coin
            kind = {"approve": "never", "prepare": hook, "recover": hook}
        return Configuration(rule=(Rule(name="all", **kind),), timezone="UTC")

    def _draw_pace(self) -> Pace:
        return Pace(wait_s=self._rng.choice([0, 60, 120]), poll_interval_s=self._rng.choice([5, 10]))

    # The phase with faults

    async def _operate(self, *, is_busy: bool) -> None:
        until_s = self._loop.time() + self.size.span_s
        left = self.size.operations
        while left:
            at_once = min(left, self._rng.randint(1, _AT_ONCE_MAX)) if is_busy else 1
            left -= at_once
            await asyncio.sleep(self._rng.expovariate(self.size.operations / at_once / self.size.span_s))
            async with asyncio.TaskGroup() as group:
                for _ in range(at_once):
                    group.create_task(self._act())
        await asyncio.sleep(max(0.0, until_s - self._loop.time()))

    async def _act(self) -> None:
        with suppress(httpx.HTTPError, ValueError):
            await self.operators.act()

    def _interrupt_vms(self, names: Sequence[str], event_type: EventType) -> None:
        """Take the VMs away, like a hypervisor; a frozen VM notices nothing."""
        for vm in self.vms:
            if vm.name in names and event_type is not EventType.FREEZE:
                vm.is_off = True
                vm.kill(is_power_loss=True)

    def _return_vms(self, names: Sequence[str]) -> None:
        for vm in self.vms:
            if vm.name in names:
                vm.is_off = False
                vm.start()

    # The end

    async def _come_to_rest(self, people: SimulatedProcess) -> Outcome:
        deadline_s = self._loop.time() + _REST_S_MAX * max(1.0, self.size.operations / Size().operations)
        facts, changed_s = 0, self._loop.time()
        while True:
            await asyncio.sleep(_LOOK_S)
            if len(self.trace.facts) > facts:
                facts, changed_s = len(self.trace.facts), self._loop.time()
            for machine in self.machines:
                machine.start()
            for vm in self.vms:
                vm.retry_failed_recoveries()
            with suppress(httpx.HTTPError):
                await people.start(self.operators.resume_rollouts())
            outcome = self._read_outcome()
            is_notified = not any(find_missing_notifications(outcome))
            silent_s_max = _SILENT_S_MAX if is_notified else _RETRY_S_MAX
            is_over = is_notified and not outcome.left
            if is_over or self._loop.time() > min(deadline_s, changed_s + silent_s_max):
                return outcome

    def _read_outcome(self) -> Outcome:
        with self.database.read() as reader:
            maintenances = reader.list_maintenances(limit=_ALL).items
            events = reader.find_events_of([m.id for m in maintenances])
            entries = reader.list_entries(limit=_ALL).items
            rollouts = [decode_rollout(stored.content) for stored in reader.list_rollouts(limit=_ALL)]
        web = frozenset(vm.name for vm in self.vms[:_WEB])
        return Outcome(
            facts=self.trace.facts,
            maintenances=maintenances,
            events=events,
            entries=entries,
            rollouts=rollouts,
            left=[
                *(f"maintenance {m.id} is {m.state}" for m in maintenances if m.state in ACTIVE_STATES),
                *(f"rollout {r.id} is {r.state}" for r in rollouts if not r.is_ended),
                *(f"{vm.name} is not at rest" for vm in self.vms if not vm.is_at_rest),
            ],
            group_mode="" if self._parts.handler else self._group.mode,
            visible={vm.name: web if vm.name in web else frozenset({vm.name}) for vm in self.vms},
            quiet_vms=web if self._has_quiet_hours else frozenset(),
            quiet_from=START + _QUIET_FROM,
            quiet_until=START + _QUIET_UNTIL,
            has_own_actuator=self._parts.make_actuator is None,
            delay_s_max=self.delay_s_max,
            requests_per_s_max=max(max(replica.link.requests.values(), default=0) for replica in self.replicas),
            reached=self.strikes.reached,
            struck=self.strikes.struck,
        )


def simulate(seed: int, state_dir: Path, size: Size | None = None, parts: Parts | None = None) -> tuple[Outcome, Trace]:
    """Run a world from a seed; the same seed gives the same trace.

    Args:
        seed: Everything follows from it.
        state_dir: Folder with the operator's token.
        size: Size of the world; None for the default.
        parts: What is not Forewarn's own; None if everything is.

    What a run leaves behind is collected at its end, unless garbage collection is disabled.
    """
    if not gc.isenabled():
        return _simulate(seed, state_dir, size or Size(), parts or Parts())
    report, sys.unraisablehook = sys.unraisablehook, lambda _: None
    gc.disable()
    try:
        return _simulate(seed, state_dir, size or Size(), parts or Parts())
    finally:
        gc.enable()
        # Now, while nothing is reported: what killed processes have left behind complains when it is collected.
        gc.collect()
        sys.unraisablehook = report


def _simulate(seed: int, state_dir: Path, size: Size, parts: Parts) -> tuple[Outcome, Trace]:
    async def run() -> tuple[Outcome, Trace]:
        world = World(seed, size, state_dir, parts)
        try:
            with listen_to_failpoints(world.strikes.reach):
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
            spare_work(),
        ):
            return loop.run_until_complete(run())
    finally:
        loop.drop_tasks()
        loop.close()
        asyncio.set_event_loop(None)
