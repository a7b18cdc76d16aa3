"""A watch that is stopped: by an event, or because its client is closed, held or polled or while nobody answers.

Every wait that it would otherwise sit out is longer than the guard of these tests: that it ends at all is the proof.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forewarn.client import AsyncClient, Change, Client, EndpointUnreachable, Pace
from tests.support.faulty import Faulty, faulty, nothing, says
from tests.support.service import Running, Vm, eventually
from tests.support.spans import GUARD_S

LONG_S = 5 * GUARD_S
HELD = Pace(wait_s=LONG_S, timeout_s=LONG_S, first_timeout_s=LONG_S)
POLLED = Pace(wait_s=0, poll_interval_s=LONG_S)
AWAY = Pace(wait_s=0, retry_min_s=LONG_S, retry_max_s=LONG_S)


class Watching:
    """A thread that watches until it is stopped."""

    def __init__(self, client: Client, stop: threading.Event | None) -> None:
        self.told: list[Change] = []
        self.thread = threading.Thread(target=lambda: self.told.extend(client.watch(stop)), daemon=True)
        self.thread.start()

    def has_ended(self) -> bool:
        self.thread.join(GUARD_S)
        return not self.thread.is_alive()


@pytest.fixture(params=["closed", "stopped"])
def how(request: pytest.FixtureRequest) -> str:
    said: str = request.param
    return said


@pytest.fixture
def silent() -> Iterator[Faulty]:
    """An endpoint that takes a request and never answers."""
    with faulty(nothing()) as made:
        yield made


def asked(vm: Vm, service: Running) -> Callable[[], bool]:
    return lambda: service.is_connected(vm)


# Threads


def ends(client: Client, how: str, is_waiting: Callable[[], bool]) -> bool:
    """Whether a watch that waits ends when the client is closed, or told to stop."""
    stop = threading.Event()
    watching = Watching(client, stop)
    assert eventually(is_waiting)
    if how == "closed":
        client.close()
    else:
        stop.set()
    return watching.has_ended() and watching.told == []


def test_a_held_request_is_not_waited_out(service: Running, vm: Vm, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """X1, R100: nor is it told as an outage, and the endpoint holds nothing any longer."""
    with (
        caplog.at_level(logging.INFO, "forewarn.client"),
        Client(service.url, source_address=vm.address, pace=HELD) as client,
    ):
        assert ends(client, how, lambda: service.held(vm) == 1)
        assert eventually(lambda: service.held(vm) == 0)
    assert caplog.messages == []


def test_a_pause_between_polls_is_not_waited_out(service: Running, vm: Vm, how: str) -> None:
    """R97, R100."""
    with Client(service.url, source_address=vm.address, pace=POLLED) as client:
        assert ends(client, how, asked(vm, service))


def test_a_pause_after_a_failure_is_not_waited_out(how: str) -> None:
    """R100, R104."""
    with faulty(says(b"", 503)) as endpoint, Client(endpoint.url, pace=AWAY) as client:
        assert ends(client, how, lambda: len(endpoint.heard) == 1)


def test_an_endpoint_that_never_answers_is_not_waited_for(silent: Faulty, how: str) -> None:
    """R67, R100."""
    with Client(silent.url, pace=HELD) as client:
        assert ends(client, how, lambda: len(silent.heard) == 1)


def test_a_stop_ends_one_watch_and_the_client_goes_on(service: Running, vm: Vm) -> None:
    """R100: a new watch begins with what there is."""
    with Client(service.url, source_address=vm.address, pace=HELD) as client:
        assert ends(client, "stopped", lambda: service.held(vm) == 1)
        event_id = service.event(vm)
        assert next(client.watch()).event.id == event_id
        client.approve(event_id)


def test_closing_ends_an_approval_that_nobody_answers(silent: Faulty) -> None:
    """R104: whether it was approved is not known."""
    client = Client(silent.url, pace=HELD)
    found: list[EndpointUnreachable] = []

    def approve() -> None:
        try:
            client.approve("C7061BAC-AFDC-4513-B24B-AA5F13A16123")
        except EndpointUnreachable as error:
            found.append(error)

    thread = threading.Thread(target=approve, daemon=True)
    thread.start()
    assert eventually(lambda: len(silent.heard) == 1)
    client.close()
    thread.join(GUARD_S)
    assert [str(error) for error in found] == ["the client is closed"]


HANDLER = """
import signal, sys, threading
from forewarn.client import Client, Pace

stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
with Client(sys.argv[1], pace=Pace(first_timeout_s=300)) as client:
    for change in client.watch(stop):
        pass
print("stopped")
"""


def test_a_signal_handler_stops_a_watch(silent: Faulty, tmp_path: Path) -> None:
    """R100: as systemd and containers end a program, also while its only thread waits for an answer."""
    (tmp_path / "watch.py").write_text(HANDLER)
    command = [sys.executable, str(tmp_path / "watch.py"), silent.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as handler:
        try:
            assert eventually(lambda: len(silent.heard) == 1)
            handler.send_signal(signal.SIGTERM)
            output, _ = handler.communicate(timeout=GUARD_S)
        finally:
            handler.kill()
    assert (handler.returncode, output) == (0, "stopped\n")


# Tasks


async def ends_in_a_task(client: AsyncClient, how: str, is_waiting: Callable[[], bool]) -> bool:
    stop = asyncio.Event()

    async def watch() -> list[Change]:
        return [change async for change in client.watch(stop)]

    watching = asyncio.ensure_future(watch())
    assert await asyncio.to_thread(eventually, is_waiting)
    if how == "closed":
        await client.close()
    else:
        stop.set()
    return await asyncio.wait_for(watching, GUARD_S) == []


@pytest.mark.anyio
async def test_a_task_does_not_wait_a_held_request_out(
    service: Running, vm: Vm, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """X1, R100."""
    with caplog.at_level(logging.INFO, "forewarn.client"):
        async with AsyncClient(service.url, source_address=vm.address, pace=HELD) as client:
            assert await ends_in_a_task(client, how, lambda: service.held(vm) == 1)
            assert await asyncio.to_thread(eventually, lambda: service.held(vm) == 0)
    assert caplog.messages == []


@pytest.mark.anyio
async def test_a_task_does_not_wait_a_pause_out(service: Running, vm: Vm, how: str) -> None:
    """R97, R100."""
    async with AsyncClient(service.url, source_address=vm.address, pace=POLLED) as client:
        assert await ends_in_a_task(client, how, asked(vm, service))


@pytest.mark.anyio
async def test_a_task_that_stopped_one_watch_goes_on_with_its_client(service: Running, vm: Vm) -> None:
    """R100."""
    async with AsyncClient(service.url, source_address=vm.address, pace=HELD) as client:
        assert await ends_in_a_task(client, "stopped", lambda: service.held(vm) == 1)
        assert (await client.fetch()).events == ()


@pytest.mark.anyio
async def test_closing_ends_an_approval_of_another_task(silent: Faulty) -> None:
    """R104."""
    client = AsyncClient(silent.url, pace=HELD)
    approving = asyncio.ensure_future(client.approve("C7061BAC-AFDC-4513-B24B-AA5F13A16123"))
    assert await asyncio.to_thread(eventually, lambda: len(silent.heard) == 1)
    await client.close()
    with pytest.raises(EndpointUnreachable, match=r"^the client is closed$"):
        await asyncio.wait_for(approving, GUARD_S)
    with pytest.raises(EndpointUnreachable, match=r"^the client is closed$"):
        await client.fetch()
