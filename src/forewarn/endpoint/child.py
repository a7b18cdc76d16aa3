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
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime

import uvloop

from forewarn.clock import RealClock
from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.approval import ApprovalResult, Approver
from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.endpoint import messages
from forewarn.endpoint.app import MetadataApp
from forewarn.endpoint.descriptors import raise_descriptor_limit
from forewarn.endpoint.fault_registry import FaultRegistry
from forewarn.endpoint.messages import EndpointSettings
from forewarn.endpoint.pipe import Pipe
from forewarn.endpoint.request_journal import RequestJournal
from forewarn.endpoint.server import MetadataServer
from forewarn.endpoint.traffic import Traffic
from forewarn.errors import ControlUnreachable, ForewarnError, LimitExceeded
from forewarn.observability.logs import configure_logging
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity, InventoryRevision
from forewarn.util.garbage import begin_rare_collections

__all__ = ["ChildEndpoint", "PipeAuthority", "run_child"]

_DESCRIPTORS_SPARE = 256
_ANSWER_S = 30.0
"""Time limit for the service's answer; the VM then gets an error, although the request may have been carried out."""

_LAST_S = 1.0
"""Time limit for the requests that end when the service has gone."""

# Bounds what waits while the service does not read; one more call gets 503 (ADR 25).
_UNSENT_BYTES_MAX = 8 << 20
# Each of these bounds the work between two chances to answer VMs.
_TOLD_AT_ONCE = 100
_LOOK_S = 1.0
_LOOKED_AT_ONCE = 2000


class PipeAuthority:
    """Authority at the other end of the pipe.

    Pending calls are limited in number, per VM, and in bytes: a call over a limit is refused, and the VM gets 503.
    """

    def __init__(self, pipe: Pipe, settings: EndpointSettings) -> None:
        self.feed = Feed(settings.dialect)
        self.identity = Identity(self.feed, settings.process.any_caller_is)
        self._pipe = pipe
        self._settings = settings.process
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[ApprovalResult | None]] = {}
        self._by_vm: Counter[str] = Counter()
        self._enabling: dict[str, asyncio.Future[ApprovalResult | None]] = {}

    async def enable(self, key: str, scope: str | None) -> None:
        """Have an audience enabled; concurrent requests for the same audience share a call.

        Raises:
            ControlUnreachable: Too many calls are pending, or there is no answer.
            ForewarnError: The service reported an error.
        """
        # The app shares calls, too, but only until `_ANSWER_S`; a later retry joins the call that is still pending.
        call = self._enabling.get(key)
        if call is None:
            number, call = self._register_call()
            self._enabling[key] = call
            call.add_done_callback(lambda _: self._enabling.pop(key, None))
            self._pipe.send(messages.encode(messages.EnableCall(number, key, scope)))
        await self._wait_for_result(call)

    async def approve(self, event_ids: Sequence[str], approver: Approver) -> ApprovalResult:
        """Pass an approval on; it is on disk when this returns.

        Raises:
            ControlUnreachable: Too many calls are pending, or there is no answer.
            ForewarnError: The service reported an error.
        """
        vm = approver.vm or ""
        # One VM must not use up the calls of all VMs.
        if self._by_vm[vm] >= self._settings.calls_per_vm_max:
            msg = f"vm {vm!r} has {self._by_vm[vm]} pending approvals; retry later (approvals_at_work_per_vm_max)"
            raise ControlUnreachable(msg, limit="approvals_at_work_per_vm_max")
        number, call = self._register_call()
        self._by_vm[vm] += 1
        call.add_done_callback(lambda _: self._uncount_call(vm))
        self._pipe.send(messages.encode(messages.ApproveCall(number, tuple(event_ids), approver)))
        approval = await self._wait_for_result(call)
        assert approval is not None  # noqa: S101 - an approval is answered with one, or fails
        return approval

    def complete_call(self, answer: messages.CallResult) -> None:
        """Complete the call that waits for this answer."""
        call = self._calls.pop(answer.number, None)
        if call is None or call.done():
            return
        if answer.failure is None:
            call.set_result(answer.approval)
        else:
            call.set_exception(_decode_failure(answer.failure))
            call.exception()  # retrieve it, since no one may be waiting any more

    def fail_calls(self) -> None:
        """Fail all pending calls: the service has gone."""
        for call in list(self._calls.values()):
            if not call.done():
                call.set_exception(ControlUnreachable("the service has ended"))
                call.exception()  # as above

    def _register_call(self) -> tuple[int, asyncio.Future[ApprovalResult | None]]:
        if len(self._calls) >= self._settings.calls_max or self._pipe.unsent_bytes > _UNSENT_BYTES_MAX:
            msg = f"the service already has {len(self._calls)} pending requests; retry later (commands_max)"
            raise ControlUnreachable(msg, limit="commands_max")
        number = next(self._numbers)
        call = self._calls[number] = asyncio.get_running_loop().create_future()
        return number, call

    async def _wait_for_result(self, call: asyncio.Future[ApprovalResult | None]) -> ApprovalResult | None:
        """Return the result of a call. The call stays pending until it is answered, even if no one waits for it."""
        # `wait` leaves the call running at the time-out; `wait_for` would cancel it for every other waiter.
        done, _ = await asyncio.wait({call}, timeout=_ANSWER_S)
        if not done:
            raise ControlUnreachable(f"the service has not answered within {_ANSWER_S:g} s")
        return call.result()

    def _uncount_call(self, vm: str) -> None:
        self._by_vm[vm] -= 1
        if not self._by_vm[vm]:
            del self._by_vm[vm]


