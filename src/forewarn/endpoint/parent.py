"""Service side of the metadata process: starts it, sends it updates, answers its calls, and restarts it.

Updates leave in one ordered stream. While the process does not read, only the latest document of each audience is
kept, and when too many updates wait, a full snapshot replaces them: the queue is bounded.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import subprocess
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import structlog

from forewarn.clock import uptime_s
from forewarn.core.maintenance.approval import ApprovalResult, Approver
from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.model import Scope, VirtualMachine
from forewarn.endpoint import messages
from forewarn.endpoint.pipe import Pipe
from forewarn.endpoint.quota import find_exceeded_limit
from forewarn.endpoint.request_journal import RequestJournal
from forewarn.endpoint.traffic import Traffic
from forewarn.errors import ForewarnError, ServerError
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity
from forewarn.publishing.inventory_index import InventoryDelta
from forewarn.util.tasks import cancel_tasks

__all__ = ["MetadataProcess"]

_log = structlog.get_logger("forewarn.endpoint")

_SYNC_S = 1.0
"""Maximum time for which an answer to an operator waits for the metadata process to apply the change."""

_START_S = 600.0
"""Time limit for a process to receive its whole state; a million VMs take a while on a busy machine."""

_END_S = 1.0
"""Time for the process to end, after its grace period for pending responses, before it is killed."""

_PAUSE_FIRST_S = 0.1
_PAUSE_MOST_S = 5.0
_LIVED_S = 30.0
"""Lifetime after which the pause before a restart is reset to the first one."""

# These bound the work between two chances of the service to do something else.
_TOLD_AT_ONCE = 100
_COMPARED_AT_ONCE = 2000
_WAITING_MAX = 1000
# Each is a copy of both tables of the inventory, so only a few may wait.
_INVENTORIES_MAX = 2
_CHECKS = 6
"""Number of liveness checks within `silence_max_s`.

