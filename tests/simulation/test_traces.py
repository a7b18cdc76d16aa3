"""What the life of a maintenance adds to its trace, from the real engine on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from forewarn.actuators import Actuator
from forewarn.actuators.contract import TRACEPARENT, Progress
from forewarn.actuators.traced import TracedActuator
from forewarn.clock import VirtualClock
from forewarn.core.maintenance.actuator_result import RetryPolicy
from forewarn.core.model import Maintenance
from forewarn.errors import ActuationFailed, ActuatorError
from forewarn.observability.tracing import ActuatorCall, Tracing
from forewarn.observability.tracing.maintenance_spans import NAMES_MAX, MaintenanceSpan, derive_spans
from forewarn.scheduling.scheduler import SchedulerSettings
from tests.support.observed import Observed
from tests.support.simulated import Simulated, inventory, simulated
from tests.support.simulated_world import SCOPES, VMS, seconds
from tests.support.world import NOW, minutes
from tests.unit.core.builders import vm

pytestmark = pytest.mark.anyio


class Kept(Tracing):
    is_on = True

    def __init__(self) -> None:
        self.moments: list[MaintenanceSpan] = []
        self.calls: list[str] = []

    def export_spans(self, moments: Iterable[MaintenanceSpan]) -> None:
        self.moments += moments

    @contextmanager
    def actuator_call_span(self, maintenance: Maintenance, name: str, began_at: datetime) -> Iterator[ActuatorCall]:
        self.calls.append(name)
        call = ActuatorCall()
        call.traceparent = f"call of {maintenance.id}"
        yield call

    def traceparent(self, maintenance_id: str) -> str:
        return f"root of {maintenance_id}"


async def world(
    actuator: Actuator | None = None, pace: SchedulerSettings | None = None
) -> tuple[Simulated, list[MaintenanceSpan]]:
    made = await simulated(inventory(*VMS, scopes=SCOPES, hosts=["host-0"]), actuator=actuator, pace=pace)
    told: list[MaintenanceSpan] = []
    made.engine.listeners.append(lambda changes: told.extend(derive_spans(changes)))
    return made, told


def story(told: list[MaintenanceSpan], of: Maintenance) -> list[tuple[str, timedelta, timedelta]]:
    return [(m.name, m.began_at - NOW, m.ended_at - NOW) for m in told if m.maintenance_id == of.id]


def only(told: list[MaintenanceSpan], name: str) -> MaintenanceSpan:
    (moment,) = (each for each in told if each.name == name)
    return moment


# Lives


async def test_a_life_with_an_approval_is_told_step_by_step_with_who_approved() -> None:
    made, told = await world()
    maintenance = await made.schedule_one("live-migration", "db")
    await made.advance(minutes(2))
    await made.approve_all("db")
    await made.advance(minutes(20))
    zero, approved, over = seconds(0), minutes(2), minutes(12)
    assert story(told, maintenance) == [
        ("maintenance Freeze", zero, zero),
        ("announced", zero, zero),
        ("approved", approved, approved),
        ("waiting", zero, approved),
        ("started", approved, approved),
        ("impacted", approved + seconds(7), approved + seconds(7)),
        ("under way", approved, over),
        ("completed", over, over),
    ]
    root = told[0]
    assert root.is_root
    assert not any(moment.is_root for moment in told[1:])
    assert root.attributes["forewarn.maintenance.vms"] == ("db",)
    assert root.attributes["forewarn.maintenance.hosts"] == ("host-1",)
    assert only(told, "announced").attributes["forewarn.events.count"] == 1
    who = only(told, "approved").attributes
    assert who["forewarn.vm"] == "db"
    assert who["forewarn.api_version"] == "2020-07-01"
    assert who["client.address"] == "10.9.0.5"


async def test_one_that_is_taken_back_was_waiting_until_then() -> None:
    made, told = await world()
    maintenance = await made.schedule_one("live-migration", "db")
    await made.advance(minutes(1))
    await made.cancel(maintenance)
    assert story(told, maintenance)[2:] == [
        ("waiting", seconds(0), minutes(1)),
        ("canceled", minutes(1), minutes(1)),
    ]


async def test_one_that_waits_for_another_is_queued_first_and_announced_later() -> None:
    """R61."""
    made, told = await world()
    made_both = await made.schedule("host-maintenance", "web-0", "web-1")
    later = made_both[1]
    await made.advance(minutes(26))
    assert [name for name, _, _ in story(told, later)] == ["maintenance Freeze", "queued", "announced"]
    assert only([m for m in told if m.maintenance_id == later.id], "announced").attributes["forewarn.events.count"] == 1


async def test_a_host_that_has_failed_starts_without_having_waited() -> None:
    """R73."""
    made, told = await world()
    maintenance = await made.schedule_one("hardware-failure", "db")
    names = [name for name, _, _ in story(told, maintenance)]
    assert names[0] == "maintenance Reboot"
    assert "started" in names
    assert "waiting" not in names


async def test_failed_attempts_and_the_failure_say_why() -> None:
    class Broken(Observed):
        async def observe(self, maintenance: Maintenance, now: datetime) -> Progress:
            raise ActuatorError("no route to host-1")

    made, told = await world(Broken(), SchedulerSettings(retry=RetryPolicy(attempts_max=2)))
    maintenance = await made.schedule_one("live-migration", "db")
    await made.approve_all("db")
    await made.advance(minutes(20))
    failures = [(m.name, m.failure) for m in told if m.failure is not None]
    assert failures == [
        ("attempt failed", "no route to host-1"),
        ("failed", "the actuator failed 2 times; last error: no route to host-1"),
    ]
    assert "under way" in [name for name, _, _ in story(told, maintenance)]


async def test_of_many_vms_some_are_named_and_all_are_counted() -> None:
    many = [replace(vm(f"vm-{n}"), addresses=(f"10.8.{n}.1",)) for n in range(NAMES_MAX + 5)]
    made = await simulated(inventory(*many))
    told: list[MaintenanceSpan] = []
    made.engine.listeners.append(lambda changes: told.extend(derive_spans(changes)))
    await made.schedule("host-maintenance", *(each.name for each in many))
    attributes = told[0].attributes
    assert attributes["forewarn.maintenance.vms.count"] == NAMES_MAX + 5
    assert len(attributes["forewarn.maintenance.vms"]) == NAMES_MAX  # type: ignore[arg-type]


async def test_what_is_of_no_maintenance_is_told_in_no_trace() -> None:
    made, told = await world()
    await made.engine.inventory.apply(inventory(*VMS, scopes=SCOPES), "other", actor="operator:ann")
    assert told == []


# Actuators


class Slow(Observed):
    """Is begun, goes on, strikes, goes on, ends."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []
        self.answers = [
            None,
            Progress(check_at=NOW),
            Progress(is_impacted=True, check_at=NOW),
            Progress(is_impacted=True, check_at=NOW),
            Progress(is_impacted=True, is_complete=True),
        ]

    async def execute(self, maintenance: Maintenance, now: datetime) -> Progress:
        self.heard.append(TRACEPARENT.get())
        return Progress(check_at=now)

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress | None:
        self.heard.append(TRACEPARENT.get())
        return self.answers.pop(0)