class _ServiceFailure(ForewarnError):
    """Error reported by the service."""

    def __init__(self, failure: messages.CallFailure) -> None:
        super().__init__(failure.message, **({"limit": failure.limit} if failure.limit else {}))
        self.status = failure.status  # type: ignore[misc] # differs by instance


def _decode_failure(failure: messages.CallFailure) -> ForewarnError:
    if failure.limit and failure.status == LimitExceeded.status:
        return LimitExceeded(failure.message, limit=failure.limit)
    return _ServiceFailure(failure)


class ChildEndpoint:
    """Metadata endpoint controlled by the service, on sockets that are already bound."""

    def __init__(self, pipe: Pipe, settings: EndpointSettings, sockets: Sequence[socket.socket]) -> None:
        self._pipe = pipe
        self._settings = settings.process
        self._sockets = sockets
        clock = RealClock()
        self._authority = PipeAuthority(pipe, settings)
        self._feed, self._identity = self._authority.feed, self._authority.identity
        self._journal = RequestJournal(clock.now, settings.process.requests_kept, settings.requests_before)
        # The registry stays empty: if faults may be injected, the service answers VMs in its own process (ADR 25).
        self._traffic = Traffic(settings.limits, len(self._feed.versions), FaultRegistry(clock), self._journal or None)
        app = MetadataApp(self._authority, clock, self._traffic, settings.process.first_answer_delay_s)
        self._server = MetadataServer(app, self._traffic, self._identity, clock)
        self._revision: InventoryRevision | None = None
        self._is_listening = False
        self._reported_times: dict[str, datetime] = {}
        self._announced: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._feed.listeners.append(self._track_announced)

    async def run(self, frames: Sequence[bytes]) -> None:
        """Answer VMs until the service stops this process, or is gone; `frames` have arrived from it already."""
        tasks = {asyncio.create_task(self._apply_messages(frames)), asyncio.create_task(self._report_last_requests())}
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
                await self._apply_message(messages.decode_from_service(frame))
            frames = await self._pipe.receive()

    async def _apply_message(self, message: messages.FromService) -> None:
        match message:
            case messages.CallResult():
                self._authority.complete_call(message)
            case messages.DocumentUpdate():
                self._feed.publish_documents(message.documents)
                # A message may hold a hundred documents: answer VMs before the next one.
                await asyncio.sleep(0)
            case messages.InventoryPart():
                self._apply_inventory_part(message)
                await asyncio.sleep(0)
            case messages.SyncRequest():
                if not self._is_listening:
                    await self._start_listening()
                self._pipe.send(messages.encode(messages.SyncReply(message.number)))
            case messages.CounterRequest():
                # In a task, since it waits for the service to read, and documents must not wait behind it.
                self._start_task(self._send_counters(message))
            case messages.StopRequest():
                # In a task, since requests under way may still need answers of the service.
                self._start_task(self._stop_server(message.grace_s))
            case EndpointSettings():
                pass  # applied at start

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start_listening(self) -> None:
        self._is_listening = True
        begin_rare_collections()
        await self._server.start(self._sockets)

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
    raise_descriptor_limit(begin.limits.connections_max + _DESCRIPTORS_SPARE)
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
