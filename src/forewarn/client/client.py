"""`Client` and `AsyncClient`: two short drivers of one flow."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from types import TracebackType
from typing import Self, TypeAlias, TypeVar

from forewarn.client.change import Change
from forewarn.client.exchange import Answer, Pause, Request
from forewarn.client.flow import API_VERSIONS, Conversation, Flow, Missed, Seen
from forewarn.client.pace import Pace
from forewarn.client.transport import DEFAULT_URL, AsyncHttp, AsyncTransport, Http, Transport
from forewarn.errors import EndpointUnreachable
from forewarn.wire.document import Document, Event

__all__ = ["AsyncClient", "Client"]

T = TypeVar("T")
S = TypeVar("S")

_Came: TypeAlias = Answer | EndpointUnreachable | None
"""What came of a request; None after a pause, and to begin with."""

_Endless: TypeAlias = Generator[Request | Pause | S, Answer | None, None]


class Client:
    """Talks to a scheduled-events endpoint, from a thread.

    ::

        with Client() as client:
            for change in client.watch():
                if change.kind is ChangeKind.PREPARE:
                    ...
                    client.approve([change.event.id])

    Args:
        url: The endpoint, without path.
        source_address: Local address to ask from; None leaves it to the system.
        pace: How often to ask, and how long to wait.
        versions: Api-versions to try, newest first.
        transport: Carries out requests; None for sockets to `url`.
        chance: Gives numbers from 0 to 1, to spread retries.
        sleep: Lets seconds pass.

    Raises:
        ConfigError: The URL is none.
    """

    def __init__(  # noqa: PLR0913 - options, each with a default
        self,
        url: str = DEFAULT_URL,
        *,
        source_address: str | None = None,
        pace: Pace | None = None,
        versions: Iterable[str] = API_VERSIONS,
        transport: Transport | None = None,
        chance: Callable[[], float] = random.random,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._transport = transport or Http(url, source_address)
        self._conversation = Conversation(pace or Pace(), versions, chance)
        self._sleep = sleep

    @property
    def version(self) -> str:
        """The api-version in use."""
        return self._conversation.version

    def fetch(self) -> Document:
        """The current document.

        Raises:
            EndpointError: It could not be had within `Pace.retry_for_s`.
        """
        return self._finish(self._conversation.fetch())

    def approve(self, events: Iterable[Event | str]) -> None:
        """Approve events, given as such or by their ids. May be repeated (R49).

        Raises:
            EndpointRefused: At least one id is not known to the endpoint; none was approved (R55).
            EndpointError: No answer within `Pace.retry_for_s`. Whether it was approved is not known.
        """
        self._finish(self._conversation.approve(_ids(events)))

    def name(self) -> str:
        """This VM's own name, as ``Resources`` has it (R106).

        Raises:
            EndpointError: The endpoint does not say.
        """
        return self._finish(self._conversation.name())

    def watch(self) -> Iterator[Change]:
        """What becomes of each event, for ever. Failures are retried; `follow` tells of them."""
        return self._run(self._conversation.watch())

    def follow(self) -> Iterator[Seen | Missed]:
        """Every answer and every failure, for ever."""
        return self._run(self._conversation.follow())

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _finish(self, flow: Flow[T]) -> T:
        """Carry out a flow to its end."""
        came: _Came = None
        while True:
            try:
                step = _resume(flow, came)
            except StopIteration as end:
                result: T = end.value
                return result
            came = self._perform(step)

    def _run(self, flow: _Endless[S]) -> Iterator[S]:
        """Carry out a flow that has no end, and hand on what it tells."""
        step = next(flow)
        while True:
            if isinstance(step, Request | Pause):
                step = _resume(flow, self._perform(step))
            else:
                yield step
                step = next(flow)

    def _perform(self, step: Request | Pause) -> _Came:
        if isinstance(step, Pause):
            self._sleep(step.seconds)
            return None
        try:
            return self._transport.send(step)
        except EndpointUnreachable as error:
            return error


class AsyncClient:
    """Talks to a scheduled-events endpoint, from a task; see `Client`.

    Pauses are those of the running event loop, so a loop with a clock of its own sets the pace.
    """

    def __init__(  # noqa: PLR0913 - options, each with a default
        self,
        url: str = DEFAULT_URL,
        *,
        source_address: str | None = None,
        pace: Pace | None = None,
        versions: Iterable[str] = API_VERSIONS,
        transport: AsyncTransport | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._transport = transport or AsyncHttp(url, source_address)
        self._conversation = Conversation(pace or Pace(), versions, chance)

    @property
    def version(self) -> str:
        """The api-version in use."""
        return self._conversation.version

    async def fetch(self) -> Document:
        """The current document; see `Client.fetch`."""
        return await self._finish(self._conversation.fetch())

    async def approve(self, events: Iterable[Event | str]) -> None:
        """Approve events; see `Client.approve`."""
        await self._finish(self._conversation.approve(_ids(events)))

    async def approve_once(self, events: Iterable[Event | str]) -> None:
        """The same without retries, for who retries on its own."""
        await self._finish(self._conversation.approve_once(_ids(events)))

    async def name(self) -> str:
        """This VM's own name; see `Client.name`."""
        return await self._finish(self._conversation.name())

    def watch(self) -> AsyncGenerator[Change]:
        """What becomes of each event, for ever; see `Client.watch`."""
        return self._run(self._conversation.watch())

    def follow(self) -> AsyncGenerator[Seen | Missed]:
        """Every answer and every failure, for ever."""
        return self._run(self._conversation.follow())

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _finish(self, flow: Flow[T]) -> T:
        came: _Came = None
        while True:
            try:
                step = _resume(flow, came)
            except StopIteration as end:
                result: T = end.value
                return result
            came = await self._perform(step)

    async def _run(self, flow: _Endless[S]) -> AsyncGenerator[S]:
        step = next(flow)
        while True:
            if isinstance(step, Request | Pause):
                step = _resume(flow, await self._perform(step))
            else:
                yield step
                step = next(flow)

    async def _perform(self, step: Request | Pause) -> _Came:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        try:
            return await self._transport.send(step)
        except EndpointUnreachable as error:
            return error


def _resume(flow: Generator[S, Answer | None, object], came: _Came) -> S:
    """Hand the flow what came of its last step, and take the next."""
    return flow.throw(came) if isinstance(came, EndpointUnreachable) else flow.send(came)


def _ids(events: Iterable[Event | str]) -> list[str]:
    if isinstance(events, str):
        events = (events,)
    return list(dict.fromkeys(event if isinstance(event, str) else event.id for event in events))
