"""The scheduler's own loop, as the service runs it: on a real clock whose wall somebody sets, and on a virtual one."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import pytest

from forewarn.actuators import Progress, Simulate
from forewarn.clock import RealClock, VirtualClock
from forewarn.core.maintenance.actuator_result import RetryPolicy
from forewarn.core.model import EntryKind, Maintenance, MaintenanceState
from forewarn.engine.clock_guard import ClockGuard
from forewarn.errors import InvalidRequest
from forewarn.scheduling.scheduler import SchedulerSettings
from forewarn.store import SqlStore
from tests.support.faults import FaultyStore
from tests.support.simulated import Simulated, inventory, simulated
from tests.support.simulated_world import SCOPES, VMS, seconds
from tests.support.world import NOW, minutes

pytestmark = pytest.mark.anyio

K = EntryKind
S = MaintenanceState
DECLARED = inventory(*VMS, scopes=SCOPES)
_sleep = asyncio.sleep


class Wall:
    """A wall clock that only sleepers move on; now and then it is set to another time."""

    def __init__(self, patch: pytest.MonkeyPatch, step_s: Callable[[], float] = lambda: 0.0) -> None:
        self.now_s = NOW.timestamp()
        self.slept_s = 0.0
        self.step_s = step_s
        patch.setattr(time, "time", lambda: self.now_s)
        patch.setattr(time, "clock_gettime", lambda _clock: self.slept_s)
        patch.setattr(asyncio, "sleep", self.sleep)

    async def sleep(self, span_s: float) -> None:
        await _sleep(0)
        if span_s > 0:
            self.slept_s += span_s
            self.now_s += span_s + self.step_s()


@asynccontextmanager
async def running(made: Simulated) -> AsyncIterator[None]:
    task = asyncio.create_task(made.scheduler.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await made.scheduler.stop()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if condition():
            return
        await _sleep(0)
    pytest.fail("it did not come to pass")


async def test_on_a_real_clock_each_thing_happens_when_its_moment_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """R76, R98."""
    Wall(monkeypatch)
    made = await simulated(DECLARED, clock=RealClock())
    maintenance = await made.schedule_one("user-redeploy", "db")
    async with running(made):
        await until(lambda: made.state(maintenance) == S.COMPLETED)
    moments = [(minutes(10)), minutes(10) + seconds(7), minutes(20)]
    for (_, when), due in zip(made.story(maintenance)[1:], moments, strict=True):
        assert timedelta(0) <= when - due < seconds(1.001)
    assert all(0 <= late_s < 1.001 for late_s in made.lateness)


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_starts_early_though_the_wall_clock_is_set_back_and_forth(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R36, invariant 4."""
    rng = random.Random(seed)
    Wall(monkeypatch, lambda: rng.choice([0, 0, 0, 0, 0, -3, -40, 5, 90]))
    guard = ClockGuard(timedelta(days=1))  # jumps that are noticed have tests of their own
    made = await simulated(DECLARED, clock=RealClock(), clock_guard=guard)
    names = ["db", "lone", "spot", "fleet-0"]
    all_of_them = [await made.schedule_one("host-maintenance", n, notice=minutes(16 + i)) for i, n in enumerate(names)]
    async with running(made):
        await until(lambda: all(made.state(m) == S.COMPLETED for m in all_of_them))
    for maintenance in map(made.get_maintenance, all_of_them):
        assert maintenance.started_at is not None
        assert maintenance.not_before is not None
        assert maintenance.started_at >= maintenance.not_before
    assert all(late_s >= 0 for late_s in made.lateness)


async def test_an_earlier_deadline_wakes_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = Wall(monkeypatch)
    made = await simulated(DECLARED, clock=RealClock())
    late = await made.schedule_one("host-maintenance", "db")
    async with running(made):
        await until(lambda: wall.now_s > NOW.timestamp() + 60)
        early = await made.schedule_one("spot-eviction", "spot")
        await until(lambda: made.state(early) == S.STARTED)
        assert made.state(late) == S.SCHEDULED


async def test_on_a_virtual_clock_the_loop_asks_the_actuator_without_anybody_advancing() -> None:
    made = await simulated(DECLARED, actuator=Simulate(timedelta(0), timedelta(0)))
    maintenance = await made.schedule_one("user-restart", "db")
    async with running(made):
        await until(lambda: made.state(maintenance) == S.SCHEDULED)
        await made.approve_all("db")
        await until(lambda: made.state(maintenance) == S.COMPLETED)
    assert made.now == NOW


async def test_the_loop_goes_on_when_the_store_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = Wall(monkeypatch)
    store = FaultyStore(SqlStore("sqlite://"), random.Random(1))
    made = await simulated(DECLARED, clock=RealClock(), store=store)
    maintenance = await made.schedule_one("user-redeploy", "db")
    store.likelihood = 1.0
    async with running(made):
        await until(lambda: wall.now_s > NOW.timestamp() + 3600)
        assert made.state(maintenance) == S.SCHEDULED
        store.likelihood = 0.0
        await until(lambda: made.state(maintenance) == S.COMPLETED)
    assert [kind for kind, _ in made.story(maintenance)] == [K.SCHEDULED, K.STARTED, K.IMPACTED, K.COMPLETED]
    assert made.lateness[0] > 3000 - 600


async def test_a_slow_actuator_keeps_nobody_waiting_on_a_real_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other starts go on; the late answer is taken over when it comes."""
    Wall(monkeypatch)
    answer = asyncio.Event()

    class Slow(Simulate):
        async def observe(self, maintenance: Maintenance, now: datetime) -> Progress:
            if maintenance.vms == ("db",):
                await answer.wait()
            return Progress(is_impacted=True, is_complete=True)

    made = await simulated(
        DECLARED, clock=RealClock(), actuator=Slow(), pace=SchedulerSettings(retry=RetryPolicy(attempts_max=1))
    )
    slow = await made.schedule_one("user-restart", "db")
    await made.approve_all("db")
    other = await made.schedule_one("user-redeploy", "lone")
    async with running(made):
        await until(lambda: made.state(other) == S.COMPLETED)
        assert made.state(slow) == S.STARTED
        answer.set()
        await until(lambda: made.state(slow) == S.COMPLETED)


async def test_stopping_cancels_the_calls_under_way_and_they_are_repeated_after_the_next_start() -> None:
    """Invariant 3."""
    calls: list[str] = []
    never = asyncio.Event()

    class Stuck(Simulate):
        async def observe(self, maintenance: Maintenance, now: datetime) -> Progress:
            calls.append(maintenance.id)
            if len(calls) == 1:
                await never.wait()
            return Progress(is_impacted=True, is_complete=True)

    made = await simulated(DECLARED, clock=RealClock(), actuator=Stuck())
    maintenance = await made.schedule_one("user-restart", "db")
    await made.approve_all("db")
    async with running(made):
        await until(lambda: len(calls) == 1)
    assert made.state(maintenance) == S.STARTED
    await made.crash()
    async with running(made):
        await until(lambda: made.state(maintenance) == S.COMPLETED)
    assert calls == [maintenance.id] * 2


async def test_only_a_virtual_clock_can_be_advanced_and_only_forward() -> None:
    real = await simulated(DECLARED, clock=RealClock(), enabled=[])
    with pytest.raises(InvalidRequest, match="the clock is real"):
        await real.advance(seconds(1))
    virtual = await simulated(DECLARED, clock=VirtualClock(NOW), enabled=[])
    with pytest.raises(InvalidRequest, match="negative"):
        await virtual.advance(seconds(-1))
