"""The only place that reads the time."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from forewarn.clock import VIRTUAL_START, RealClock, VirtualClock, wait_until_or_event
from tests.support.world import NOW, minutes

pytestmark = pytest.mark.anyio


async def turns(count: int = 3) -> None:
    """Let the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


class Wall:
    """A wall clock that sleepers move on, and that is set to another time now and then.

    Attributes:
        steps: By how much it is set, after each sleep.
        slept: How long each sleep was.
    """

    def __init__(self, *steps_s: float) -> None:
        self.now_s = NOW.timestamp()
        self.steps = list(steps_s)
        self.slept: list[float] = []

    async def sleep(self, span_s: float) -> None:
        self.slept.append(span_s)
        self.now_s += span_s + (self.steps.pop(0) if self.steps else 0.0)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(time, "time", lambda: self.now_s)
        patch.setattr(asyncio, "sleep", self.sleep)


def test_a_virtual_clock_stands_still() -> None:
    clock = VirtualClock()
    assert clock.now() == clock.now() == VIRTUAL_START
    assert clock.is_virtual
    assert not RealClock.is_virtual


def test_a_virtual_clock_moves_forward_only() -> None:
    clock = VirtualClock(NOW)
    clock.advance(minutes(1))
    clock.advance(minutes(0))
    assert clock.now() == NOW + minutes(1)
    with pytest.raises(ValueError, match="cannot go back"):
        clock.set(NOW)
    assert clock.now() == NOW + minutes(1)


async def test_who_waits_on_a_virtual_clock_is_released_when_the_moment_has_come_and_not_before() -> None:
    clock = VirtualClock(NOW)
    waiting = asyncio.ensure_future(clock.wait_until(NOW + minutes(1)))
    await turns()
    clock.advance(minutes(1) - timedelta(microseconds=1))
    await turns()
    assert not waiting.done()
    clock.advance(timedelta(microseconds=1))
    await turns()
    assert waiting.done()


async def test_a_moment_that_has_passed_is_not_waited_for() -> None:
    await VirtualClock(NOW).wait_until(NOW)
    await VirtualClock(NOW).wait_until(NOW - minutes(1))
    await RealClock().wait_until(datetime(2000, 1, 1, tzinfo=UTC))


async def test_who_stops_waiting_is_forgotten() -> None:
    clock = VirtualClock(NOW)
    waiting = asyncio.ensure_future(clock.wait_until(NOW + minutes(1)))
    await turns()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert clock._waiters == {}
    clock.advance(minutes(2))


async def test_listeners_are_told_of_each_move_before_anybody_is_released() -> None:
    clock = VirtualClock(NOW)
    waiting = asyncio.ensure_future(clock.wait_until(NOW + minutes(1)))
    await turns()
    told: list[tuple[datetime, bool]] = []
    clock.listeners.append(lambda: told.append((clock.now(), waiting.done())))
    clock.advance(minutes(1))
    assert told == [(NOW + minutes(1), False)]
    await waiting


def test_a_real_clock_is_aware_and_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    Wall().install(monkeypatch)
    assert RealClock().now() == NOW
    assert RealClock().now().tzinfo is UTC


async def test_a_real_wait_never_ends_early_though_the_wall_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """R36, invariant 4: nothing may start before its NotBefore."""
    wall = Wall(0.0, -3600.0, 0.0, -0.5)
    wall.install(monkeypatch)
    clock = RealClock()
    await clock.wait_until(NOW + timedelta(seconds=5))
    assert clock.now() >= NOW + timedelta(seconds=5)
    assert sum(wall.slept) >= 3600


async def test_a_real_wait_notices_within_a_second_that_the_wall_clock_was_set_forward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wall = Wall(0.0, 86_400.0)
    wall.install(monkeypatch)
    await RealClock().wait_until(NOW + timedelta(hours=5))
    assert wall.slept == [1.0, 1.0]


async def test_a_real_wait_sleeps_no_longer_than_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = Wall()
    wall.install(monkeypatch)
    await RealClock().wait_until(NOW + timedelta(seconds=2.25))
    assert wall.slept == [1.0, 1.0, 0.25]


@pytest.mark.parametrize("is_event", [True, False])
async def test_a_wait_ends_with_the_moment_or_the_event_and_leaves_nothing_behind(is_event: bool) -> None:
    clock, event, others = VirtualClock(), asyncio.Event(), asyncio.all_tasks()
    waiting = asyncio.ensure_future(wait_until_or_event(clock, VIRTUAL_START + minutes(1), event))
    await turns()
    assert not waiting.done()
    if is_event:
        event.set()
    else:
        clock.advance(minutes(1))
    await turns()
    assert waiting.done()
    await turns()
    assert asyncio.all_tasks() == others
