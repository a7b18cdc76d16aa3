"""The test service for event loops: `AsyncScheduledEvents`."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import anyio.to_thread

from forewarn.testing.sync import ScheduledEvents
from forewarn.wire.advice import Advice
from forewarn.wire.document import Document
from forewarn.wire.exchange import Exchange

__all__ = ["AsyncScheduledEvents"]

P = ParamSpec("P")
T = TypeVar("T")


def _run_in_thread(
    method: Callable[Concatenate[ScheduledEvents, P], T],
) -> Callable[Concatenate[AsyncScheduledEvents, P], Awaitable[T]]:
    """Return the method as a coroutine function that runs it in a thread, so the test's event loop continues."""

    async def call(self: AsyncScheduledEvents, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await anyio.to_thread.run_sync(functools.partial(method, self.events, *args, **kwargs))

    # Editors and `help` show the signature and docstring of the synchronous method.
    functools.update_wrapper(call, method)
    return call


class AsyncScheduledEvents:
    """`ScheduledEvents` for asyncio and trio: while you await a method, clients on the same loop can run.

    ::

        async with AsyncScheduledEvents() as events:
            event = await events.schedule("Freeze")
            await my_handler.poll_once(events.url)
            await events.advance("15m")

    Args:
        arguments: Positional arguments of `ScheduledEvents`.
        options: Keyword arguments of `ScheduledEvents`.

    Attributes:
        events: The synchronous service behind this one.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - as `ScheduledEvents`
        self.events = ScheduledEvents(*arguments, **options)

    # A plain context manager as well: the pytest fixture is synchronous, so it works with any plugin for event loops.
    def __enter__(self) -> Self:
        self.events.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.events.__exit__(*error)

    async def __aenter__(self) -> Self:
        await anyio.to_thread.run_sync(self.events.__enter__)
        return self

    async def __aexit__(self, *error: object) -> None:
        await anyio.to_thread.run_sync(self.events.__exit__, *error)

    url_of = _run_in_thread(ScheduledEvents.url_of)
    advance = _run_in_thread(ScheduledEvents.advance)
    schedule = _run_in_thread(ScheduledEvents.schedule)
    restart = _run_in_thread(ScheduledEvents.restart)
    redeploy = _run_in_thread(ScheduledEvents.redeploy)
    evict = _run_in_thread(ScheduledEvents.evict)
    delete = _run_in_thread(ScheduledEvents.delete)
    maintain = _run_in_thread(ScheduledEvents.maintain)
    fail_host = _run_in_thread(ScheduledEvents.fail_host)
    predict_failure = _run_in_thread(ScheduledEvents.predict_failure)
    approve = _run_in_thread(ScheduledEvents.approve)
    cancel = _run_in_thread(ScheduledEvents.cancel)
    start = _run_in_thread(ScheduledEvents.start)
    complete = _run_in_thread(ScheduledEvents.complete)
    impact = _run_in_thread(ScheduledEvents.impact)
    inject = _run_in_thread(ScheduledEvents.inject)
    clear_faults = _run_in_thread(ScheduledEvents.clear_faults)
    documents_of = _run_in_thread(ScheduledEvents.documents_of)
    requests_of = _run_in_thread(ScheduledEvents.requests_of)

    @property
    def url(self) -> str:
        """Base URL of the endpoint for the first VM."""
        return self.events.url

    @property
    def now(self) -> datetime:
        """Current time of the service."""
        return self.events.now

    @property
    def document(self) -> Document:
        """Current document of the first VM."""
        return self.events.document

    @property
    def documents(self) -> list[Document]:
        """Every document shown to the first VM so far, oldest first."""
        return self.events.documents

    @property
    def requests(self) -> list[Exchange]:
        """Requests of all VMs so far."""
        return self.events.requests

    @property
    def warnings(self) -> list[tuple[Exchange, Advice]]:
        """Requests in which a client relied on something that real endpoints refuse or do not promise."""
        return self.events.warnings

    def assert_no_warnings(self) -> None:
        """Check that no request raised a warning; see `ScheduledEvents.assert_no_warnings`."""
        __tracebackhide__ = True
        self.events.assert_no_warnings()
