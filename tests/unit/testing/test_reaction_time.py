"""How long a handler is waited for, on a busy machine too."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from forewarn.testing.trial.handler_coordinator import HandlerCoordinator
from forewarn.testing.trial.reaction_time import ProcessorWait, ReactionTimer

LIMIT_S = 5.0
ROUND_S = 0.125


def rounds_until_over(*, real_s: float = ROUND_S, waited_s: float = 0.0) -> int:
    timer = ReactionTimer(LIMIT_S)
    for number in range(1, 10_000):
        timer.count_round(real_s, waited_s)
        if timer.is_over:
            return number
    raise AssertionError


def test_an_idle_machine_gives_the_limit() -> None:
    assert rounds_until_over() * ROUND_S == LIMIT_S


def test_time_spent_waiting_for_a_processor_does_not_count() -> None:
    """Three quarters of the time others were running, so it has four times as long."""
    assert rounds_until_over(waited_s=ROUND_S * 3 / 4) * ROUND_S == 4 * LIMIT_S


def test_several_threads_that_wait_excuse_no_more_than_the_time_that_has_passed() -> None:
    timer = ReactionTimer(LIMIT_S)
    timer.count_round(1.0, 400.0)
    assert not timer.is_over
    for _ in range(int(LIMIT_S / ROUND_S)):
        assert not timer.is_over
        timer.count_round(ROUND_S, 0.0)
    assert timer.is_over


def test_a_handler_that_never_gets_a_processor_is_given_up() -> None:
    assert rounds_until_over(waited_s=ROUND_S) * ROUND_S == 12 * LIMIT_S


def test_a_delayed_loop_extends_the_limit() -> None:
    """Rounds of a second, of which a quarter counts, until as much is excused as the limit has."""
    assert LIMIT_S < rounds_until_over(real_s=1.0) <= 2 * LIMIT_S


def test_a_delayed_loop_does_not_pass_a_handler_that_sleeps() -> None:
    """It asks every 30 s, and waits for no processor meanwhile: a busy machine does not hide that."""
    for real_s in (0.05, 0.3, 1.0, 3.0, 10.0):
        assert rounds_until_over(real_s=real_s) * real_s < 2 * LIMIT_S + real_s


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts this")
def test_the_wait_of_descendants_is_measured() -> None:
    """Two that calculate share one processor, so each waits half of the time; one that sleeps does not wait."""
    one = {min(os.sched_getaffinity(0))}
    spin = "import os; os.sched_setaffinity(0, {}); exec('while True: pass')"
    shell = f'"{sys.executable}" -c "{spin.format(one)}" & wait'
    busy = [subprocess.Popen(["sh", "-c", shell], start_new_session=True) for _ in range(2)]
    idle = subprocess.Popen(["sleep", "600"])
    waits, waited_s = [ProcessorWait() for _ in range(3)], [0.0, 0.0, 0.0]
    try:
        for _ in range(600):
            for index, process in enumerate([*busy, idle]):
                waited_s[index] += waits[index].measure(process.pid)
            if min(waited_s[:2]) > 1.0:
                break
            time.sleep(0.1)
    finally:
        for process in busy:
            os.killpg(process.pid, 9)
            process.wait()
        idle.kill()
        idle.wait()
    assert min(waited_s[:2]) > 1.0
    assert waited_s[2] < min(waited_s[:2])


def test_a_process_that_has_ended_waits_for_nothing() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert ProcessorWait().measure(process.pid) == 0.0


async def is_awaited(halves: int, *, waited_s: float) -> bool:
    """Return True if patience of 0.5 s lasts for so many half seconds."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()

    async def is_satisfied() -> bool:
        return loop.time() > began_s + halves * 0.5

    process = SimpleNamespace(measure_processor_wait=lambda: waited_s)
    coordinator = SimpleNamespace(patience_s=0.5, is_running=lambda: True, _handler=process)
    return await HandlerCoordinator._wait_until(coordinator, is_satisfied)  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_a_handler_that_waits_for_a_processor_is_waited_for() -> None:
    assert await is_awaited(3, waited_s=60.0)


@pytest.mark.anyio
async def test_a_handler_that_does_nothing_is_not_waited_for() -> None:
    assert not await is_awaited(1200, waited_s=0.0)