All of them must fail. So a suspended machine does not get the process killed: that fails only one check.
"""

_QUESTIONS_MAX = 100
"""Maximum number of pending questions to a process that does not answer."""

_NOT_HANDED_ON = ("FOREWARN_", "PG", "OTEL_")
"""Prefixes of environment variables that may hold secrets: an attacker who takes over the process must find none."""

T = TypeVar("T")
Declared = tuple[dict[str, VirtualMachine], dict[str, Scope]]
_Item = dict[str, AudienceDocument] | Declared | InventoryDelta | bytes
_MakeQuestion = Callable[[int], messages.SyncRequest | messages.CounterRequest]


class MetadataProcess:
    """Handle of the service on the process that answers VMs.

    Args:
        settings: Settings sent to the process at its start.
        feed: Current documents; receives the times of last requests.
        identity: Mapping of addresses to VMs.
        enable: Callable that enables audiences; see `Authority`.
        approve: Callable that handles approvals.
        traffic: Receives the counters of the process.
        journal: Receives the requests that the process records.

    Attributes:
        connection_count: Number of open connections of VMs, as last reported.
        restarts: Number of restarts after the process ended unexpectedly.
    """

    def __init__(  # noqa: PLR0913 - the parts of the service that it serves
        self,
        settings: messages.ProcessSettings,
        *,
        feed: Feed,
        identity: Identity,
        enable: Callable[[str, str | None], Awaitable[None]],
        approve: Callable[[Sequence[str], Approver], Awaitable[ApprovalResult]],
        traffic: Traffic,
        journal: RequestJournal,
    ) -> None:
        self.connection_count = 0
        self.restarts = 0
        self._decide = approve
        self._settings = settings
        self._feed = feed
        self._identity = identity
        self._grant = enable
        self._traffic = traffic
        self._journal = journal
        self._sockets: Sequence[socket.socket] = ()
        self._started: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._pipe: Pipe | None = None
        self._queue: deque[_Item] = deque()
        self._has_queued_items = asyncio.Event()
        self._sent_inventory: Declared = ({}, {})
        self._numbers = itertools.count(1)
        self._questions: dict[int, asyncio.Future[bool]] = {}
        # By pipe: calls of a process that is gone may still run, and count for no other.
        self._calls: dict[Pipe, set[asyncio.Task[None]]] = {}
        self._refresh_lock = asyncio.Lock()
        self._is_behind = False
        self._is_ending = False
        self._batches_received = 0
        self._earlier_totals = _EarlierTotals(self._traffic)

    @property
    def pid(self) -> int | None:
        """Process id; None while there is no process."""
        return None if self._started is None else self._started[0].pid

    # Life cycle

    @asynccontextmanager
    async def start_process(self, sockets: Sequence[socket.socket]) -> AsyncIterator[None]:
        """Start a process, which takes a while to be ready, and make sure that it has ended when the block ends.

        Args:
            sockets: Bound sockets; they stay open here, so that connections wait during a restart.
        """
        self._sockets = sockets
        # Started before the service has loaded its state, so that both processes import their modules at the same time.
        self._started = self._spawn_process()
        try:
            yield
        finally:
            if self._started is not None:
                await self._end_process(*self._started, timeout_s=0.0)

    @asynccontextmanager
    async def answer_vms(self, grace_s: float) -> AsyncIterator[None]:
        """Have VMs answered until the block ends; pending responses then have `grace_s` seconds.

        Raises:
            ServerError: The process ends before it answers.
        """
        self._feed.listeners.append(self._queue_document)
        self._identity.listeners.append(self._queue_inventory)
        ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        keeping = asyncio.create_task(self._keep_running(ready))
        try:
            waited: set[asyncio.Future[Any]] = {ready, keeping}
            await asyncio.wait(waited, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                cause = "ended before it was ready" if keeping.done() else f"was not ready within {_START_S:g} s"
                raise ServerError(f"the metadata process {cause}; see the log")
            yield
        finally:
            # First, or the end of the process would count as a crash and cause a restart.
            self._is_ending = True
            # While any process holds a socket open, the kernel goes on to queue connections that no one will accept.
            for sock in self._sockets:
                sock.close()
            self._enqueue(messages.encode(messages.StopRequest(grace_s)))
            await asyncio.wait({keeping}, timeout=grace_s + _END_S)
            await cancel_tasks(keeping)
            self._feed.listeners.remove(self._queue_document)
            self._identity.listeners.remove(self._queue_inventory)

    def _spawn_process(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        # Our copy must be closed: while it is open, the pipe does not end with the process.
        with theirs:
            numbers = [theirs.fileno(), *(sock.fileno() for sock in self._sockets)]
            process = subprocess.Popen(  # noqa: S603 - this same program
                # `-P` keeps the working directory off the import path. Logs go to stderr, which the process inherits.
                [sys.executable, "-P", "-m", "forewarn.endpoint", *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if not name.startswith(_NOT_HANDED_ON)},
                pass_fds=numbers,
                process_group=0,  # signals from a terminal are for the service only
            )
        return process, ours

    async def _end_process(self, process: subprocess.Popen[bytes], ours: socket.socket, timeout_s: float) -> int:
        """Make sure that the process has ended, and return its exit status."""
        # First, so that a failure here cannot make `start_process` end the same process again.
        self._started = None
        # A process that works ends when its pipe closes; one that hangs is killed below.
        ours.close()
        try:
            return await asyncio.to_thread(process.wait, timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return await asyncio.to_thread(process.wait)

    async def _keep_running(self, ready: asyncio.Future[bool]) -> None:
        """Keep a process running, with a restart whenever it ends, until the service stops."""
        pause_s = _PAUSE_FIRST_S
        while True:
            began_s = uptime_s()
            status: int | str
            try:
                status = await self._run_one_process(ready)
            except OSError as error:
                status = error.strerror or str(error)
            except Exception:  # noqa: BLE001 - VMs must be answered in any case; the log has the trace
                _log.exception("the connection to the metadata process failed")
                status = "lost"
            # A process that was never ready would fail again, so the start of the service fails instead of retrying.
            if self._is_ending or not ready.done():
                return
            if uptime_s() - began_s > _LIVED_S:
                pause_s = _PAUSE_FIRST_S
            self.restarts += 1
            _log.error("the metadata process ended, restarting it", status=status, pause_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MOST_S)

    async def _run_one_process(self, ready: asyncio.Future[bool]) -> int:
        """Serve one process until it ends, and return its exit status."""
        process, ours = self._started = self._started or self._spawn_process()
        try:
            await self._exchange_messages(ours, ready)
        finally:
            status = await self._end_process(process, ours, _END_S)
        return status

    async def _exchange_messages(self, ours: socket.socket, ready: asyncio.Future[bool]) -> None:
        """Send a process the full state, then the changes, and handle its messages until it is gone."""
        pipe = await Pipe.from_socket(ours)
        # Nothing is awaited from here until all of it is queued, so no update gets in front of the snapshot.
        self._pipe = pipe
        self._sent_inventory = ({}, {})
        self._queue.clear()
        # The order matters: settings, full state, then the sync that makes the process accept VMs. So no VM ever gets
        # an answer from half an inventory. The settings bypass the queue, where a new snapshot replaces the full state.
        pipe.send(messages.encode(self._build_settings()))
        self._queue_snapshot()
        first = self._queue_question(messages.SyncRequest)
        first.add_done_callback(lambda answered: _signal_ready(answered, ready))
        works = self._send_queue(pipe), self._handle_messages(pipe), self._wait_until_silent(pipe, first)
        tasks = {asyncio.create_task(work) for work in works}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            # Further updates are dropped: the next process begins with a snapshot.
            self._pipe = None
            pipe.close()
            await cancel_tasks(*tasks)
            self._reset_process_state()

    async def _handle_messages(self, pipe: Pipe) -> None:
        """Handle messages of the process until it is gone."""
        while frames := await pipe.receive():
            self._batches_received += 1
            for frame in frames:
                self._handle_message(messages.decode_from_endpoint(frame), pipe)

    async def _wait_until_silent(self, pipe: Pipe, first: asyncio.Future[bool]) -> None:
        """Return when the process has sent nothing for too long; its first answer may take longer."""
        # Decoding a large inventory keeps the process silent for longer than `silence_max_s`.
        await asyncio.wait({first}, timeout=_START_S)
        failures = 0
        while failures < _CHECKS:
            # Any message is a sign of life, so this answer needs no future that waits for it.
            before = self._batches_received
            # Bypass the queue, so that a process still receiving a large inventory can answer in between.
            pipe.send(messages.encode(messages.SyncRequest(next(self._numbers))))
            await asyncio.sleep(self._settings.silence_max_s / _CHECKS)
            failures = failures + 1 if self._batches_received == before else 0
        _log.error("the metadata process does not answer, killing it", silence_max_s=self._settings.silence_max_s)

    def _build_settings(self) -> messages.EndpointSettings:
        return messages.EndpointSettings(
            process=self._settings,
            limits=self._traffic.limits,
            dialect=self._feed.dialect,
            requests_before=self._journal.newest_number,
        )

    def _reset_process_state(self) -> None:
        """Drop the state of a process that is gone: its pending questions will not be answered."""
        self._queue.clear()
        questions, self._questions = self._questions, {}
        for question in questions.values():
            if not question.done():
                # Not an exception: an operator whose change is committed must get an answer all the same.
                question.set_result(False)
        self.connection_count = 0
        self._is_behind = False
        # The next process counts from 0, so the sums so far become its base.
        self._earlier_totals = _EarlierTotals(self._traffic)

    # Updates

    def _queue_document(self, document: AudienceDocument) -> None:
        if self._pipe is None:
            return
        # Merge only into the last item, so that the stream keeps its order.
        last = self._queue[-1] if self._queue else None
        if isinstance(last, dict):
            last[document.audience.key] = document
            self._has_queued_items.set()
        else:
            self._enqueue({document.audience.key: document})

    def _queue_inventory(self, delta: InventoryDelta | None) -> None:
        if self._pipe is None:
            return
        if delta is not None and len(delta.before.vms) + len(delta.after.vms) <= _TOLD_AT_ONCE:
            self._enqueue(delta)
        elif sum(isinstance(each, tuple) for each in self._queue) >= _INVENTORIES_MAX:
            self._queue_snapshot()  # snapshots are large: replace the waiting ones
        else:
            self._enqueue(self._identity.snapshot())

    def _queue_snapshot(self) -> None:
        """Queue a full snapshot in place of the waiting updates; waiting answers and questions go behind it."""
        answers = [each for each in self._queue if isinstance(each, bytes)]
        self._queue.clear()
        self._queue.append(self._identity.snapshot())
        self._queue.append({document.audience.key: document for document in self._feed.all_documents()})
        self._queue.extend(answers)
        self._has_queued_items.set()

    def _enqueue(self, item: _Item) -> None:
        if self._pipe is None:
            return
        self._queue.append(item)
        # Answers do not count: pending calls have limits of their own, and a snapshot cannot replace an answer.
        if len(self._queue) > _WAITING_MAX and sum(not isinstance(each, bytes) for each in self._queue) > _WAITING_MAX:
            self._queue_snapshot()
        self._has_queued_items.set()

    async def _send_queue(self, pipe: Pipe) -> None:
        while True:
            while self._queue:
                item = self._queue.popleft()
                if isinstance(item, bytes):
                    pipe.send(item)
                elif isinstance(item, dict):
                    await self._send_documents(pipe, item)
                elif isinstance(item, InventoryDelta):
                    self._send_inventory_delta(pipe, item)
                else:
                    await self._send_inventory(pipe, item)
                await pipe.drain()
            # There is no await between the check for an empty queue and this, so that no item can be missed.
            self._has_queued_items.clear()
            await self._has_queued_items.wait()

    async def _send_documents(self, pipe: Pipe, documents: dict[str, AudienceDocument]) -> None:
        if len(documents) <= _TOLD_AT_ONCE:
            pipe.send(messages.encode(messages.build_document_update(documents.values())))
            return
        for part in _split_into_parts(list(documents.values()), _TOLD_AT_ONCE):
            await _send_and_yield(pipe, messages.build_document_update(part))

    async def _send_inventory(self, pipe: Pipe, declared: Declared) -> None:
        """Send what is new, changed or gone since the last declaration, yielding in between."""
        (vms_before, scopes_before), (vms, scopes) = self._sent_inventory, declared
        for names in _split_into_parts(list(vms_before), _COMPARED_AT_ONCE):
            removed = [name for name in names if name not in vms]
            if removed:
                await _send_and_yield(pipe, messages.InventoryPart(removed_vms=removed))
        for part in _split_into_parts(list(vms.items()), _COMPARED_AT_ONCE):
            changed = [messages.encode_sparse(vm) for name, vm in part if vms_before.get(name) != vm]
            for piece in _split_into_parts(changed, _TOLD_AT_ONCE):
                await _send_and_yield(pipe, messages.InventoryPart(vms=piece))
            await asyncio.sleep(0)
        for part_of_scopes in _split_into_parts(list(scopes.items()), _TOLD_AT_ONCE):
            moved = [
                messages.encode_sparse(scope) for name, scope in part_of_scopes if scopes_before.get(name) != scope
            ]
            if moved:
                await _send_and_yield(pipe, messages.InventoryPart(scopes=moved))
        gone = [name for name in scopes_before if name not in scopes]
        await _send_and_yield(pipe, messages.InventoryPart(removed_scopes=gone, is_last=True))
        # Only now: if the pipe breaks earlier, this record is dropped together with the process.
        self._sent_inventory = declared

    def _send_inventory_delta(self, pipe: Pipe, delta: InventoryDelta) -> None:
        """Send a small change at once."""
        # The record of what was sent is changed in place, so that the cost depends on the delta and not on the
        # inventory.
        before, after = delta.before, delta.after
        vms, scopes = self._sent_inventory
        for vm in before.vms:
            vms.pop(vm.name, None)
        for scope in before.scopes:
            scopes.pop(scope.name, None)
        vms.update({vm.name: vm for vm in after.vms})
        scopes.update({scope.name: scope for scope in after.scopes})
        message = messages.InventoryPart(
            vms=[messages.encode_sparse(vm) for vm in after.vms],
            scopes=[messages.encode_sparse(scope) for scope in after.scopes],
            removed_vms=[vm.name for vm in before.vms if vm.name not in vms],
            removed_scopes=[scope.name for scope in before.scopes if scope.name not in scopes],
            is_last=True,
        )
        pipe.send(messages.encode(message))

    # Messages

    def _handle_message(self, message: messages.FromEndpoint, pipe: Pipe) -> None:
        match message:
            case messages.ApproveCall():
                decide = partial(self._decide, message.event_ids, message.approver)
                self._start_call(self._handle_call(message.number, decide, pipe), pipe)
            case messages.EnableCall():
                grant = partial(self._grant, message.key, message.scope)
                self._start_call(self._handle_call(message.number, grant, pipe), pipe)
            case messages.LastRequestTimes():
                self._feed.merge_polls(message.moments)
            case messages.JournalEntries():
                self._journal.add_entries(message.requests)
            case messages.CounterReport():
                self._earlier_totals.add_to(self._traffic, message)
                self._traffic.quotas.limit_log.add_counts(message.limits_met)
                self.connection_count = message.connections
                self._complete_question(message.number)
            case messages.SyncReply():
                self._complete_question(message.number)

    def _start_call(self, work: Coroutine[Any, Any, None], pipe: Pipe) -> None:
        calls = self._calls.setdefault(pipe, set())
        # The process keeps to `calls_max` itself, unless it has been taken over.
        if len(calls) >= self._settings.calls_max:
            work.close()
            raise ConnectionError(f"the metadata process has begun more than {self._settings.calls_max} calls")
        task = asyncio.create_task(work)
        calls.add(task)
        task.add_done_callback(partial(self._forget_call, pipe))

    def _forget_call(self, pipe: Pipe, task: asyncio.Task[None]) -> None:
        calls = self._calls[pipe]
        calls.discard(task)
        if not calls:
            del self._calls[pipe]

    async def _handle_call(
        self, number: int, carry_out: Callable[[], Awaitable[ApprovalResult | None]], pipe: Pipe
    ) -> None:
        """Carry out a call and queue its answer, behind the documents published before it."""
        approval, failure = None, None
        try:
            approval = await carry_out()
        except Exception as error:  # noqa: BLE001 - the error is the VM's answer
            failure = _encode_failure(error)
        # A restarted process numbers its calls from 1 again, so it must not get answers meant for the earlier one.
        if pipe is self._pipe:
            self._enqueue(messages.encode(messages.CallResult(number, approval, failure)))

    # Questions

    def _queue_question(self, make_message: _MakeQuestion) -> asyncio.Future[bool]:
        """Queue a question; its future is False if the process ends before it answers."""
        number = next(self._numbers)
        question = self._questions[number] = asyncio.get_running_loop().create_future()
        self._enqueue(messages.encode(make_message(number)))
        return question

    def _complete_question(self, number: int) -> None:
        question = self._questions.pop(number, None)
        if question is None:
            return
        # Also for a late answer: the process has applied everything before the question.
        self._is_behind = False
        if not question.done():
            question.set_result(True)

    async def sync(self) -> bool:
        """Wait for a second at most until everything published has reached the process; return True if it has."""
        if self._is_behind and len(self._questions) >= _QUESTIONS_MAX:
            return False
        return await self._wait_for_reply(messages.SyncRequest)

    async def wait_until_settled(self) -> None:
        """Wait as `sync` does, but skip a process that did not answer in time until it has caught up.

        A restarted process answers no VM before it has the full state.
        """
        if not self._is_behind:
            await self.sync()

    async def refresh_counters(self) -> None:
        """Update the counters and the journal from the process; they stay as they are if it does not answer."""
        # One at a time: two reports would both fetch the same requests of the journal.
        async with self._refresh_lock:
            if not self._is_behind:
                after = self._journal.newest_number
                await self._wait_for_reply(lambda number: messages.CounterRequest(number, after))

    async def _wait_for_reply(self, make_message: _MakeQuestion) -> bool:
        if self._pipe is None:
            return False
        question = self._queue_question(make_message)
        # `wait` leaves the question pending after the time-out; its late answer ends `_is_behind`.
        done, _ = await asyncio.wait({question}, timeout=_SYNC_S)
        if not done:
            self._is_behind = True
        return bool(done) and question.result()


class _EarlierTotals:
    """Counters of all earlier processes."""

    def __init__(self, traffic: Traffic) -> None:
        self._fast = list(traffic.fast_path_counts)
        self._outcomes = Counter(traffic.outcomes)
        self._unknown_callers = traffic.unknown_callers
        self._connections_refused = traffic.connections_refused
        self._over_limit = Counter(traffic.over_limit)

    def add_to(self, traffic: Traffic, counted: messages.CounterReport) -> None:
        """Set the traffic's counters to the sums of these and those of the current process."""
        traffic.fast_path_counts[:] = [a + b for a, b in zip(self._fast, counted.fast, strict=True)]
        outcomes = Counter({(version, method, status): count for version, method, status, count in counted.outcomes})
        traffic.outcomes = self._outcomes + outcomes
        traffic.unknown_callers = self._unknown_callers + counted.unknown_callers
        traffic.connections_refused = self._connections_refused + counted.connections_refused
        traffic.quotas.refusals = self._over_limit + Counter(counted.over_limit)


def _signal_ready(first: asyncio.Future[bool], ready: asyncio.Future[bool]) -> None:
    if first.result() and not ready.done():
        ready.set_result(True)


def _split_into_parts(items: list[T], size: int) -> Iterator[list[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


async def _send_and_yield(pipe: Pipe, message: messages.FromService) -> None:
    """Send one of many messages, and yield."""
    pipe.send(messages.encode(message))
    await pipe.drain()
    await asyncio.sleep(0)


def _encode_failure(error: Exception) -> messages.CallFailure:
    if isinstance(error, ForewarnError):
        return messages.CallFailure(error.status, error.message, find_exceeded_limit(error))
    _log.error("a request from a VM raised an exception", exc_info=error)
    return messages.CallFailure(500, "unexpected error; see the log of the service")
