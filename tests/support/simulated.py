"""The real engine, scheduler, feed and store on virtual time, without sockets: VMs and operators call them directly.

A VM does here what the endpoint does for it: it is known by its address, enables its audience with its first GET, and
reads the ready-made bytes of its channel. `crash` drops everything but the store, as a power cut would.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from forewarn.actuators import Actuator, Simulate
from forewarn.clock import Clock, VirtualClock
from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.approval import ApprovalResult, Approver
from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import AuditEntry, EntryKind, Event, Host, Maintenance, Scope, VirtualMachine
from forewarn.engine.clock_guard import ClockGuard
from forewarn.engine.engine import Engine, make_engine
from forewarn.engine.idempotency import IdempotencyKey
from forewarn.engine.transaction import Committer
from forewarn.publishing.feed import Channel, Feed
from forewarn.publishing.identity import Identity
from forewarn.scheduling.scheduler import Scheduler, SchedulerSettings
from forewarn.store import SqlStore
from forewarn.store.contract import Store
from forewarn.util.ids import SeededIds
from forewarn.wire.imds import Dialect
from tests.support.world import NOW

__all__ = ["LATEST", "OPEN", "Simulated", "inventory", "simulated"]

LATEST = "2020-07-01"

OPEN: list[Store] = []
"""Stores to close after the test."""


def inventory(*vms: VirtualMachine, scopes: Sequence[Scope] = (), hosts: Sequence[str] = ()) -> Inventory:
    """Those VMs with the hosts that they run on."""
    names = sorted({vm.host for vm in vms} | set(hosts))
    return Inventory(hosts=tuple(Host(name=name) for name in names), scopes=tuple(scopes), vms=vms)


@dataclass
class Simulated:
    """A service without sockets.

    Attributes:
        store: Outlives every crash.
        lateness: How late each start was that fell due, in seconds.
    """

    store: Store
    clock: Clock
    actuator: Actuator
    rules: DecisionRules
    pace: SchedulerSettings
    dialect: Dialect
    ids: SeededIds
    clock_guard: ClockGuard | None = None
    lateness: list[float] = field(default_factory=list)
    feed: Feed = field(init=False)
    identity: Identity = field(init=False)
    engine: Engine = field(init=False)
    scheduler: Scheduler = field(init=False)

    def __post_init__(self) -> None:
        self.rebuild()

    def rebuild(self) -> None:
        """New parts that know nothing; `restore_state` fills them from the store."""
        self.feed = Feed(self.dialect)
        self.identity = Identity(self.feed)
        self.engine = make_engine(
            Committer(
                store=self.store,
                clock=self.clock,
                feed=self.feed,
                identity=self.identity,
                rules=self.rules,
                new_id=self.ids,
                clock_guard=self.clock_guard,
            )
        )
        self.scheduler = Scheduler(self.engine, self.clock, self.actuator, self.pace, self.lateness.append)

    async def crash(self) -> None:
        """Lose everything but the store, and start anew."""
        self.rebuild()
        await self.engine.restore_state()

    @property
    def now(self) -> datetime:
        return self.clock.now()

    async def advance(self, by: timedelta) -> None:
        await self.scheduler.advance_clock(by)

    async def advance_to(self, moment: datetime) -> None:
        await self.scheduler.advance_clock(moment - self.now)

    # VMs

    def channel(self, vm: str) -> Channel:
        """What the VM is shown, found by its address as the endpoint does."""
        (address,) = self._vm(vm).addresses
        caller = self.identity.resolve_caller(address, "169.254.169.254")
        assert caller is not None
        return caller.channel

    def _vm(self, name: str) -> VirtualMachine:
        return self.identity._vms[name]

    async def get(self, vm: str, version: str = LATEST) -> dict[str, Any]:
        """The document that a GET answers."""
        channel = self.channel(vm)
        if not channel.is_enabled:
            await self.engine.authority.enable(channel.key, self._vm(vm).scope)
        channel.last_polled_at = self.now.replace(microsecond=0)
        return self.shown(vm, version)

    def shown(self, vm: str, version: str = LATEST) -> dict[str, Any]:
        """The same, without asking."""
        index = next(n for n, each in enumerate(self.feed.versions) if each.name == version)
        document: dict[str, Any] = json.loads(self.channel(vm).replies[index].body)
        return document

    async def event_ids(self, vm: str) -> list[str]:
        return [event["EventId"] for event in (await self.get(vm))["Events"]]

    async def approve(self, vm: str, *event_ids: str, version: str = LATEST) -> ApprovalResult:
        """What a POST does; the endpoint answers 400 when something is unknown."""
        channel = self.channel(vm)
        approver = Approver(
            actor=f"vm:{vm}", audience=channel.key, vm=vm, source_address=self._vm(vm).addresses[0], api_version=version
        )
        approval = await self.engine.authority.approve(event_ids, approver)
        if channel.is_enabled:
            channel.last_polled_at = self.now.replace(microsecond=0)
        return approval

    async def approve_all(self, vm: str) -> ApprovalResult:
        return await self.approve(vm, *await self.event_ids(vm))

    # Operators

    async def schedule(
        self,
        cause: str,
        *vms: str,
        key: IdempotencyKey | None = None,
        **request: Any,  # noqa: ANN401 - fields of a request
    ) -> list[Maintenance]:
        return await self.engine.maintenances.schedule(
            MaintenanceRequest(cause=cause, vms=vms, **request), actor="operator:ann", key=key
        )

    async def schedule_one(self, cause: str, *vms: str, **request: Any) -> Maintenance:  # noqa: ANN401 - fields of a request
        (maintenance,) = await self.schedule(cause, *vms, **request)
        return maintenance

    async def cancel(self, maintenance: Maintenance) -> Maintenance:
        return await self.engine.maintenances.cancel(maintenance.id, actor="operator:ann")

    # The store, without the faults that a test may have wrapped it in

    def read(self, function: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - whatever the function returns
        store: Store = getattr(self.store, "store", self.store)
        with store.read() as reader:
            return function(reader)

    def get_maintenance(self, maintenance: Maintenance) -> Maintenance:
        found: Maintenance = self.read(lambda reader: reader.get_maintenance(maintenance.id))
        return found

    def state(self, maintenance: Maintenance) -> str:
        return self.get_maintenance(maintenance).state.value

    def events_of(self, maintenance: Maintenance) -> list[Event]:
        events: list[Event] = self.read(lambda reader: reader.find_events_of([maintenance.id])).get(maintenance.id, [])
        return events

    def entries(self, of: Maintenance | None = None) -> list[AuditEntry]:
        found: list[AuditEntry] = self.read(lambda reader: reader.list_entries(limit=100_000)).items
        return [entry for entry in found if of is None or entry.maintenance_id == of.id]

    def story(self, of: Maintenance, since: datetime = NOW) -> list[tuple[EntryKind, timedelta]]:
        """What the audit log tells of a maintenance, with the time since `since`."""
        return [(entry.kind, entry.at - since) for entry in self.entries(of)]


async def simulated(
    declared: Inventory,
    *,
    store: Store | None = None,
    clock: Clock | None = None,
    actuator: Actuator | None = None,
    rules: DecisionRules | None = None,
    pace: SchedulerSettings | None = None,
    seed: int = 0,
    enabled: Sequence[str] | None = None,
    clock_guard: ClockGuard | None = None,
) -> Simulated:
    """A service that has that inventory.

    Args:
        enabled: VMs that ask once; None for all.
    """
    made = Simulated(
        store=store or SqlStore("sqlite://"),
        clock=clock or VirtualClock(NOW),
        actuator=actuator or Simulate(),
        rules=rules or DecisionRules(),
        pace=pace or SchedulerSettings(),
        dialect=Dialect(),
        ids=SeededIds(seed),
        clock_guard=clock_guard,
    )
    OPEN.append(made.store)
    await made.engine.inventory.apply(declared, "fingerprint", actor="operator:ann")
    for name in [vm.name for vm in declared.vms] if enabled is None else enabled:
        await made.get(name)
    return made
