"""State of a host's endpoint: received from the control plane, stored on disk, served while it is unreachable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import structlog

from forewarn.clock import Clock, uptime_s
from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.approval import ApprovalResult, Approver
from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.errors import ConfigError, ControlUnreachable, ForewarnError
from forewarn.host.control_plane_client import ControlPlaneClient
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity
from forewarn.util.failpoint import FailPoint, reach_failpoint
from forewarn.util.fair_share import FairSemaphore, QueueLimits
from forewarn.util.secrets import restrict_to_owner
from forewarn.wire.hostfeed import BadFeedLine, HostFeedState, encode_state_line, parse_line
from forewarn.wire.imds import Dialect

__all__ = ["RemoteAuthority", "build_empty_state", "read_state"]

_log = structlog.get_logger("forewarn.host")

_REPORT_S = 10.0
_ENABLED_S = 5.0
_APPROVALS_MAX = 64
"""Maximum number of concurrent approval requests to the control plane."""

_PENDING_MAX = 10_000
"""Maximum number of updates that wait for the disk."""


class RemoteAuthority:
    """Authority of an endpoint that is backed by a remote control plane.

    Args:
        control_plane: Connection to the control plane.
        state: State known at the start of this process.
        clock: Service clock.
        save: Stores the state, encoded, so that it survives a crash; may raise OSError. None if it is not stored.

    Attributes:
        feed: Current documents.
        identity: Mapping of addresses to VMs.
        on_inventory: Callable called when the VMs may have changed.
    """

    def __init__(
        self,
        control_plane: ControlPlaneClient,
        state: HostFeedState,
        clock: Clock,
        save: Callable[[bytes], None] | None = None,
    ) -> None:
        self.feed = Feed(state.dialect)
        self.identity = Identity(self.feed)
        self.on_inventory: Callable[[], None] = lambda: None
        self._state = state
        self._control_plane = control_plane
        self._clock = clock
        self._save = save
        self._last_line_s: float | None = None
        self._is_changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._pending_updates: list[HostFeedState | AudienceDocument] = []
        self._reported_times: dict[str, datetime] = {}
        self._slots = FairSemaphore(_APPROVALS_MAX, QueueLimits())
        self._apply_state(state)
        # After `_apply_state`, which sets it: without a state file, nothing is known yet.
        self.identity.is_known = state != build_empty_state(state.host)

    @property
    def age_s(self) -> float | None:
        """Seconds since the last line from the control plane; None if there was none since this process began."""
        return None if self._last_line_s is None else uptime_s() - self._last_line_s

    # Requests of VMs

    async def enable(self, key: str, scope: str | None) -> None:  # noqa: ARG002 - the control plane knows the scope
        """Have an audience enabled; return when its document has arrived.

        Raises:
            ControlUnreachable: No replica gave a usable answer, or the document did not arrive in time.
            ControlRefused: The control plane refuses this host or this VM.
        """
        channel = self.feed.channel(key)
        name = next((vm.name for vm in self.identity.vms if self.identity.get_audience_key(vm.name) == key), None)
        # The VM has just been removed, so its request will be refused anyway.
        if name is None:
            return
        # The control plane enables an audience when the first request of one of its VMs is reported.
        await self._control_plane.report_requests({name: self._clock.now()})
        waiter = channel.add_waiter()
        try:
            async with asyncio.timeout(_ENABLED_S):
                while not channel.is_enabled:
                    channel.remove_waiter(waiter)
                    waiter = channel.add_waiter()
                    await waiter
        except TimeoutError as error:
            raise ControlUnreachable("the control plane did not send the document of a VM that it enabled") from error
        finally:
            channel.remove_waiter(waiter)

    async def approve(self, event_ids: Sequence[str], approver: Approver) -> ApprovalResult:
        """Pass an approval on; all VMs have equal shares of the connection.

        Raises:
            LimitExceeded: Too many approvals of this VM are waiting, here or at the control plane.
            StoreUnavailable: Too many approvals are waiting.
            ControlUnreachable: The outcome of the approval is unknown.
        """
        async with self._slots.hold_slot(approver.vm or approver.actor, max(1, len(event_ids))):
            result = await self._control_plane.approve(event_ids, approver)
            reach_failpoint(FailPoint.APPROVAL_FORWARDED)
            return result

    # Watching

    async def watch(self) -> None:
        """Follow the control plane until cancelled; while it is unreachable, the known state is served."""
        attempt = 0
        while True:
            try:
                async with self._control_plane.open_watch() as lines:
                    async for line in lines:
                        self._receive_line(line)
                        # Only a line shows that the replica works: a connection that ends at once must not reset the
                        # pause.
                        attempt = 0
                        # Not read on while a disk hangs: what waits here has no limit but this.
                        await self._wait_for_room()
                raise ControlUnreachable("the stream has ended")
            except (ForewarnError, BadFeedLine) as error:
                attempt += 1
                # One line in the log per outage, however long it lasts.
                level = _log.warning if attempt == 1 else _log.debug
                level("the control plane is unreachable", replica=self._control_plane.url, error=str(error))
            self._control_plane.switch_replica()
            await asyncio.sleep(self._control_plane.compute_pause_s(attempt))

    def _receive_line(self, line: bytes) -> None:
        update = parse_line(line)
        if self.age_s is None or self.age_s > _ENABLED_S * 4:
            _log.info("following the control plane", replica=self._control_plane.url)
        self._last_line_s = uptime_s()
        if isinstance(update, HostFeedState) and update.host != self._control_plane.host:
            raise BadFeedLine(f"received the state of another host, {update.host!r}")
        if update is not None:
            self._pending_updates.append(update)
            self._is_changed.set()

    async def _wait_for_room(self) -> None:
        while len(self._pending_updates) >= _PENDING_MAX:
            self._has_room.clear()
            await self._has_room.wait()

    def _apply_state(self, state: HostFeedState) -> None:
        if state.dialect != self.feed.dialect:
            _log.warning("the control plane's protocol settings have changed: restart this endpoint to apply them")
        if state.position < self._state.position:
            # This replica lags behind: documents that it does not list may still exist, so none are removed.
            # A database restored from a backup looks the same; then the state file has to be removed (ADR 14).
            _log.debug("a replica is behind", replica=self._control_plane.url)
            self.feed.publish_documents(state.documents)
            return
        self._state = state
        self.identity.load_inventory(state.inventory)
        self.identity.is_known = True
        self.feed.replace_documents(state.documents)
        self.on_inventory()

    # Reporting

    async def report_periodically(self) -> None:
        """Report the times of last requests to the control plane, until cancelled."""
        while True:
            await asyncio.sleep(_REPORT_S)
            try:
                await self.report_once()
            except ForewarnError as error:
                _log.debug("cannot report the last requests of VMs", error=error.message)

    async def report_once(self) -> None:
        """Report the times of last requests that changed since the previous report."""
        # The control plane wants VM names. Any VM of an audience can represent it.
        first = {self.identity.get_audience_key(vm.name): vm.name for vm in self.identity.vms}
        news = {
            key: at
            for key, at in self.feed.last_polls().items()
            if at != self._reported_times.get(key) and key in first
        }
        if news:
            await self._control_plane.report_requests({first[key]: at for key, at in news.items()})
            self._reported_times |= news

    # The copy on disk

    async def save_updates(self) -> None:
        """Store each update on disk, then show it, until cancelled: anything shown survives a crash."""
        while True:
            await self._is_changed.wait()
            self._is_changed.clear()
            # Updates that arrive during the write are left for the next round; they set the event again.
            updates, self._pending_updates = self._pending_updates, []
            self._has_room.set()
            if self._save is not None:
                try:
                    await asyncio.to_thread(self._save, encode_state_line(self._merge_updates(updates)))
                except OSError as error:
                    # Go on without a copy: it is better to serve new events than to be able to serve them after a
                    # crash.
                    _log.warning("cannot write the state file", file=error.filename, error=error.strerror)
            reach_failpoint(FailPoint.STATE_SAVED)
            for each in updates:
                if isinstance(each, HostFeedState):
                    self._apply_state(each)
                else:
                    self.feed.publish_documents([each])

    def _merge_updates(self, updates: Sequence[HostFeedState | AudienceDocument]) -> HostFeedState:
        """Return the state after these updates."""
        known = self._build_current_state()
        documents = {document.audience.key: document for document in known.documents}
        for each in updates:
            # A lagging replica may send an older state. It must not bring back VMs, but may have documents that are
            # newer.
            if isinstance(each, HostFeedState) and each.position >= known.position:
                known = each
                keys = {document.audience.key for document in each.documents}
                documents = {key: document for key, document in documents.items() if key in keys}
            for document in each.documents if isinstance(each, HostFeedState) else (each,):
                before = documents.get(document.audience.key)
                if before is None or _get_version(before) <= _get_version(document):
                    documents[document.audience.key] = document
        return replace(known, documents=tuple(documents[key] for key in sorted(documents)))

    def _build_current_state(self) -> HostFeedState:
        keys = {self.identity.get_audience_key(vm.name) for vm in self.identity.vms}
        documents = (self.feed.find_document(key) for key in sorted(keys))
        return replace(self._state, documents=tuple(document for document in documents if document is not None))


def _get_version(document: AudienceDocument) -> tuple[int, int]:
    return document.audience.epoch, document.audience.incarnation


def read_state(file: Path, host: str) -> HostFeedState | None:
    """Return the state that an earlier process stored; None if there is none or it is damaged.

    Raises:
        ConfigError: The file belongs to another host, or cannot be read.
    """
    try:
        restrict_to_owner(file)
        state = parse_line(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except BadFeedLine as error:
        _log.warning("the state file is damaged, ignoring it", file=str(file), error=str(error))
        return None
    if not isinstance(state, HostFeedState):
        return None
    if state.host != host:
        raise ConfigError(f"{file} belongs to host {state.host!r}: choose another file with --state-file, or remove it")
    return state


def build_empty_state(host: str) -> HostFeedState:
    """Return the state of a host before any update."""
    return HostFeedState(host=host, inventory=Inventory(), dialect=Dialect(), first_answer_delay_s=0.0, documents=())
