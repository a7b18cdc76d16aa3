"""What happens on a libvirt: word of what starts, stops, comes and goes; and its inventory kept up to date.

libvirt's events are a hint. What is declared is always read as a whole, and from time to time without any hint.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

import structlog

from forewarn.actuators.libvirt_connection import Connect, Domain, Line, Session, load_libvirt
from forewarn.actuators.libvirt_inventory import read_host
from forewarn.errors import ActuatorError, ConfigError, ForewarnError, Unauthorized
from forewarn.wire.inventory import HostVmsIn

__all__ = ["Declare", "News", "follow", "keep_declared"]

_log = structlog.get_logger("forewarn.actuators.libvirt")

Declare: TypeAlias = Callable[[str, HostVmsIn], Awaitable[None]]
"""Declares what the host of that name runs."""

RECONNECT_S = 5.0
"""From the loss of a connection to the next try."""

SETTLE_S = 0.5
"""From an event to reading what is there: they come in bursts."""

AGAIN_S = 60.0
"""What is there is read and declared after so long, whatever was heard."""

_CHECK_S = 1.0
_CALL_TIMEOUT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """That a VM runs or does not.

    Attributes:
        what: libvirt's word: defined, undefined, started, suspended, resumed, stopped, shutdown, pmsuspended, crashed;
            or present, for what was there when the connection was made.
        is_running: Whether it runs now, as far as that follows from it.
    """

    vm: str
    what: str
    is_running: bool


_EVENTS = ("defined", "undefined", "started", "suspended", "resumed", "stopped", "shutdown", "pmsuspended", "crashed")
_RUNS_AFTER = frozenset({"started", "resumed"})
_LEAVES_AS_IT_IS = frozenset({"defined"})


async def follow(uri: str, tell: Callable[[News], None], reconnect_s: float = RECONNECT_S) -> None:
    """Tell what is there, then what changes, until cancelled.

    Whenever the connection had to be made anew, everything that is there is told anew; what happened in between is not.

    Args:
        uri: libvirt's.
        tell: Called in the event loop.
        reconnect_s: From the loss of a connection to the next try.

    Raises:
        ConfigError: libvirt's library for Python is missing.
    """
    load_libvirt()
    while True:
        line = Line(uri, _CALL_TIMEOUT)
        try:
            await _follow_once(line, tell)
        except ActuatorError as error:
            _log.warning("libvirt cannot be followed, trying again", uri=uri, error=error.message)
        finally:
            await line.close()
        await asyncio.sleep(reconnect_s)


async def keep_declared(  # noqa: PLR0913 - three of them are pauses
    uri: str,
    declare: Declare,
    host_name: str = "",
    *,
    settle_s: float = SETTLE_S,
    again_s: float = AGAIN_S,
    retry_s: float = RECONNECT_S,
) -> None:
    """Declare what a libvirt runs whenever that changes, until cancelled.

    What cannot be read or is refused is tried again; what was declared before stands until then.

    Args:
        uri: libvirt's.
        declare: Called with everything that is there, also when nothing has changed.
        host_name: What the host is called; empty: as it calls itself.
        settle_s: From an event to reading.
        again_s: Longest pause between two declarations.
        retry_s: From a failure to the next try.

    Raises:
        ConfigError: libvirt's library for Python is missing.
        Unauthorized: The service does not take what is declared from us; trying again would not help.
    """
    has_news = asyncio.Event()
    hearing = asyncio.ensure_future(follow(uri, lambda _news: has_news.set(), retry_s))
    try:
        while not hearing.done():
            has_news.clear()
            try:
                await declare(*await asyncio.to_thread(read_host, uri, host_name))
                pause_s = again_s
            except (ConfigError, Unauthorized):
                raise
            except ForewarnError as error:
                _log.warning("what runs there could not be declared, trying again", uri=uri, error=error.message)
                pause_s = retry_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await has_news.wait()
                await asyncio.sleep(settle_s)
        await hearing
    finally:
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)


async def _follow_once(line: Line, tell: Callable[[News], None]) -> None:
    """Until the connection is another."""
    events: asyncio.Queue[News] = asyncio.Queue()
    watch = _Watch(events)
    try:
        for news in await line.call(watch.begin):
            tell(news)
        while await line.call(watch.is_same):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_S):
                    while True:
                        tell(await events.get())
    finally:
        with contextlib.suppress(ActuatorError):
            await line.call(watch.end)


class _Watch:
    """The registration of one connection. What it hears waits until it has been told what was there before."""

    def __init__(self, events: asyncio.Queue[News]) -> None:
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._connect: Connect | None = None
        self._number = -1

    def begin(self, session: Session) -> list[News]:
        """Register, and hand back what is there."""
        library, self._connect = session.library, session.connect
        kind = library.VIR_DOMAIN_EVENT_ID_LIFECYCLE
        self._number = session.connect.domainEventRegisterAny(None, kind, self._hear, None)
        domains = session.connect.listAllDomains()
        running = library.VIR_DOMAIN_RUNNING
        return [News(vm=d.name(), what="present", is_running=d.state()[0] == running) for d in domains]

    def is_same(self, session: Session) -> bool:
        """Whether the connection is still the one that was registered."""
        return session.connect is self._connect

    def end(self, session: Session) -> None:
        """Hear no more."""
        if self.is_same(session):
            session.connect.domainEventDeregisterAny(self._number)

    def _hear(self, _connect: Connect, domain: Domain, event: int, _detail: int, _opaque: None) -> None:
        """On the thread of libvirt's events."""
        what = _EVENTS[event] if event < len(_EVENTS) else f"event {event}"
        is_running = what in _RUNS_AFTER or (what in _LEAVES_AS_IT_IS and domain.isActive() == 1)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(
                self._events.put_nowait, News(vm=domain.name(), what=what, is_running=is_running)
            )
