"""Service side of the metadata processes: gives each its share of the work, and publishes updates in all of them.

With a single process, updates take effect as they arrive. With several, they are numbered, and the published position
says up to which of them all processes show (`publication.py`, `position_gate.py`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import datetime

import structlog

from forewarn.core.maintenance.approval import ApprovalResult, Approver
from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.endpoint import messages
from forewarn.endpoint.journal_merge import JournalMerge
from forewarn.endpoint.metadata_process import MetadataProcess, ProcessPorts
from forewarn.endpoint.publication import Publication
from forewarn.endpoint.published_position import PublishedPosition
from forewarn.endpoint.request_journal import RequestJournal
from forewarn.endpoint.socket_assignment import assign_sockets
from forewarn.endpoint.traffic import Traffic
from forewarn.endpoint.traffic_totals import TrafficTotals
from forewarn.endpoint.update_queue import UpdateQueue
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity
from forewarn.publishing.inventory_index import InventoryDelta

__all__ = ["MetadataProcesses"]

_log = structlog.get_logger("forewarn.endpoint")

_RECEIVE_S = 1.0
"""Time limit for all processes to receive an update; a process that is late then makes its own callers wait."""


class MetadataProcesses:
    """Handle of the service on the processes that answer VMs.

    Args:
        settings: Settings sent to each process at its start.
        count: Number of processes.
        feed: Current documents; receives the times of last requests.
        identity: Mapping of addresses to VMs.
        enable: Callable that enables audiences; see `Authority`.
        approve: Callable that handles approvals.
        traffic: Receives the counters of the processes; its limits hold for all of them together.
        journal: Receives the requests that the processes record.
        now: Clock of the service.
    """

    def __init__(  # noqa: PLR0913 - the parts of the service that it serves
        self,
        settings: messages.ProcessSettings,
        *,
        count: int = 1,
        feed: Feed,
        identity: Identity,
        enable: Callable[[str, str | None], Awaitable[None]],
        approve: Callable[[Sequence[str], Approver], Awaitable[ApprovalResult]],
        traffic: Traffic,
        journal: RequestJournal,
        now: Callable[[], datetime],
    ) -> None:
        self._settings = replace(settings, calls_max=max(settings.calls_max // count, 1))
        self._count = count
        self._feed = feed
        self._identity = identity
        self._traffic = traffic
        self._limits = traffic.limits.divide(count)
        self._journal = journal
        self._now = now
        self._totals = TrafficTotals(traffic)
        self._merge = JournalMerge(journal, settings.requests_kept * count)
        self._refresh_lock = asyncio.Lock()
        self._publication = Publication()
        self._position: PublishedPosition | None = None
        self._published_before = self._publication.published
        self._wait: asyncio.TimerHandle | None = None
        self._answering: set[int] = set()
        self._silent: set[int] = set()
        self._assigned: dict[int, tuple[int, ...]] = {}
        ports = ProcessPorts(
            enable=enable,
            approve=approve,
            make_settings=self._make_settings,
            find_position=lambda: self._publication.queued if self.has_several else 0,
            on_answering=self._note_answering,
            on_silent=self._note_silent,
            on_received=self._note_received,
            on_counters=self._totals.count,
            on_requests=self._merge.add,
        )
        self._processes = [
            MetadataProcess(number, self._settings, ports, feed, UpdateQueue(feed, identity)) for number in range(count)
        ]

    @property
    def has_several(self) -> bool:
        """True if there is more than one process."""
        return self._count > 1

    @property
    def connection_count(self) -> int:
        """Number of open connections of VMs, as last reported."""
        return self._totals.connections

    @property
    def restarts(self) -> int:
        """Number of restarts after a process ended unexpectedly."""
        return sum(process.restarts for process in self._processes)

    # Life cycle

    @asynccontextmanager
    async def start_processes(self, sockets: Sequence[Sequence[socket.socket]]) -> AsyncIterator[None]:
        """Start the processes, which take a while to be ready, and make sure that all have ended when the block ends.

        Args:
            sockets: Bound sockets, for each process its own; they stay open here, so that connections wait during a
                restart.
        """
        async with AsyncExitStack() as stack:
            descriptors = []
            if self.has_several:
                self._position = PublishedPosition()
                stack.callback(self._close_position, self._position)
                self._position.set(self._publication.published)
                descriptors.append(self._position.descriptor)
            # Each inherits all of them, since it may have to accept connections in place of another one.
            inherited = [sock for own in sockets for sock in own]
            for process in self._processes:
                await stack.enter_async_context(process.start(inherited, descriptors))
            yield

    @asynccontextmanager
    async def answer_vms(self, grace_s: float) -> AsyncIterator[None]:
        """Have VMs answered until the block ends; pending responses then have `grace_s` seconds.

        Raises:
            ServerError: A process ends before it answers.
        """
        self._feed.listeners.append(self._publish_document)
        self._identity.listeners.append(self._publish_inventory)
        try:
            async with AsyncExitStack() as stack:
                answering = [process.answer_vms(grace_s) for process in self._processes]
                # All start at the same time, and all end at the same time.
                begun = await asyncio.gather(*(each.__aenter__() for each in answering), return_exceptions=True)
                for each, result in zip(answering, begun, strict=True):
                    if not isinstance(result, BaseException):
                        stack.push_async_exit(each)
                stack.callback(self._begin_end, grace_s)
                for result in begun:
                    if isinstance(result, BaseException):
                        raise result
                yield
        finally:
            if self._wait is not None:
                self._wait.cancel()
            self._feed.listeners.remove(self._publish_document)
            self._identity.listeners.remove(self._publish_inventory)

    def _begin_end(self, grace_s: float) -> None:
        for process in self._processes:
            process.begin_end(grace_s)

    def _close_position(self, position: PublishedPosition) -> None:
        self._position = None
        position.close()

    def _make_settings(self, number: int) -> messages.EndpointSettings:
        before = self._journal.newest_number
        self._merge.begin(number, before)
        return messages.EndpointSettings(
            process=self._settings,
            limits=self._limits,
            dialect=self._feed.dialect,
            requests_before=before,
            number=number,
            processes=self._count,
            position_descriptor=None if self._position is None else self._position.descriptor,
        )

    # Updates

    def _publish_document(self, document: AudienceDocument) -> None:
        position = self._number_update()
        for process in self._processes:
            process.queue.add_document(document, position)

    def _publish_inventory(self, delta: InventoryDelta | None) -> None:
        position = self._number_update()
        for process in self._processes:
            process.queue.add_inventory(delta, position)

    def _number_update(self) -> int:
        """Return the position of a new update; 0 for a single process, which shows updates as they arrive."""
        if not self.has_several:
            return 0
        position = self._publication.queue()
        self._publish()
        return position

    def _note_received(self, number: int, position: int) -> None:
        was_late = number in self._publication.late
        self._publication.confirm(number, position)
        self._publish()
        if was_late and number not in self._publication.late:
            self._assign_sockets()

    def _note_answering(self, number: int, is_answering: bool) -> None:  # noqa: FBT001 - a callback
        if is_answering:
            self._answering.add(number)
            self._publication.join(number, self._processes[number].received)
        else:
            self._answering.discard(number)
            self._silent.discard(number)
            self._assigned.pop(number, None)
            self._publication.leave(number)
            self._totals.end(number)
        self._publish()
        self._assign_sockets()

    def _note_silent(self, number: int, is_silent: bool) -> None:  # noqa: FBT001 - a callback
        if is_silent:
            self._silent.add(number)
        else:
            self._silent.discard(number)
        self._assign_sockets()

    def _publish(self) -> None:
        """Make known what is published by now, and limit the wait for the rest."""
        if self._position is None:
            return
        publication = self._publication
        if self._published_before != publication.published:
            self._published_before = publication.published
            self._position.set(publication.published)
            for process in self._processes:
                process.hint_published()
        if publication.published < publication.queued and self._wait is None:
            loop = asyncio.get_running_loop()
            self._wait = loop.call_later(_RECEIVE_S, self._end_wait, publication.queued)

    def _end_wait(self, position: int) -> None:
        self._wait = None
        late = self._publication.end_wait(position)
        if late:
            _log.warning("metadata processes are late, their callers wait", processes=late)
            self._assign_sockets()
        self._publish()

    def _assign_sockets(self) -> None:
        """Have the connections of processes that do not answer accepted by others."""
        working = self._answering - self._publication.late - self._silent
        assigned = assign_sockets(self._count, working)
        for number, others in assigned.items():
            if self._assigned.get(number, ()) != others:
                self._assigned[number] = others
                self._processes[number].send_at_once(messages.SocketAssignment(list(others)))

    # Questions

    async def sync(self) -> bool:
        """Wait for a second at most until every process shows everything queued; return True if all do."""
        return all(await asyncio.gather(*(process.sync() for process in self._processes)))

    async def wait_until_settled(self) -> None:
        """Wait as `sync` does, but skip processes that did not answer in time until they have caught up."""
        await asyncio.gather(*(process.wait_until_settled() for process in self._processes))

    async def refresh_counters(self) -> None:
        """Update the counters and the journal from the processes, except from those that do not answer in time."""
        # One at a time: two reports would both fetch the same requests of the journal.
        async with self._refresh_lock:
            asked_at = self._now()
            await asyncio.gather(
                *(process.fetch_counters(self._merge.get_newest(n)) for n, process in enumerate(self._processes))
            )
            self._merge.merge(asked_at)
