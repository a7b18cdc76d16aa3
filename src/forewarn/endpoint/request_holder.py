"""Requests that wait: for a new document, or until a refusal is due."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from forewarn.clock import Clock
from forewarn.endpoint.fastpath import VmConnection
from forewarn.endpoint.traffic import Traffic
from forewarn.publishing.feed import Channel

__all__ = ["RequestHolder"]


class RequestHolder:
    """Holds requests of VMs.

    Args:
        clock: Service clock; a virtual one also ends waits.
        traffic: Says whether the endpoint is stopping, which ends all waits.
    """

    def __init__(self, clock: Clock, traffic: Traffic) -> None:
        self._clock = clock
        self._traffic = traffic

    async def hold(self, connection: VmConnection, wait_s: float, channel: Channel | None = None) -> None:
        """Wait until the time is over, the client is gone or, with a channel, there is a new incarnation."""
        if wait_s <= 0 or self._traffic.is_stopping or connection.is_client_gone:
            return
        waiter = asyncio.get_running_loop().create_future() if channel is None else channel.add_waiter()
        connection.held = waiter
        try:
            await self._wait_for(waiter, wait_s)
        finally:
            connection.held = None
            if channel is not None:
                channel.remove_waiter(waiter)

    async def _wait_for(self, waiter: asyncio.Future[None], timeout_s: float) -> None:
        """Wait until `waiter` is done or the timeout passes, in real or virtual seconds, whichever is sooner."""
        loop = asyncio.get_running_loop()
        # The real timer runs with a virtual clock, too: no client may hang on a clock that a test has stopped moving.
        timer = loop.call_later(timeout_s, _complete_waiter, waiter)
        virtual = None
        if self._clock.is_virtual:
            virtual = loop.create_task(self._release_when_due(waiter, timeout_s))
        try:
            await waiter
        finally:
            timer.cancel()
            if virtual is not None:
                virtual.cancel()

    async def _release_when_due(self, waiter: asyncio.Future[None], timeout_s: float) -> None:
        await self._clock.wait_until(self._clock.now() + timedelta(seconds=timeout_s))
        _complete_waiter(waiter)


def _complete_waiter(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
