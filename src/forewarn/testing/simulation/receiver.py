"""A receiver of notifications on the simulated network."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from http import HTTPStatus
from typing import cast

import h11

from forewarn.testing.simulation.machine import Machine

__all__ = ["Receiver"]

_PORT = 80
_SLOW_S = 30.0


class Receiver(Machine):
    """A receiver that notes each notification that it answers with 204.

    Attributes:
        failures: Probability that a notification is refused, lost or answered too late.
    """

    def prepare(self, rng: random.Random) -> None:
        """Set it up; before the first start."""
        self.failures = 0.0
        self._rng = rng

    @property
    def url(self) -> str:
        """URL for a subscription."""
        return f"http://{self.node.address}/hook"

    async def run(self) -> None:
        """Receive until it is killed."""
        sock = self.network.listen(self.node, self.node.address, _PORT)
        await asyncio.get_running_loop().create_server(
            lambda: _ReceiverProtocol(self), sock=cast("socket.socket", sock)
        )
        await asyncio.get_running_loop().create_future()

    async def receive(self, body: bytes) -> HTTPStatus:
        """Take a notification, or fail; return the status of the answer."""
        if self._rng.random() < self.failures:
            if self._rng.random() < 0.5:  # noqa: PLR2004 - a coin
                await asyncio.sleep(_SLOW_S)
            return HTTPStatus.SERVICE_UNAVAILABLE
        event = json.loads(body)
        self.note("webhook", id=event["id"], about=event["subject"], type=event["type"].split(".")[-2])
        return HTTPStatus.NO_CONTENT


class _ReceiverProtocol(asyncio.Protocol):
    """One connection of HTTP/1.1."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._connection = h11.Connection(h11.SERVER)
        self._body = b""
        self._answers: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._connection.receive_data(data)
        while (event := self._connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            match event:
                case h11.Data():
                    self._body += event.data
                case h11.EndOfMessage():
                    body, self._body = self._body, b""
                    task = asyncio.get_running_loop().create_task(self._answer(body))
                    self._answers.add(task)
                    task.add_done_callback(self._answers.discard)
                case h11.ConnectionClosed():
                    self._transport.close()
                    return

    async def _answer(self, body: bytes) -> None:
        status = await self._receiver.receive(body)
        if self._transport.is_closing():
            return
        for event in (h11.Response(status_code=status, headers=[("content-length", "0")]), h11.EndOfMessage()):
            self._transport.write(self._connection.send(event) or b"")
        self._connection.start_next_cycle()
