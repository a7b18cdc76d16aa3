"""Both clients behind one face, so that one suite runs over each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeAlias, TypeVar

from forewarn.client import API_VERSIONS, AsyncClient, Change, Client, Document, Event, Pace, PollAnswered, PollFailed
from forewarn.client.transport import AsyncHttpTransport, HttpTransport
from tests.support.spans import GUARD_S

__all__ = ["DRIVERS", "QUICK", "SHORT", "Driver", "Drives", "by_task", "by_thread"]

T = TypeVar("T")

QUICK = Pace(
    poll_interval_s=0.02, wait_s=0, first_timeout_s=60, timeout_s=60, retry_min_s=0.01, retry_max_s=0.04, refresh_s=5
)
"""A pace for tests that have no time."""

SHORT = 0.3
"""A time-out in seconds, for tests in which it passes."""


class Driver(Protocol):
    """What a client does, as plain calls."""

    @property
    def version(self) -> str: ...
    def fetch(self) -> Document: ...
    def approve(self, events: Event | str | Iterable[Event | str]) -> None: ...
    def fetch_name(self) -> str: ...
    def watch(self) -> Iterator[Change]: ...
    def follow(self) -> Iterator[PollAnswered | PollFailed]: ...


Drives: TypeAlias = Callable[..., AbstractContextManager[Driver]]
"""Makes a driver for a URL, with a pace and a source address of its own."""


@contextmanager
def by_thread(
    url: str,
    pace: Pace = QUICK,
    source_address: str | None = None,
    *,
    connect_timeout_s: float = GUARD_S,
    versions: Iterable[str] = API_VERSIONS,
) -> Iterator[Driver]:
    """`Client`."""
    transport = HttpTransport(url, source_address, connect_timeout_s=connect_timeout_s)
    with Client(pace=pace, transport=transport, versions=versions) as client:
        yield client


class _Tasks:
    """`AsyncClient`, one call after the other on one event loop."""

    def __init__(self, runner: asyncio.Runner, client: AsyncClient) -> None:
        self._runner = runner
        self._client = client

    @property
    def version(self) -> str:
        return self._client.version

    def fetch(self) -> Document:
        return self._runner.run(self._client.fetch())

    def approve(self, events: Event | str | Iterable[Event | str]) -> None:
        self._runner.run(self._client.approve(events))

    def fetch_name(self) -> str:
        return self._runner.run(self._client.fetch_name())

    def watch(self) -> Iterator[Change]:
        return self._each(self._client.watch())

    def follow(self) -> Iterator[PollAnswered | PollFailed]:
        return self._each(self._client.follow())

    def _each(self, told: Any) -> Iterator[Any]:  # noqa: ANN401 - of either kind
        async def following() -> Any:  # noqa: ANN401 - of either kind
            return await anext(told)

        while True:
            yield self._runner.run(following())


@contextmanager
def by_task(
    url: str,
    pace: Pace = QUICK,
    source_address: str | None = None,
    *,
    connect_timeout_s: float = GUARD_S,
    versions: Iterable[str] = API_VERSIONS,
) -> Iterator[Driver]:
    """`AsyncClient`."""
    with asyncio.Runner() as runner:
        transport = AsyncHttpTransport(url, source_address, connect_timeout_s=connect_timeout_s)
        client = AsyncClient(pace=pace, transport=transport, versions=versions)
        yield _Tasks(runner, client)
        runner.run(client.close())


DRIVERS: dict[str, Drives] = {"Client": by_thread, "AsyncClient": by_task}
