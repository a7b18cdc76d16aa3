"""Hundreds of agents, the service, operators and everything that can go wrong, from one seed on virtual time.

First all of it at once for a while; then nothing fails any more, and everything has to come to rest.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import timedelta

from forewarn.agent.agent import Agent
from forewarn.agent.record import ApprovalState, EventRecord
from forewarn.agent.rule import EventStep
from forewarn.client import AsyncClient
from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import AuditEntry, Event, EventSource, EventType, Maintenance, MaintenanceState
from forewarn.errors import ForewarnError
from forewarn.scheduling.scheduler import SchedulerSettings
from forewarn.store import SqlStore
from forewarn.util.ids import SeededIds
from forewarn.wire.imds import Dialect
from tests.support.agents.declared import Declared, declare
from tests.support.agents.gossip import Gossip, Hearsay
from tests.support.agents.machine import DiskOf, Machine
from tests.support.agents.provider import Hypervisor, Provider, Reset
from tests.support.agents.steps import FakeSteps
from tests.support.agents.weather import CALM, ROUGH, Weather
from tests.support.agents.wire import Wire
from tests.support.faults import FaultyStore, ProcessDied
from tests.support.simulated import OPEN, Simulated
from tests.support.warp import WarpClock

__all__ = ["Region"]

_REST_S_MAX = 4 * 3600
_ENDED = {MaintenanceState.COMPLETED, MaintenanceState.CANCELED, MaintenanceState.FAILED}


class Region:
    """Everything.

    Args:
        seed: All follows from it.
        count: How many VMs, or a few more.
        weather: How likely things go wrong by themselves.
        trouble: How often trouble is made for each VM; 1 for once each five minutes, 0 for never.
        events: How often an operator does something for each VM; 1 for once an hour.

    Attributes:
        machines: By name.
        faults: How often each thing went wrong.
        left: What had not come to rest at the end.
        ended_s: When it came to rest, in seconds.
    """

    def __init__(
        self, seed: int, count: int, *, weather: Weather = ROUGH, trouble: float = 1.0, events: float = 1.0
    ) -> None:
        self.rng = random.Random(f"region {seed}")
        self.weather = weather
        self._trouble_s = 300 / trouble if trouble else 0.0
        self._event_s = 3600 / events
        self.faults: Counter[str] = Counter()
        self.ended_s = 0.0
        self.left: list[str] = []
        self._seed = seed
        self._loop = asyncio.get_running_loop()
        self._inventory, declared = declare(self.rng, count)
        self.store = FaultyStore(SqlStore("sqlite://"), random.Random(f"store {seed}"))
        OPEN.append(self.store)
        self.hypervisor = Hypervisor(random.Random(f"hypervisor {seed}"))
        self.made = Simulated(
            store=self.store,
            clock=WarpClock(self._loop),
            actuator=self.hypervisor,
            rules=DecisionRules(),
            pace=SchedulerSettings(),
            dialect=Dialect(),
            ids=SeededIds(seed),
        )
        self.provider = Provider(self.made, self.store, self.hypervisor)
        self.hypervisor.on_impact = self._strike
        self._heard: dict[str, Hearsay] = {}
        self.machines = {each.vm.name: self._machine(each) for each in declared}
        self._peers = {each.vm.name: [self.machines[peer] for peer in each.peers] for each in declared}

    def _machine(self, declared: Declared) -> Machine:
        machine = Machine(
            declared.vm.name,
            declared.vm.addresses[0],
            declared.configuration,
            declared.pace,
            random.Random(f"{self._seed} {declared.vm.name}"),
            fallback_name=declared.fallback_name,
            nameless_until_s=self.rng.choice([0, 0, 0, 500]),
        )
        machine.make = self._agent
        machine.clock.offset = timedelta(seconds=self.rng.choice([0, 0, 0, 2, -2, 40, -40, 7200, -7200]))
        return machine

    def _agent(self, machine: Machine) -> Agent:
        process = machine.process
        heard = self._heard[machine.name] = Hearsay()
        agent = Agent(
            machine.configuration,
            client=AsyncClient(
                transport=Wire(machine, self.provider, process, self.faults),
                pace=machine.pace,
                chance=machine.rng.random,
            ),
            clock=machine.clock,
            steps=FakeSteps(machine, process),
            storage=DiskOf(machine, process),
            fallback_name=machine.fallback_name,
            reports=heard,
        )
        if self._peers[machine.name]:
            agent.listeners.append(Gossip(machine, self._peers[machine.name], self._heard).look)
        return agent

    # Phases

    async def run(self, span_s: float) -> None:
        """Everything at once for that time, then calm until all is at rest."""
        await self.made.engine.inventory.apply(self._inventory, "fingerprint", actor="operator:ann")
        self.provider.start()
        for machine in self.machines.values():
            machine.return_after(self.rng.uniform(0, 60))
        self._set_weather(self.weather)
        until_s = self._loop.time() + span_s
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._operate(until_s))
                group.create_task(self._make_trouble(until_s))
            await self._come_to_rest()
        finally:
            self.ended_s = self._loop.time()
            for machine in self.machines.values():
                await machine.stop()
            await self.provider.stop()

    def _set_weather(self, weather: Weather) -> None:
        self.provider.set_weather(weather)
        for machine in self.machines.values():
            machine.weather = weather

    async def _come_to_rest(self) -> None:
        self._set_weather(CALM)
        self.store.is_dying = False
        for machine in self.machines.values():
            machine.cut(is_cut=False)
            machine.disk.is_full = False
            machine.disk.dies = ""
            machine.stale_until_s = 0.0
            if machine.agent is None:
                machine.return_after(self.rng.uniform(0, 100))
        deadline_s = self._loop.time() + _REST_S_MAX
        while self._loop.time() < deadline_s:
            await asyncio.sleep(30)
            if self.rng.random() < 0.5:
                self._mend()
            if not self._active() and not self.unrest():
                break
        self.left = self.unrest()

    def _active(self) -> list[Maintenance]:
        return [m for m in self.maintenances() if m.state not in _ENDED]

    def unrest(self) -> list[str]:
        """What is not at rest: agents that do not run, and records other than of recoveries that failed."""
        found = []
        for machine in self.machines.values():
            if machine.agent is None:
                found.append(f"{machine.name}: no agent runs")
            elif machine.disk.is_behind:
                found.append(f"{machine.name}: the disk does not know what the agent knows")
            elif machine.agent.vm != machine.name:
                found.append(f"{machine.name}: takes itself for {machine.agent.vm!r}")
            else:
                found += [
                    f"{machine.name}: {record.event.id}: {machine.agent.get_wait_reason(record.event.id)}"
                    for record in machine.agent.records
                    if not _has_failed(record)
                ]
        return found

    # What the audit log says

    def maintenances(self) -> list[Maintenance]:
        with self.store.store.read() as reader:
            found: list[Maintenance] = reader.list_maintenances(limit=1_000_000).items
        return found

    def events(self) -> dict[str, list[Event]]:
        """The events of each maintenance."""
        ids = [m.id for m in self.maintenances()]
        with self.store.store.read() as reader:
            found: dict[str, list[Event]] = reader.find_events_of(ids)
        return found

    def audit_log(self) -> list[AuditEntry]:
        with self.store.store.read() as reader:
            found: list[AuditEntry] = reader.list_entries(limit=1_000_000).items
        return found

    # Operators

    async def _operate(self, until_s: float) -> None:
        mean_s = self._event_s / len(self.machines)
        names = list(self.machines)
        hosts = sorted({vm.host for vm in self._inventory.vms})
        while self._loop.time() < until_s:
            await asyncio.sleep(self.rng.expovariate(1 / mean_s))
            act = self.rng.choice(["host"] * 8 + ["vm"] * 5 + ["failure", "change", "change", "tell", "tell", "mend"])
            try:
                if act == "host":
                    await self._maintain(self.rng.choice(hosts))
                elif act == "vm":
                    cause = self.rng.choice(["user-restart", "user-restart", "user-redeploy", "predicted-failure"])
                    notice = timedelta(minutes=self.rng.choice([10, 15, 20])) if "user" not in cause else None
                    await self._schedule(MaintenanceRequest(cause=cause, vms=(self.rng.choice(names),), notice=notice))
                elif act == "failure":
                    await self._schedule(MaintenanceRequest(cause="hardware-failure", hosts=(self.rng.choice(hosts),)))
                elif act == "change":
                    await self._change()
                elif act == "tell":
                    self._tell()
                else:
                    self._mend()
            except ProcessDied:
                self.provider.crash(self.rng.uniform(0, 60))
            except (ForewarnError, Reset):
                self.faults["an operator was refused"] += 1

    async def _maintain(self, host: str) -> None:
        cause = self.rng.choice(["live-migration", "host-maintenance", "host-maintenance", "platform-redeploy"])
        event_type, source = None, None
        if cause == "host-maintenance":
            event_type = self.rng.choice([EventType.FREEZE, EventType.REBOOT, EventType.REBOOT])
            source = self.rng.choice([EventSource.PLATFORM, EventSource.USER, EventSource.USER])
        is_short = self.rng.random() < 0.15
        await self._schedule(
            MaintenanceRequest(
                cause=cause,
                type=event_type,
                source=source,
                impact=EventType.FREEZE if event_type is EventType.REBOOT and self.rng.random() < 0.3 else None,
                hosts=(host,),
                notice=timedelta(seconds=self.rng.choice([0, 4, 30, 90])) if is_short else None,
                force_reason="no time" if is_short else None,
            )
        )

    async def _schedule(self, request: MaintenanceRequest) -> None:
        if not self.provider.is_up:
            raise Reset
        await self.made.engine.maintenances.schedule(request, actor="operator:ann")

    async def _change(self) -> None:
        active = [m for m in self.maintenances() if m.state not in _ENDED]
        if not active or not self.provider.is_up:
            return
        maintenance = self.rng.choice(active)
        engine = self.made.engine
        if maintenance.state is not MaintenanceState.STARTED:
            if self.rng.random() < 0.7:
                await engine.maintenances.cancel(maintenance.id, actor="operator:ann")
            else:
                await engine.maintenances.start(maintenance.id, actor="operator:ann", reason="now")
        elif self.rng.random() < 0.5:
            await engine.maintenances.impact(maintenance.id, 0, actor="operator:ann")
        else:
            await engine.maintenances.complete(maintenance.id, actor="operator:ann")

    def _tell(self) -> None:
        """Somebody approves by hand what waits for a person, and perhaps something else."""
        waiting = [
            (machine, record)
            for machine in self.machines.values()
            if machine.agent is not None
            for record in machine.agent.records
            if record.gone_at is None and record.started_at is None and record.approval is not ApprovalState.ACCEPTED
        ]
        by_hand = [each for each in waiting if each[1].rule.approve == "by-hand"]
        if waiting:
            machine, record = self.rng.choice(by_hand or waiting)
            assert machine.agent is not None
            for event_id in machine.agent.approve_by_hand(record.event.id):
                machine.note_told(event_id, "approve")

    def _mend(self) -> None:
        """Somebody mends one recovery that failed."""
        failed = [
            (machine, record)
            for machine in self.machines.values()
            if machine.agent is not None
            for record in machine.agent.records
            if _has_failed(record)
        ]
        if failed:
            machine, record = self.rng.choice(failed)
            assert machine.agent is not None
            for event_id in machine.agent.retry_recovery(record.event.id):
                machine.note_told(event_id, "recover")

    # Trouble

    async def _make_trouble(self, until_s: float) -> None:
        if not self._trouble_s:
            return
        mean_s = self._trouble_s / len(self.machines)
        machines = list(self.machines.values())
        acts = ["crash", "crash at save", "crash at save", "leave", "cut", "clock", "clock", "full", "storm", "stale"]
        while self._loop.time() < until_s:
            await asyncio.sleep(self.rng.expovariate(1 / mean_s))
            if self.rng.random() < 0.01:
                await self._trouble_service()
                continue
            machine, act = self.rng.choice(machines), self.rng.choice(acts)
            # Half of it happens where something is going on.
            busy = [each for each in machines if each.agent is not None and each.agent.records]
            if busy and self.rng.random() < 0.5:
                machine = self.rng.choice(busy)
            self.faults[act] += 1
            self._trouble(machine, act)

    def _trouble(self, machine: Machine, act: str) -> None:
        rng = self.rng
        match act:
            case "crash":
                machine.kill(rng.choice([1, 5, 30, 120, 600]))
            case "crash at save":
                machine.disk.dies = rng.choice(["before", "after"])
            case "leave":
                machine.leave(rng.choice([0.5, 10, 60]))
            case "cut":
                machine.cut(is_cut=True)
                self._loop.call_later(rng.choice([3, 20, 60, 300, 1500]), self._heal, machine)
            case "clock":
                by_s = rng.choice([-7200, -600, -30, -4, 4, 30, 600, 7200])
                machine.set_clock(timedelta(seconds=by_s), rng.choice([0, 0, 1, 2, 3, 4]))
            case "full":
                machine.disk.is_full = True
                self._loop.call_later(rng.choice([1, 20, 60]), self._empty, machine)
            case "storm":
                machine.weather = Weather(request=rng.choice([0.3, 0.6, 0.9]), step=0.4, gossip=0.5)
                self._loop.call_later(rng.choice([20, 60, 200]), self._clear, machine)
            case "stale":
                machine.stale = None
                machine.stale_until_s = self._loop.time() + rng.choice([1, 5, 30])

    async def _trouble_service(self) -> None:
        act = self.rng.choice(["down", "dying", "store"])
        self.faults[f"service: {act}"] += 1
        if act == "store":
            self.store.likelihood = 0.3
            for machine in self.machines.values():
                machine.health.begin_fault(self._loop.time())
            await asyncio.sleep(self.rng.choice([5, 30]))
            self.store.likelihood = 0.0
            # The next command that gets through publishes what was written, and not shown.
            await self.provider.probe()
            for machine in self.machines.values():
                machine.health.end_fault()
        else:
            self.provider.crash(self.rng.choice([0.5, 10, 60, 200]), is_dying=act == "dying")

    def _heal(self, machine: Machine) -> None:
        machine.cut(is_cut=False)

    def _empty(self, machine: Machine) -> None:
        machine.disk.is_full = False

    def _clear(self, machine: Machine) -> None:
        machine.weather = machine.weather if machine.weather is CALM else self.weather

    def _strike(self, maintenance: Maintenance) -> None:
        """The impact: who is rebooted is away for a while, who is frozen has slept."""
        for name in maintenance.vms:
            machine = self.machines[name]
            if maintenance.impact is EventType.FREEZE:
                machine.set_clock(timedelta(seconds=-self.rng.choice([0, 0.5, 9])), 0)
            else:
                self.faults["reboot"] += 1
                machine.kill(self.rng.choice([15, 40, 90, 400]))


def _has_failed(record: EventRecord) -> bool:
    return record.has_failed(EventStep.RECOVER) or record.has_failed(EventStep.CANCELED)
