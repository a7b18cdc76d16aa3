"""State of a host's endpoint: received from the control plane, stored on disk, served while it is unreachable."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import structlog

from forewarn.clock import Clock, uptime_s
from forewarn.core.approval import Approval, Approver
from forewarn.core.decision import Document
from forewarn.core.inventory import Inventory
from forewarn.errors import ConfigError, ControlUnreachable, ForewarnError
from forewarn.host.link import Link
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity
from forewarn.util.fair_share import Room, Slots
from forewarn.util.secrets import open_private, tighten
from forewarn.wire.hostfeed import BadLine, HostState, parse_line, state_line
from forewarn.wire.imds import Dialect

__all__ = ["Remote", "nothing", "read_state"]

_log = structlog.get_logger("forewarn.host")

_REPORT_S = 10.0
_ENABLED_S = 5.0
_APPROVALS_MAX = 64
"""Maximum number of concurrent approval requests to the control plane."""


class Remote:
    """Authority of an endpoint that is backed by a remote control plane.

    Args:
        link: Connection to the control plane.
        state: State known at the start of this process.
        clock: Service clock.
        file: State file; None if the state is not stored.

    Attributes:
        feed: Current documents.
        identity: Mapping of addresses to VMs.
        on_inventory: Callable called when the VMs may have changed.
    """

    def __init__(self, link: Link, state: HostState, clock: Clock, file: Path | None = None) -> None:
        self.feed = Feed(state.dialect)
        self.identity = Identity(self.feed)
        self.on_inventory: Callable[[], None] = lambda: None
        self._state = state
        self._link = link
        self._clock = clock
        self._file = file
        self._heard_s: float | None = None
        self._is_changed = asyncio.Event()
        self._told: list[HostState | Document] = []
        self._reported: dict[str, datetime] = {}
        self._slots = Slots(_APPROVALS_MAX, Room())
        self._show(state)
        self.identity.is_known = state != nothing(state.host)

    @property
    def age_s(self) -> float | None:
        """Seconds since the last line from the control plane; None if there was none since this process began."""
        return None if self._heard_s is None else uptime_s() - self._heard_s

    # Requests of VMs

    async def enable(self, key: str, scope: str | None) -> None:  # noqa: ARG002 - the control plane knows the scope
        """Have an audience enabled; return when its document has arrived.

        Raises:
            ControlUnreachable: No replica gave a usable answer, or the document did not arrive in time.
            ControlRefused: The control plane refuses this host or this VM.
        """
        channel = self.feed.channel(key)
        name = next((vm.name for vm in self.identity.vms if self.identity.audience(vm.name) == key), None)
        if name is None:
            return
        await self._link.report({name: self._clock.now()})
        waiter = channel.hold()
        try:
            async with asyncio.timeout(_ENABLED_S):
                while not channel.is_enabled:
                    channel.let_go(waiter)
                    waiter = channel.hold()
                    await waiter
        except TimeoutError as error:
            msg = "the control plane has not sent the document of a VM that it has enabled"
            raise ControlUnreachable(msg) from error
        finally:
            channel.let_go(waiter)

    async def approve(self, event_ids: Sequence[str], approver: Approver) -> Approval:
        """Pass an approval on; all VMs have equal shares of the connection.

        Raises:
            LimitExceeded: Too many approvals of this VM are waiting, here or at the control plane.
            StoreUnavailable: Too many approvals are waiting.
            ControlUnreachable: The outcome of the approval is unknown.
        """
        async with self._slots.one(approver.vm or approver.actor, max(1, len(event_ids))):
            return await self._link.approve(event_ids, approver)

    # Watching

    async def watch(self) -> None:
        """Follow the control plane until cancelled; while it is unreachable, the known state is served."""
        attempt = 0
        while True:
            try:
                async with self._link.watch() as lines:
                    async for line in lines:
                        self._hear(line)
                        attempt = 0
                msg = "it has ended the stream"
                raise ControlUnreachable(msg)
            except (ForewarnError, BadLine) as error:
                attempt += 1
                level = _log.warning if attempt == 1 else _log.debug
                level("the control plane is away", replica=self._link.url, error=str(error))
            self._link.turn()
            await asyncio.sleep(self._link.pause_s(attempt))

    def _hear(self, line: bytes) -> None:
        told = parse_line(line)
        if self.age_s is None or self.age_s > _ENABLED_S * 4:
            _log.info("following the control plane", replica=self._link.url)
        self._heard_s = uptime_s()
        if isinstance(told, HostState) and told.host != self._link.host:
            msg = f"this is the state of host {told.host!r}"
            raise BadLine(msg)
        if told is not None:
            self._told.append(told)
            self._is_changed.set()

    def _show(self, state: HostState) -> None:
        if state.dialect != self.feed.dialect:
            _log.warning("the control plane's protocol settings have changed: restart this endpoint to take them over")
        if state.position < self._state.position:
            # This replica lags behind: documents that it does not list may still exist, so none are removed.
            _log.debug("a replica is behind", replica=self._link.url)
            self.feed.publish(state.documents)
            return
        self._state = state
        self.identity.load(state.inventory)
        self.identity.is_known = True
        self.feed.reload(state.documents)
        self.on_inventory()

    # Reporting

    async def report(self) -> None:
        """Report the times of last requests to the control plane, until cancelled."""
        while True:
            await asyncio.sleep(_REPORT_S)
            try:
                await self.report_once()
            except ForewarnError as error:
                _log.debug("who asked could not be reported", error=error.message)

    async def report_once(self) -> None:
        """Report the times of last requests that changed since the previous report."""
        first = {self.identity.audience(vm.name): vm.name for vm in self.identity.vms}
        news = {key: at for key, at in self.feed.asked().items() if at != self._reported.get(key) and key in first}
        if news:
            await self._link.report({first[key]: at for key, at in news.items()})
            self._reported |= news

    # The copy on disk

    async def save(self) -> None:
        """Store each update on disk, then show it, until cancelled: anything shown survives a crash."""
        while True:
            await self._is_changed.wait()
            self._is_changed.clear()
            told, self._told = self._told, []
            if self._file is not None:
                try:
                    await asyncio.to_thread(_write, self._file, state_line(self._after(told)))
                except OSError as error:
                    _log.warning("the state file cannot be written", file=str(self._file), error=error.strerror)
            for each in told:
                if isinstance(each, HostState):
                    self._show(each)
                else:
                    self.feed.publish([each])

    def _after(self, told: Sequence[HostState | Document]) -> HostState:
        """Return the state after these updates."""
        known = self._known()
        documents = {document.audience.key: document for document in known.documents}
        for each in told:
            if isinstance(each, HostState) and each.position >= known.position:
                known = each
                keys = {document.audience.key for document in each.documents}
                documents = {key: document for key, document in documents.items() if key in keys}
            for document in each.documents if isinstance(each, HostState) else (each,):
                before = documents.get(document.audience.key)
                if before is None or _number(before) <= _number(document):
                    documents[document.audience.key] = document
        return replace(known, documents=tuple(documents[key] for key in sorted(documents)))

    def _known(self) -> HostState:
        keys = {self.identity.audience(vm.name) for vm in self.identity.vms}
        documents = (self.feed.channel(key).document for key in sorted(keys))
        return HostState(
            host=self._state.host,
            position=self._state.position,
            inventory=self._state.inventory,
            dialect=self._state.dialect,
            first_answer_delay_s=self._state.first_answer_delay_s,
            documents=tuple(document for document in documents if document is not None),
        )


def _number(document: Document) -> tuple[int, int]:
    return document.audience.epoch, document.audience.incarnation


def read_state(file: Path, host: str) -> HostState | None:
    """Return the state that an earlier process stored; None if there is none or it is damaged.

    Raises:
        ConfigError: The file belongs to another host, or cannot be read.
    """
    try:
        tighten(file)
        told = parse_line(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        msg = f"cannot read {file}: {error.strerror}"
        raise ConfigError(msg) from error
    except BadLine as error:
        _log.warning("the state file is damaged, and left out of account", file=str(file), error=str(error))
        return None
    if not isinstance(told, HostState):
        return None
    if told.host != host:
        msg = f"{file} is the state of host {told.host!r}: choose another with --state-file, or remove it"
        raise ConfigError(msg)
    return told


def nothing(host: str) -> HostState:
    """Return the state of a host before any update."""
    return HostState(host=host, inventory=Inventory(), dialect=Dialect(), first_answer_delay_s=0.0, documents=())


def _write(file: Path, content: bytes) -> None:
    """Replace the file atomically, even if the machine crashes."""
    scratch = file.with_name(f"{file.name}.new")
    descriptor = open_private(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with os.fdopen(descriptor, "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    scratch.replace(file)