async def test_of_many_looks_only_those_are_told_that_say_something_new() -> None:
    slow, tracing, clock = Slow(), Kept(), VirtualClock(NOW)
    made = await simulated(inventory(*VMS, scopes=SCOPES), actuator=TracedActuator(slow, tracing, clock), clock=clock)
    maintenance = await made.schedule_one("live-migration", "db")
    await made.approve_all("db")
    await made.advance(minutes(1))
    assert made.state(maintenance) == "completed"
    assert tracing.calls == ["slow execute"]
    said = [(m.name, m.attributes["forewarn.is_complete"]) for m in tracing.moments]
    assert said == [("slow observe", False), ("slow observe", True)]


async def test_what_is_handed_on_is_the_call_or_the_maintenance_and_nothing_after_it() -> None:
    slow, tracing, clock = Slow(), Kept(), VirtualClock(NOW)
    made = await simulated(inventory(*VMS, scopes=SCOPES), actuator=TracedActuator(slow, tracing, clock), clock=clock)
    maintenance = await made.schedule_one("live-migration", "db")
    await made.approve_all("db")
    await made.advance(minutes(1))
    root, call = f"root of {maintenance.id}", f"call of {maintenance.id}"
    assert slow.heard == [root, call, root, root, root, root]
    assert TRACEPARENT.get() == ""


async def test_a_look_that_fails_is_told_with_its_reason() -> None:
    class Failed(Observed):
        async def observe(self, maintenance: Maintenance, now: datetime) -> Progress:
            raise ActuationFailed("the domain is gone")

    tracing, clock = Kept(), VirtualClock(NOW)
    made = await simulated(
        inventory(*VMS, scopes=SCOPES), actuator=TracedActuator(Failed(), tracing, clock), clock=clock
    )
    maintenance = await made.schedule_one("live-migration", "db")
    await made.approve_all("db")
    assert made.state(maintenance) == "started"
    await made.advance(seconds(1))
    assert made.state(maintenance) == "failed"
    assert [(m.name, m.failure) for m in tracing.moments] == [("failed observe", "the domain is gone")]
    await asyncio.sleep(0)
    assert tracing.calls == ["failed abort"]
