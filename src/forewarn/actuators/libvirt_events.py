"""Changes on a libvirt: domains that start, stop, appear and vanish; and an inventory that is kept up to date.

libvirt's events are only hints. The declared state is always read as a whole, and periodically without any event.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

import structlog

from forewarn.actuators.libvirt_connection import Connect, Domain, LibvirtConnection, LibvirtSession, load_libvirt
from forewarn.actuators.libvirt_inventory import read_host
from forewarn.errors import ActuatorError, ConfigError, ForewarnError, Unauthorized
from forewarn.util.tasks import cancel_tasks
from forewarn.wire.inventory import HostDeclarationIn

__all__ = ["Declare", "DomainEvent", "follow_domains", "keep_declared"]

_log = structlog.get_logger("forewarn.actuators.libvirt_events")

Declare: TypeAlias = Callable[[str, HostDeclarationIn], Awaitable[None]]
"""Callback that declares the VMs of the host with that name."""

RECONNECT_S = 5.0
"""Pause between the loss of a connection and the next try."""

SETTLE_S = 0.5
"""Pause between an event and the next read; events come in bursts."""

AGAIN_S = 60.0
"""Maximum interval between declarations, whatever events arrive."""

_CHECK_S = 1.0
_CALL_TIMEOUT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainEvent:
    """A change of a VM's run state.

    Attributes:
        kind: libvirt's word: defined, undefined, started, suspended, resumed, stopped, shutdown, pmsuspended, crashed;
            or present, for domains that existed when the connection was made.
        is_running: True if it runs now, as far as the event shows.
    """

    vm: str
    kind: str
    is_running: bool


_EVENTS = ("defined", "undefined", "started", "suspended", "resumed", "stopped", "shutdown", "pmsuspended", "crashed")
_RUNS_AFTER = frozenset({"started", "resumed"})
# A running VM may be defined anew, which does not affect its run state.
_LEAVES_AS_IT_IS = frozenset({"defined"})


async def follow_domains(uri: str, on_event: Callable[[DomainEvent], None], reconnect_s: float = RECONNECT_S) -> None:
    """Report the existing domains, then their changes, until cancelled.

    `on_event` is called in the event loop. After a reconnect, all existing domains are reported again; changes in
    between are not.

    Raises:
        ConfigError: libvirt's library for Python is missing.
    """
    load_libvirt()
    while True:
        line = LibvirtConnection(uri, _CALL_TIMEOUT)
        try:
            await _follow_connection(line, on_event)
        except ActuatorError as error:
            _log.warning("cannot follow libvirt; retrying", uri=uri, error=error.message)
        finally:
            await line.close()
        await asyncio.sleep(reconnect_s)


async def keep_declared(
    uri: str, declare: Declare, host_name: str = "", *, settle_s: float = SETTLE_S, retry_s: float = RECONNECT_S
) -> None:
    """Declare the VMs of one libvirt host whenever they change, until cancelled.

    `declare` gets all VMs, also if nothing has changed; for `host_name` see `read_host`. A read or a declaration that
    fails is retried; the last declared state remains until then.

    Raises:
        ConfigError: libvirt's library for Python is missing.
        Unauthorized: The service refuses the declaration; a retry would not help.
    """
    has_news = asyncio.Event()
    hearing = asyncio.ensure_future(follow_domains(uri, lambda _news: has_news.set(), retry_s))
    try:
        while not hearing.done():
            # Cleared before the read, so that an event during it causes another one.
            has_news.clear()
            try:
                await declare(*await asyncio.to_thread(read_host, uri, host_name))
                pause_s = AGAIN_S
            except (ConfigError, Unauthorized):
                raise
            except ForewarnError as error:
                _log.warning("cannot declare the VMs of libvirt; retrying", uri=uri, error=error.message)
                pause_s = retry_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await has_news.wait()
                # Only after an event; the events that follow in the pause belong to the same declaration.
                await asyncio.sleep(settle_s)
        await hearing
    finally:
        await cancel_tasks(hearing)


async def _follow_connection(line: LibvirtConnection, on_event: Callable[[DomainEvent], None]) -> None:
    """Report events until the connection changes."""
    events: asyncio.Queue[DomainEvent] = asyncio.Queue()
    watch = _EventRegistration(events)
    try:
        for news in await line.run_job(watch.register):
            on_event(news)
        # A line replaces a broken connection without notice, and events were registered on the former one: then start
        # over.
        while await line.run_job(watch.is_current):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_S):
                    while True:
                        on_event(await events.get())
    finally:
        with contextlib.suppress(ActuatorError):
            await line.run_job(watch.deregister)


class _EventRegistration:
    """The event registration of one connection. Its events are queued until the existing domains are reported."""

    def __init__(self, events: asyncio.Queue[DomainEvent]) -> None:
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._connect: Connect | None = None
        self._number = -1

    def register(self, session: LibvirtSession) -> list[DomainEvent]:
        """Register for events, and return the existing domains."""
        library, self._connect = session.library, session.connect
        kind = library.VIR_DOMAIN_EVENT_ID_LIFECYCLE
        # Before the list is read, so that a change in between is reported twice and not missed.
        self._number = session.connect.domainEventRegisterAny(None, kind, self._queue_event, None)
        domains = session.connect.listAllDomains()
        running = library.VIR_DOMAIN_RUNNING
        return [DomainEvent(vm=d.name(), kind="present", is_running=d.state()[0] == running) for d in domains]

    def is_current(self, session: LibvirtSession) -> bool:
        """Return True if the connection is still the registered one."""
        return session.connect is self._connect

    def deregister(self, session: LibvirtSession) -> None:
        """End the registration."""
        if self.is_current(session):
            session.connect.domainEventDeregisterAny(self._number)

    def _queue_event(self, _connect: Connect, domain: Domain, event: int, _detail: int, _opaque: None) -> None:
        """Queue an event; runs on the thread of libvirt's events."""
        what = _EVENTS[event] if event < len(_EVENTS) else f"event {event}"
        is_running = what in _RUNS_AFTER or (what in _LEAVES_AS_IT_IS and domain.isActive() == 1)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(
                self._events.put_nowait, DomainEvent(vm=domain.name(), kind=what, is_running=is_running)
            )
