"""Connections to libvirt: calls that hang, break, are refused, or that nobody waits for any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from forewarn.actuators.libvirt_connection import HANGING_MAX, LibvirtConnection, LibvirtSession
from forewarn.errors import ActuatorError
from tests.support.actuated import until
from tests.support.hypervisor import NEEDS_LIBVIRT, URI, Hypervisor, hypervisor
from tests.support.spans import GUARD_S

pytestmark = [pytest.mark.anyio, pytest.mark.slow, NEEDS_LIBVIRT]


@pytest.fixture
def world() -> Iterator[Hypervisor]:
    with hypervisor() as made:
        made.define("web-0")
        yield made


async def is_alive(line: LibvirtConnection) -> bool:
    """Whether libvirt answers, however long that takes."""
    line._deadline_s = GUARD_S
    return await line.run_job(lambda session: session.connect.isAlive()) == 1


async def test_a_call_that_hangs_is_left_alone_and_touches_nothing_more(world: Hypervisor) -> None:
    line = LibvirtConnection(URI, timedelta(milliseconds=200))
    release, ended = threading.Event(), threading.Event()

    def hang(session: LibvirtSession) -> None:
        release.wait(GUARD_S)
        try:
            session.ensure_wanted()
            session.connect.lookupByName("web-0").suspend()
        finally:
            ended.set()

    with pytest.raises(ActuatorError, match=f"libvirt at {URI} did not answer within 0.2 s"):
        await line.run_job(hang)
    assert await is_alive(line)
    release.set()
    assert await asyncio.to_thread(ended.wait, GUARD_S)
    assert world.state("web-0") == "running"
    await line.close()


async def test_the_deadline_of_a_call_holds_when_nobody_waits_for_it_any_more(world: Hypervisor) -> None:
    line = LibvirtConnection(URI, timedelta(milliseconds=200))
    release, begun = threading.Event(), threading.Event()

    def hang(_session: LibvirtSession) -> None:
        begun.set()
        release.wait(GUARD_S)

    waiting = asyncio.create_task(line.run_job(hang))
    assert await asyncio.to_thread(begun.wait, GUARD_S)
    waiting.cancel()
    with pytest.raises(ActuatorError, match="did not answer the previous call"):
        await line.run_job(lambda session: session.connect.isAlive())
    assert await is_alive(line)
    release.set()
    await line.close()


async def test_a_call_cancelled_before_its_turn_is_not_made(world: Hypervisor) -> None:
    line = LibvirtConnection(URI, timedelta(seconds=GUARD_S))
    release = threading.Event()
    made: list[int] = []
    first = asyncio.create_task(line.run_job(lambda _session: release.wait(GUARD_S)))
    second = asyncio.create_task(line.run_job(lambda _session: made.append(1)))
    await asyncio.sleep(0.02)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    release.set()
    assert await first
    await line.close()
    assert made == []


async def test_not_more_than_a_few_calls_may_hang(world: Hypervisor) -> None:
    line = LibvirtConnection(URI, timedelta(milliseconds=100))
    release = threading.Event()
    for _ in range(HANGING_MAX):
        with pytest.raises(ActuatorError, match="did not answer within"):
            await line.run_job(lambda _session: release.wait(GUARD_S))
    with pytest.raises(ActuatorError, match=f"{HANGING_MAX} calls hang"):
        await line.run_job(lambda _session: None)
    release.set()
    await until(lambda: not any(worker.is_alive() for worker in line._hanging))
    assert await is_alive(line)
    await line.close()


async def test_a_connection_that_breaks_is_made_anew_and_the_call_is_repeated(world: Hypervisor) -> None:
    line = LibvirtConnection(URI, timedelta(seconds=GUARD_S))
    seen: list[Any] = []

    def look(session: LibvirtSession) -> int:
        seen.append(session.connect)
        if len(seen) == 1:
            session.connect.close()
        return session.connect.lookupByName("web-0").ID()

    assert await line.run_job(look) == world.domain("web-0").ID()
    assert len(seen) == 2
    await line.close()


async def test_what_libvirt_refuses_is_an_error_with_its_words(world: Hypervisor) -> None:
    line = LibvirtConnection(URI, timedelta(seconds=GUARD_S))
    with pytest.raises(ActuatorError, match=f"libvirt at {URI}: .*running"):
        await line.run_job(lambda session: session.connect.lookupByName("web-0").create())
    await line.close()
    nowhere = LibvirtConnection("qemu+unix:///system?socket=/no/such/socket", timedelta(seconds=GUARD_S))
    with pytest.raises(ActuatorError, match=r"cannot connect to libvirt at qemu.*: .*No such file"):
        await nowhere.run_job(lambda session: session.connect.isAlive())
    await nowhere.close()
