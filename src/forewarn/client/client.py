"""`Client` and `AsyncClient`: two short drivers of one flow."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from typing import Any, Protocol, Self, TypeAlias, TypeVar

from forewarn.client.change import Change
from forewarn.client.deadline import LOOK_S
from forewarn.client.exchange import FlowPause, HttpAnswer, HttpRequest
from forewarn.client.flow import API_VERSIONS, Conversation, Flow, PollAnswered, PollFailed
from forewarn.client.pace import Pace
from forewarn.client.transport import DEFAULT_URL, AsyncHttpTransport, AsyncTransport, HttpTransport, Transport
from forewarn.errors import EndpointUnreachable
from forewarn.util.tasks import cancel_tasks
from forewarn.wire.document import Document, Event

__all__ = ["AsyncClient", "Client", "StopSignal"]

T = TypeVar("T")
S = TypeVar("S")

Events: TypeAlias = Event | str | Iterable[Event | str]
"""One or several events, each as an `Event` or as an id."""

_Came: TypeAlias = HttpAnswer | EndpointUnreachable | None
"""Result of a request; None after a pause and at the start."""

_CLOSED = "the client is closed"

_Endless: TypeAlias = Generator[HttpRequest | FlowPause | S, HttpAnswer | None, None]


class StopSignal(Protocol):
    """Signal that ends a `Client.watch` once it is set, such as a `threading.Event`."""

    def is_set(self) -> bool:
        """Return True to end. Called several times a second."""


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
        self._transport = transport or HttpTransport(url, source_address)
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
        return self._run_to_end(self._conversation.fetch())

    def approve(self, events: Events) -> None:
        """Approve one or several events, each given as an `Event` or as an id. May be repeated (R49).

        Raises:
            EndpointRefused: The endpoint does not know at least one of the ids; none was approved (R55).
            EndpointError: No answer within `Pace.retry_for_s`. The approval may or may not have arrived.
        """
        self._run_to_end(self._conversation.approve(_collect_ids(events)))

    def fetch_name(self) -> str:
        """Return this VM's name as in ``Resources`` (R106).

        Raises:
            EndpointError: The endpoint does not provide it.
        """
        return self._run_to_end(self._conversation.fetch_name())

    def watch(self, stop: StopSignal | None = None) -> Iterator[Change]:
        """Yield each change of an event. Failures are retried; `follow` reports them.

        Args:
            stop: Ends the iteration once it is set, from any thread or from a signal handler; None to end only on
                `close`. Both also end a held request within a fraction of a second, and one that is connecting within 5
                s.
        """
        return self._run_endless(self._conversation.watch(), stop)

    def follow(self, stop: StopSignal | None = None) -> Iterator[PollAnswered | PollFailed]:
        """Yield every answer and every failure until stopped; see `watch`."""
        return self._run_endless(self._conversation.follow(), stop)

    def close(self) -> None:
        """Close the connections, and end all calls of other threads on this client.

        A `watch` and a `follow` end; any other call, running or later, raises `EndpointUnreachable`.
        """
        # Set first: calls that the closing interrupts must report that, and not an error of the transport.
        self._is_closed = True
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _run_to_end(self, flow: Flow[T]) -> T:
        """Run a flow to its end."""
        came: _Came = None
        while True:
            try:
                step = _resume_flow(flow, came)
            except StopIteration as end:
                result: T = end.value
                return result
            # After the step, since a flow that has just ended may still return its result.
            if self._is_closed:
                raise EndpointUnreachable(_CLOSED)
            came = self._perform_step(step, lambda: self._is_closed)

    def _run_endless(self, flow: _Endless[S], stop: StopSignal | None) -> Iterator[S]:
        """Run an endless flow and yield its results until stopped."""

        def is_over() -> bool:
            return self._is_closed or (stop is not None and stop.is_set())

        step = next(flow)
        while not is_over():
            if isinstance(step, HttpRequest | FlowPause):
                came = self._perform_step(step, is_over)
                # A stop ends the request as well. Its failure is no outage, so the flow must not see it.
                if is_over():
                    return
                step = _resume_flow(flow, came)
            else:
                yield step
                step = next(flow)

    def _perform_step(self, step: HttpRequest | FlowPause, is_over: Callable[[], bool]) -> _Came:
        if isinstance(step, FlowPause):
            self._sleep_for(step.seconds, is_over)
            return None
        try:
            return self._transport.send(step, is_over)
        except EndpointUnreachable as error:
            # Returned instead of raised: the flow gets it at its `yield`, and decides about a retry.
            return error

    def _sleep_for(self, span_s: float, is_over: Callable[[], bool]) -> None:
        if self._sleep is not None:
            self._sleep(span_s)
            return
        end_s = time.perf_counter() + span_s
        # Nothing can interrupt `sleep` in another thread, so it sleeps in slices.
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
        self._transport = transport or AsyncHttpTransport(url, source_address)
        self._conversation = Conversation(pace or Pace(), versions, chance)
        self._closed = asyncio.Event()

    @property
    def version(self) -> str:
        """The api-version in use."""
        return self._conversation.version

    async def fetch(self) -> Document:
        """Return the current document; see `Client.fetch`."""
        return await self._run_to_end(self._conversation.fetch())

    async def approve(self, events: Events) -> None:
        """Approve events; see `Client.approve`."""
        await self._run_to_end(self._conversation.approve(_collect_ids(events)))

    async def approve_once(self, events: Events) -> None:
        """Approve events without retries, for callers with their own retry policy; an empty list sends nothing."""
        await self._run_to_end(self._conversation.approve_once(_collect_ids(events)))

    async def fetch_name(self) -> str:
        """Return this VM's name; see `Client.fetch_name`."""
        return await self._run_to_end(self._conversation.fetch_name())

    def watch(self, stop: asyncio.Event | None = None) -> AsyncGenerator[Change]:
        """Yield each change of an event.

        Args:
            stop: Ends the iteration immediately when set; None to end only on `close` or when the task is cancelled.
        """
        return self._run_endless(self._conversation.watch(), stop)

    def follow(self, stop: asyncio.Event | None = None) -> AsyncGenerator[PollAnswered | PollFailed]:
        """Yield every answer and every failure until stopped; see `watch`."""
        return self._run_endless(self._conversation.follow(), stop)

    async def close(self) -> None:
        """Close the connections, and end all calls of other tasks on this client; see `Client.close`.

        From another thread, run it on the event loop: ``asyncio.run_coroutine_threadsafe(client.close(), loop)``.
        """
        self._closed.set()
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def _run_to_end(self, flow: Flow[T]) -> T:
        came: _Came = None
        while True:
            try:
                step = _resume_flow(flow, came)
            except StopIteration as end:
                result: T = end.value
                return result
            if self._closed.is_set():
                raise EndpointUnreachable(_CLOSED)
            came = await self._perform_until(step, [self._closed])

    async def _run_endless(self, flow: _Endless[S], stop: asyncio.Event | None) -> AsyncGenerator[S]:
        ends = [self._closed] if stop is None else [self._closed, stop]
        step = next(flow)
        while not any(end.is_set() for end in ends):
            if isinstance(step, HttpRequest | FlowPause):
                came = await self._perform_until(step, ends)
                # As in `Client`: a request ended by a stop is no outage.
                if any(end.is_set() for end in ends):
                    return
                step = _resume_flow(flow, came)
            else:
                yield step
                step = next(flow)

    async def _perform_until(self, step: HttpRequest | FlowPause, ends: Iterable[asyncio.Event]) -> _Came:
        """Perform a step until it is done or one of the events is set."""
        doing = asyncio.ensure_future(self._perform_step(step))
        tasks: list[asyncio.Future[Any]] = [doing, *(asyncio.ensure_future(end.wait()) for end in ends)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Waits for the cancelled request, so that its connection is closed before the client goes on.
            await cancel_tasks(*tasks)
        return EndpointUnreachable(_CLOSED) if doing.cancelled() else doing.result()

    async def _perform_step(self, step: HttpRequest | FlowPause) -> _Came:
        if isinstance(step, FlowPause):
            await asyncio.sleep(step.seconds)
            return None
        try:
            return await self._transport.send(step)
        except EndpointUnreachable as error:
            return error


def _resume_flow(flow: Generator[S, HttpAnswer | None, object], outcome: _Came) -> S:
    """Send the result of the last step to the flow, and return the next step."""
    return flow.throw(outcome) if isinstance(outcome, EndpointUnreachable) else flow.send(outcome)


def _collect_ids(events: Events) -> list[str]:
    """Return the ids of the events, without duplicates."""
    # A string is iterable, too, and would be taken for ids of one character each.
    if isinstance(events, Event | str):
        events = (events,)
    return list(dict.fromkeys(event if isinstance(event, str) else event.id for event in events))
