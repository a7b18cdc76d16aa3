"""A step of the wall clock is told from slewing, from sleep and from small corrections."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from forewarn.core.clock_jump import ClockComparison, ClockJump, compare_clocks

START = datetime(2030, 1, 1, tzinfo=UTC)
LIMIT = timedelta(seconds=30)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def jumps(readings: list[tuple[float, float]]) -> list[float]:
    """How far it jumped, given what the wall clock shows after START, and the seconds that have passed."""
    known: ClockComparison | None = None
    found = []
    for wall_s, uptime_s in readings:
        known, jump = compare_clocks(known, START + seconds(wall_s), uptime_s, LIMIT)
        if jump is not None:
            assert jump == ClockJump(by=jump.by, at=START + seconds(wall_s))
            found.append(round(jump.by.total_seconds(), 1))
    return found


def test_a_clock_that_goes_on_does_not_jump_however_seldom_it_is_read() -> None:
    assert jumps([(0, 100), (1, 101), (3600, 3700), (1e6, 1e6 + 100)]) == []


@pytest.mark.parametrize("by", [20 * 60, -20 * 60, 31, -31])
def test_a_step_beyond_the_limit_is_a_jump_once(by: float) -> None:
    assert jumps([(0, 0), (1 + by, 1), (2 + by, 2), (100 + by, 100)]) == [by]


@pytest.mark.parametrize("by", [30, -30, 1])
def test_a_step_within_the_limit_is_none(by: float) -> None:
    assert jumps([(0, 0), (1 + by, 1), (2 + by, 2)]) == []


def test_a_jump_back_is_another_one() -> None:
    assert jumps([(0, 0), (1201, 1), (2, 2)]) == [1200, -1200]


@pytest.mark.parametrize("pace", [1.083, 0.917, 1.0005])
def test_slewing_is_none_for_however_long_it_goes_on(pace: float) -> None:
    assert jumps([(n * pace, n) for n in range(20_000)]) == []
    assert jumps([(n * 60 * pace, n * 60) for n in range(2_000)]) == []


def test_small_steps_one_after_the_other_add_up() -> None:
    assert jumps([(n * 11, n) for n in range(5)]) == [pytest.approx(39, abs=1)]


def test_a_machine_that_slept_has_not_jumped_and_one_set_while_it_slept_has() -> None:
    """The other reading goes on during sleep."""
    assert jumps([(0, 0), (8 * 3600, 8 * 3600)]) == []
    assert jumps([(0, 0), (8 * 3600 + 1200, 8 * 3600)]) == [1200]
