"""A simulated machine's clock: what it shows, and what its uptime says."""

from __future__ import annotations

from datetime import timedelta

import pytest

from forewarn.testing.simulation.machine_clock import START, MachineClock
from forewarn.testing.simulation.virtual_loop import VirtualLoop


class Loop(VirtualLoop):
    """A loop whose time is set by the test."""

    at_s = 0.0

    def time(self) -> float:
        return self.at_s


def shown_s(clock: MachineClock) -> float:
    return (clock.now() - START).total_seconds()


def test_a_clock_gains_and_loses_time_without_a_step() -> None:
    loop = Loop()
    clock = MachineClock(loop)
    loop.at_s = 100.0
    clock.set_drift(0.02)
    assert shown_s(clock) == 100.0
    loop.at_s = 200.0
    assert shown_s(clock) == pytest.approx(202.0)
    clock.set_drift(-0.01)
    assert clock.uptime_s() == pytest.approx(202.0)
    loop.at_s = 300.0
    assert clock.uptime_s() == pytest.approx(301.0)
    clock.offset = timedelta(seconds=5)
    assert shown_s(clock) == pytest.approx(306.0)
    clock.correct()
    assert shown_s(clock) == pytest.approx(300.0)
    assert clock.uptime_s() == pytest.approx(301.0)
    loop.at_s = 400.0
    assert shown_s(clock) == pytest.approx(400.0)
    loop.close()
