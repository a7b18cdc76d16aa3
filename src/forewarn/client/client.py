"""`Client` and `AsyncClient`: two short drivers of one flow."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias, TypeVar

from forewarn.client.change import Change
from forewarn.client.deadline import LOOK_S
from forewarn.client.exchange import Answer, Pause, Request
from forewarn.client.flow import API_VERSIONS, Conversation, Flow, Missed, Seen
from forewarn.client.pace import Pace
from forewarn.client.transport import DEFAULT_URL, AsyncHttp, AsyncTransport, Http, Transport
from forewarn.errors import EndpointUnreachable
from forewarn.wire.document import Document, Event

__all__ = ["AsyncClient", "Client", "Stop"]

T = TypeVar("T")
S = TypeVar("S")

Events: TypeAlias = Event | str | Iterable[Event | str]
"""One or several events, each as an `Event` or as an id."""

_Came: TypeAlias = Answer | EndpointUnreachable | None
"""Result of a request; None after a pause and at the start."""

_CLOSED = "the client is closed"

_Endless: TypeAlias = Generator[Request | Pause | S, Answer | None, None]


class Stop(Protocol):
    """Signal that ends a `Client.watch` once it is set, such as a `threading.Event`."""

    def is_set(self) -> bool:
        """Return True to end. Called several times a second."""
        ...


class Client:
    """Client of a scheduled-events endpoint, for threads.

    ::

        with Client() as client:
            for change in client.watch():
                if change.kind is ChangeKind.PREPARE:
                    ...
                    client.approve(change.event)

    Several threads may use it at the same time, and any of them may close it.

    Args:
        url: URL of the endpoint, without path.
        source_address: Local address to send from; None leaves it to the system.
        pace: Intervals, time-outs and retries.
        versions: Api-versions to try, newest first.
        transport: Transport for requests; None for sockets to `url`.
        chance: Source of random numbers from 0 to 1, for the jitter of retries.
        sleep: Function that sleeps for some seconds; None for a sleep that `close` and a stop interrupt.

    Raises:
        ConfigError: `url` is not the URL of an endpoint.
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
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._transport = transport or Http(url, source_address)
        self._conversation = Conversation(pace or Pace(), versions, chance)
        self._sleep = sleep
        self._is_closed = False

    @property
    def version(self) -> str:
        """The api-version in use."""
        return self._conversation.version

    def fetch(self) -> Document:
        """Return the current document.

        Raises:
            EndpointError: No document within `Pace.retry_for_s`.
        """
        return self._finish(self._conversation.fetch())

    def approve(self, events: Events) -> None:
        """Approve one or several events, each given as an `Event` or as an id. May be repeated (R49).

        Raises:
            EndpointRefused: The endpoint does not know at least one of the ids; none was approved (R55).
            EndpointError: No answer within `Pace.retry_for_s`. The approval may or may not have arrived.
        """
        self._finish(self._conversation.approve(_ids(events)))

    def name(self) -> str:
        """Return this VM's name as in ``Resources`` (R106).

        Raises:
            EndpointError: The endpoint does not provide it.
        """
        return self._finish(self._conversation.name())

    def watch(self, stop: Stop | None = None) -> Iterator[Change]:
        """Yield each change of an event. Failures are retried; `follow` reports them.

        Args:
            stop: Ends the iteration once it is set, from any thread or from a signal handler; None to end only on
                `close`. Both also end a held request within a fraction of a second, and one that is connecting within 5
                s.
        """
        return self._run(self._conversation.watch(), stop)

    def follow(self, stop: Stop | None = None) -> Iterator[Seen | Missed]:
        """Yield every answer and every failure until stopped; see `watch`."""
        return self._run(self._conversation.follow(), stop)

    def close(self) -> None:
        """Close the connections, and end all calls of other threads on this client.

        A `watch` and a `follow` end; any other call, running or later, raises `EndpointUnreachable`.
        """
        self._is_closed = True
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _finish(self, flow: Flow[T]) -> T:
        """Run a flow to its end."""
        came: _Came = None
        while True:
            try:
                step = _resume(flow, came)
            except StopIteration as end:
                result: T = end.value
                return result
            if self._is_closed:
                raise EndpointUnreachable(_CLOSED)
            came = self._perform(step, lambda: self._is_closed)

    def _run(self, flow: _Endless[S], stop: Stop | None) -> Iterator[S]:
        """Run an endless flow and yield its results until stopped."""

        def is_over() -> bool:
            return self._is_closed or (stop is not None and stop.is_set())

        step = next(flow)
        while not is_over():
            if isinstance(step, Request | Pause):
                came = self._perform(step, is_over)
                if is_over():
                    return
                step = _resume(flow, came)
            else:
                yield step
                step = next(flow)

    def _perform(self, step: Request | Pause, is_over: Callable[[], bool]) -> _Came:
        if isinstance(step, Pause):
            self._pause(step.seconds, is_over)
            return None
        try:
            return self._transport.send(step, is_over)
        except EndpointUnreachable as error:
            return error

    def _pause(self, span_s: float, is_over: Callable[[], bool]) -> None:
        if self._sleep is not None:
            self._sleep(span_s)
            return
        end_s = time.perf_counter() + span_s
        while not is_over() and (left_s := end_s - time.perf_counter()) > 0:
            time.sleep(min(left_s, LOOK_S))


