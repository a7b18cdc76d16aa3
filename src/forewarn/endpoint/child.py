"""Metadata process of `forewarn serve`: `python -m forewarn.endpoint`, started by `endpoint.parent`.

It runs the whole metadata endpoint in a separate interpreter with a separate event loop, so that no page, stream or
inventory of the service can delay a response. It receives its state from the service, passes approvals and enabling
on to it, and stores nothing. It ends when the service is gone.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import signal
import socket
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial

import uvloop

from forewarn.clock import RealClock
from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.endpoint import messages
from forewarn.endpoint.app import MetadataApp
from forewarn.endpoint.descriptors import raise_descriptor_limit
from forewarn.endpoint.fastpath import VmConnection
from forewarn.endpoint.fault_registry import FaultRegistry
from forewarn.endpoint.gated_connection import GatedConnection
from forewarn.endpoint.messages import EndpointSettings
from forewarn.endpoint.pipe import Pipe
from forewarn.endpoint.pipe_authority import PipeAuthority
from forewarn.endpoint.position_gate import PositionGate
from forewarn.endpoint.process_sockets import ProcessSockets
from forewarn.endpoint.published_position import map_published_position
from forewarn.endpoint.request_journal import RequestJournal
from forewarn.endpoint.server import MetadataServer
from forewarn.endpoint.traffic import Traffic
from forewarn.observability.logs import configure_logging
from forewarn.publishing.identity import InventoryRevision
from forewarn.util.garbage import begin_rare_collections

__all__ = ["ChildEndpoint", "run_child"]

_DESCRIPTORS_SPARE = 256
_LAST_S = 1.0
"""Time limit for the requests that end when the service has gone."""

# Each of these bounds the work between two chances to answer VMs.
_TOLD_AT_ONCE = 100
_LOOK_S = 1.0
_LOOKED_AT_ONCE = 2000


class ChildEndpoint:
    """Metadata endpoint controlled by the service, on sockets that are already bound."""

    def __init__(self, pipe: Pipe, settings: EndpointSettings, sockets: Sequence[socket.socket]) -> None:
        self._pipe = pipe
        self._settings = settings.process
        self._sockets = ProcessSockets(sockets, settings.number, settings.processes)
        clock = RealClock()
        self._authority = PipeAuthority(pipe, settings)
        self._feed, self._identity = self._authority.feed, self._authority.identity
        self._journal = RequestJournal(clock.now, settings.process.requests_kept, settings.requests_before)
        # The registry stays empty: if faults may be injected, the service answers VMs in its own process (ADR 25).
        self._traffic = Traffic(settings.limits, len(self._feed.versions), FaultRegistry(clock), self._journal or None)
        app = MetadataApp(self._authority, clock, self._traffic, settings.process.first_answer_delay_s)
        self._gate: PositionGate | None = None
        make_connection: Callable[..., VmConnection] = VmConnection
        if settings.position_descriptor is not None:
            published = map_published_position(settings.position_descriptor)
            self._gate = PositionGate(published, self._apply_message, self._confirm_position)
            make_connection = partial(GatedConnection, self._gate)
        is_current = None if self._gate is None else self._gate.is_current
        self._server = MetadataServer(app, self._traffic, self._identity, clock, make_connection, is_current)
        self._revision: InventoryRevision | None = None
        self._first_sync: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._reported_times: dict[str, datetime] = {}
        self._announced: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._feed.listeners.append(self._track_announced)

    async def run(self, frames: Sequence[bytes]) -> None:
        """Answer VMs until the service stops this process, or is gone; `frames` have arrived from it already."""
        works = self._apply_messages(frames), self._listen(), self._report_last_requests()
        tasks = {asyncio.create_task(work) for work in works}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a bug ends this process, with its trace in the log; the service starts another
        finally:
            self._server.abort()  # requests that wait for the service cannot be answered any more
            # They end with an error. If they were cancelled, each would leave a traceback in the log.
            self._authority.fail_calls()
            await self._server.wait_for_requests(_LAST_S)
            for task in (*tasks, *self._tasks):
                task.cancel()

    async def _apply_messages(self, frames: Sequence[bytes]) -> None:
        """Apply messages from the service, yielding to the VMs in between."""
        while frames or not self._pipe.is_closed:
            for frame in frames:
                message = messages.decode_from_service(frame)
                if self._gate is None:
                    self._apply_message(message)
                else:
                    self._gate.add(message)
                # A message may hold a hundred documents: answer VMs before the next one.
                if isinstance(message, messages.DocumentUpdate | messages.InventoryPart):
                    await asyncio.sleep(0)
            frames = await self._pipe.receive()

    def _apply_message(self, message: messages.FromService) -> None:
        match message:
            case messages.CallResult():
                self._authority.complete_call(message)
            case messages.DocumentUpdate():
                self._feed.publish_documents(message.documents)
            case messages.InventoryPart():
                self._apply_inventory_part(message)
            case messages.SyncRequest():
                if self._first_sync.done():
                    self._pipe.send(messages.encode(messages.SyncReply(message.number)))
                else:
                    self._first_sync.set_result(message.number)
            case messages.CounterRequest():
                # In a task, since it waits for the service to read, and documents must not wait behind it.
                self._start_task(self._send_counters(message))
            case messages.SocketAssignment():
                self._start_task(self._sockets.accept_for(message.processes, self._server))
            case messages.StopRequest():
                # In a task, since requests under way may still need answers of the service.
                self._start_task(self._stop_server(message.grace_s))
            case _:
                pass  # settings, which are applied at the start, and positions, which the gate reads

    def _confirm_position(self, position: int) -> None:
        self._pipe.send(messages.encode(messages.PositionReceived(position)))

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self) -> None:
        """Accept VMs once the first sync says that the whole state has arrived, and go on until cancelled."""
        number = await self._first_sync
        begin_rare_collections()
        await self._server.start(self._sockets.own)
        self._pipe.send(messages.encode(messages.SyncReply(number)))
        await asyncio.Event().wait()

    def _apply_inventory_part(self, part: messages.InventoryPart) -> None:
        if part.is_last and self._revision is None:
            self._apply_inventory_delta(part)
            return
        revision = self._revision = self._revision or self._identity.begin_revision()
        for name in part.removed_vms:
            revision.remove_vm(name)
        for vm in part.vms:
            revision.put_vm(vm)
        for name in part.removed_scopes:
            revision.remove_scope(name)
        for scope in part.scopes:
            revision.put_scope(scope)
        if part.is_last:
            self._identity.apply_revision(revision)
            self._revision = None

    def _apply_inventory_delta(self, part: messages.InventoryPart) -> None:
        """Apply a change that came in one part, at a cost proportional to the change."""
        find_vm, find_scope = self._identity.find_declared, self._identity.find_scope
        vms = (find_vm(name) for name in (*part.removed_vms, *(vm.name for vm in part.vms)))
        scopes = (find_scope(name) for name in (*part.removed_scopes, *(scope.name for scope in part.scopes)))
        before = Inventory(
            scopes=tuple(scope for scope in scopes if scope is not None),
            vms=tuple(found[0] for found in vms if found is not None),
        )
        self._identity.replace_part(before, Inventory(scopes=tuple(part.scopes), vms=tuple(part.vms)))

    async def _stop_server(self, grace_s: float) -> None:
        self._sockets.close()
        await self._server.stop(grace_s)
        # After the last response, so that no request is missing; the service stores these times before it ends (R69).
        await self._send_last_requests(self._feed.last_polls_in_parts(_LOOKED_AT_ONCE))
        self._pipe.close()

    # Last requests

    def _track_announced(self, document: AudienceDocument) -> None:
        if document.items:
            self._announced.add(document.audience.key)
        else:
            self._announced.discard(document.audience.key)

    async def _report_last_requests(self) -> None:
        """Report last requests: every second for audiences with events, every `report_s` for all."""
        left_s = self._settings.report_s
        while True:
            pause_s = min(_LOOK_S, self._settings.report_s)
            await asyncio.sleep(pause_s)
            left_s -= pause_s
            if left_s > 0:
                parts: Iterable[dict[str, datetime]] = self._collect_announced_polls()
            else:
                left_s = self._settings.report_s
                parts = self._feed.last_polls_in_parts(_LOOKED_AT_ONCE)
            await self._send_last_requests(parts)

    def _collect_announced_polls(self) -> Iterator[dict[str, datetime]]:
        """Yield the times of the last requests of audiences with events, in parts."""
        keys = iter(list(self._announced))
        while part := list(itertools.islice(keys, _LOOKED_AT_ONCE)):
            found = ((key, self._feed.last_polled_at(key)) for key in part)
            yield {key: at for key, at in found if at is not None}

    async def _send_last_requests(self, parts: Iterable[dict[str, datetime]]) -> None:
        """Send the changed times. If the service reads slowly this waits, since only the latest time matters."""
        for part in parts:
            news = {key: at for key, at in part.items() if self._reported_times.get(key) != at}
            if news:
                await self._pipe.drain()
                self._pipe.send(messages.encode(messages.LastRequestTimes(news)))
                self._reported_times |= news
            await asyncio.sleep(0)

    # Counters

    async def _send_counters(self, request: messages.CounterRequest) -> None:
        requests = self._journal.list_entries_after(request.requests_after)
        for start in range(0, len(requests), _TOLD_AT_ONCE):
            await self._pipe.drain()
            self._pipe.send(messages.encode(messages.JournalEntries(requests[start : start + _TOLD_AT_ONCE])))
            await asyncio.sleep(0)
        traffic = self._traffic
        # Last, because its arrival ends the wait of the service, which also expects the entries above.
        counted = messages.CounterReport(
            number=request.number,
            fast=traffic.fast_path_counts,
            outcomes=[(*key, count) for key, count in traffic.outcomes.items()],
            unknown_callers=traffic.unknown_callers,
            connections_refused=traffic.connections_refused,
            connections=self._server.connection_count,
            over_limit=dict(traffic.over_limit),
            limits_met=traffic.quotas.limit_log.take_counts(),
        )
        self._pipe.send(messages.encode(counted))


async def _run_over_pipe(channel: socket.socket, sockets: Sequence[socket.socket]) -> None:
    pipe = await Pipe.from_socket(channel)
    frames = await pipe.receive()
    if not frames:
        return  # the service ended before it sent the settings
    begin = messages.decode_from_service(frames[0])
    assert isinstance(begin, EndpointSettings)  # noqa: S101 - always the first message
    # Sockets of other processes are copied while this process accepts in their place.
    raise_descriptor_limit(begin.limits.connections_max + _DESCRIPTORS_SPARE + 2 * len(sockets))
    await ChildEndpoint(pipe, begin, sockets).run(frames[1:])


def run_child(arguments: Sequence[str]) -> None:
    """Answer VMs until the service ends or stops this process.

    Args:
        arguments: File descriptors: the pipe, then the sockets to listen on.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # terminals and inits signal every process; the service ends this one
    channel, *listening = (socket.socket(fileno=int(number)) for number in arguments)
    configure_logging()
    gc.disable()  # until listening starts
    # These mean that the service has gone, which is the regular reason to end.
    with suppress(BrokenPipeError, ConnectionError):
        uvloop.run(_run_over_pipe(channel, listening))
