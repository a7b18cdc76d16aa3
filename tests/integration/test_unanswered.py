"""A server that resets each connection at the moment it was made: for our clients it is one that does not answer."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator

import httpx
import pytest
import uvloop

from forewarn.actuators.webhook import Webhook
from forewarn.client.exchange import HttpRequest
from forewarn.client.transport import AsyncHttpTransport
from forewarn.core.maintenance.approval import Approver
from forewarn.errors import ActuatorError, ControlUnreachable, EndpointUnreachable
from forewarn.host.control_plane_client import ControlPlaneClient
from forewarn.net.httpx_errors import UNANSWERED
from tests.support.spans import GUARD_S
from tests.support.world import NOW
from tests.unit.core.builders import maintenance, vm

TIMES = 400
"""One in thirty or so is reset in the very moment that matters."""


@pytest.fixture
def url() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_reset_all, args=(server,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(GUARD_S)
        assert not thread.is_alive()


def _reset_all(server: socket.socket) -> None:
    while True:
        try:
            taken, _ = server.accept()
        except OSError:
            return
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        taken.close()


def ask_often(
    ask: Callable[[], Awaitable[object]], expected: type[Exception] | tuple[type[Exception], ...]
) -> set[str]:
    """The kinds of errors behind those that are raised; any other error is raised here."""

    async def run() -> set[str]:
        causes = set()
        for _ in range(TIMES):
            try:
                await ask()
            except expected as error:
                causes.add(type(error.__cause__ or error).__name__)
            else:
                pytest.fail("it was answered")
        return causes

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


@pytest.mark.slow
def test_this_is_how_it_looks_without_our_care(url: str) -> None:
    """If this fails, the libraries have mended it, and `UNANSWERED` can go."""

    async def ask() -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=GUARD_S) as client:
            await client.get(url)

    causes: set[str] = set()
    for _ in range(10):
        causes |= ask_often(ask, UNANSWERED)
        if "AttributeError" in causes:
            break
    assert "AttributeError" in causes


def test_an_approval_that_is_passed_on_is_not_taken(url: str) -> None:
    """R49, invariant 5: 503 to the VM, and neither 200 nor 500."""
    link = ControlPlaneClient("host-1", [url], "token")
    approver = Approver(actor="vm:web-0", vm="web-0")
    assert ask_often(lambda: link.approve(["A"], approver), ControlUnreachable)


def test_a_client_is_told_that_nobody_answers(url: str) -> None:
    transport = AsyncHttpTransport(url)
    request = HttpRequest(method="GET", path="/metadata/versions", timeout_s=GUARD_S)
    assert ask_often(lambda: transport.send(request), EndpointUnreachable)


def test_an_actuator_is_asked_again(url: str) -> None:
    actuator = Webhook(url, "a secret of thirty-two characters")
    assert ask_often(lambda: actuator.execute(maintenance(vm("web-0")), NOW), ActuatorError)