class AsyncClient:
    """Client of a scheduled-events endpoint, for asyncio tasks; see `Client`.

    Pauses use the running event loop, so a loop with virtual time determines the pace.
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
        self._closed = asyncio.Event()

    @property
    def version(self) -> str:
        """The api-version in use."""
        return self._conversation.version

    async def fetch(self) -> Document:
        """Return the current document; see `Client.fetch`."""
        return await self._finish(self._conversation.fetch())

    async def approve(self, events: Events) -> None:
        """Approve events; see `Client.approve`."""
        await self._finish(self._conversation.approve(_ids(events)))

    async def approve_once(self, events: Events) -> None:
        """Approve events without retries, for callers with their own retry policy."""
        await self._finish(self._conversation.approve_once(_ids(events)))

    async def name(self) -> str:
        """Return this VM's name; see `Client.name`."""
        return await self._finish(self._conversation.name())

    def watch(self, stop: asyncio.Event | None = None) -> AsyncGenerator[Change]:
        """Yield each change of an event.

        Args:
            stop: Ends the iteration immediately when set; None to end only on `close` or when the task is cancelled.
        """
        return self._run(self._conversation.watch(), stop)

    def follow(self, stop: asyncio.Event | None = None) -> AsyncGenerator[Seen | Missed]:
        """Yield every answer and every failure until stopped; see `watch`."""
        return self._run(self._conversation.follow(), stop)

    async def close(self) -> None:
        """Close the connections, and end all calls of other tasks on this client; see `Client.close`.

        From another thread, run it on the event loop: ``asyncio.run_coroutine_threadsafe(client.close(), loop)``.
        """
        self._closed.set()
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
            if self._closed.is_set():
                raise EndpointUnreachable(_CLOSED)
            came = await self._perform(step, [self._closed])

    async def _run(self, flow: _Endless[S], stop: asyncio.Event | None) -> AsyncGenerator[S]:
        ends = [self._closed] if stop is None else [self._closed, stop]
        step = next(flow)
        while not any(end.is_set() for end in ends):
            if isinstance(step, Request | Pause):
                came = await self._perform(step, ends)
                if any(end.is_set() for end in ends):
                    return
                step = _resume(flow, came)
            else:
                yield step
                step = next(flow)

    async def _perform(self, step: Request | Pause, ends: Iterable[asyncio.Event]) -> _Came:
        """Perform a step until it is done or one of the events is set."""
        doing = asyncio.ensure_future(self._carry_out(step))
        tasks: list[asyncio.Future[Any]] = [doing, *(asyncio.ensure_future(end.wait()) for end in ends)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return EndpointUnreachable(_CLOSED) if doing.cancelled() else doing.result()

    async def _carry_out(self, step: Request | Pause) -> _Came:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        try:
            return await self._transport.send(step)
        except EndpointUnreachable as error:
            return error


def _resume(flow: Generator[S, Answer | None, object], came: _Came) -> S:
    """Send the result of the last step to the flow, and return the next step."""
    return flow.throw(came) if isinstance(came, EndpointUnreachable) else flow.send(came)


def _ids(events: Events) -> list[str]:
    """Return the ids of the events, without duplicates."""
    if isinstance(events, Event | str):
        events = (events,)
    return list(dict.fromkeys(event if isinstance(event, str) else event.id for event in events))
