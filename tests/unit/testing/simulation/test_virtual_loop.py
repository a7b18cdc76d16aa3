"""The loop of the simulation: what killed processes leave behind, and runs that are cancelled."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from forewarn.testing.simulation import run as simulation_run
from forewarn.testing.simulation.machine_clock import MachineClock
from forewarn.testing.simulation.network import Network
from forewarn.testing.simulation.run import run_seed
from forewarn.testing.simulation.virtual_loop import LoopStuck, SimulatedProcess, VirtualLoop
from forewarn.testing.simulation.world import Size


def test_a_task_that_was_cancelled_when_its_process_was_killed_is_dropped() -> None:
    loop = VirtualLoop()
    children: list[asyncio.Task[None]] = []

    async def run() -> None:
        network = Network(random.Random(1))
        process = SimulatedProcess("one", network.add_node("one", "10.0.0.1"), MachineClock(loop))

        async def work() -> None:
            children.append(asyncio.create_task(asyncio.sleep(10)))
            await asyncio.sleep(0)
            children[0].cancel()
            loop.call_soon(process.kill)  # after the task has been cancelled, and before anything learns of that
            await asyncio.sleep(10)

        process.start(work())
        await asyncio.sleep(20)
        network.close()

    loop.run_until_complete(run())
    assert children[0].cancelled()
    loop.drop_tasks()
    loop.close()


@pytest.mark.parametrize("error", [asyncio.CancelledError, AssertionError("stuck")], ids=["cancelled", "stuck"])
def test_a_run_that_does_not_end_well_is_a_complaint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: type[BaseException] | BaseException
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(simulation_run, "simulate", fail)
    [complaint] = run_seed(1, Size(), tmp_path).complaints
    assert complaint.startswith("the_run_ends: ")


def test_no_real_socket_connects() -> None:
    loop = VirtualLoop()

    async def connect() -> None:
        with socket.socket() as sock, pytest.raises(RuntimeError, match="use a client such as httpx"):
            await loop.sock_connect(sock, ("192.0.2.1", 80))

    loop.run_until_complete(connect())
    loop.close()


async def _wait_for_ever() -> None:
    await asyncio.get_running_loop().create_future()


async def _yield_for_ever() -> None:
    while True:  # noqa: ASYNC110 - that is the mistake
        await asyncio.sleep(0)


async def _set_timers_for_ever() -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.create_future()
        loop.call_later(0.0, due.set_result, None)
        await due


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (_wait_for_ever, "everything waits for something else"),
        (_yield_for_ever, "something runs again and again without waiting"),
        (_set_timers_for_ever, "something runs again and again without waiting"),
    ],
)
def test_a_loop_whose_time_cannot_go_on_says_why(work: Callable[[], Coroutine[Any, Any, None]], message: str) -> None:
    loop = VirtualLoop()
    try:
        with pytest.raises(LoopStuck, match=f"after 5.000 s, {message}"):
            loop.run_until_complete(_begin_after(5.0, work))
    finally:
        loop.drop_tasks()
        loop.close()


async def _begin_after(span_s: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await asyncio.sleep(span_s)
    await work()
