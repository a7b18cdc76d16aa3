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
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from forewarn.clock import uptime_s
from forewarn.core.approval import Approval, Approver
from forewarn.core.decision import Document
from forewarn.core.model import Scope, VirtualMachine
from forewarn.endpoint import messages
from forewarn.endpoint.budget import limit_of
from forewarn.endpoint.pipe import Pipe
from forewarn.endpoint.request_journal import Journal
from forewarn.endpoint.traffic import Traffic
from forewarn.errors import ForewarnError, ServerError
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity, InventoryDelta

__all__ = ["MetadataProcess", "ProcessTerms"]

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

_TOLD_AT_ONCE = 100
_COMPARED_AT_ONCE = 2000
_WAITING_MAX = 1000
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
_Item = dict[str, Document] | Declared | InventoryDelta | bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTerms:
    """Settings of the metadata process; see `messages.Begin`.

    Attributes:
        silence_max_s: Time without a message, in seconds, after which the process is killed and replaced.
    """

    any_caller_is: str = ""
    first_answer_delay_s: float = 0.0
    report_s: float = 5.0
    requests_kept: int = 1000
    calls_max: int = 10_000
    calls_per_vm_max: int = 100
    silence_max_s: float = 60.0


class MetadataProcess:
    """Handle of the service on the process that answers VMs.

    Args:
        terms: Settings sent to the process at its start.
        feed: Current documents; receives the times of last requests.
        identity: Mapping of addresses to VMs.
        enable: Callable that enables audiences; see `Authority`.
        approve: Callable that handles approvals.
        traffic: Receives the counters of the process.
        journal: Receives the requests that the process records.

    Attributes:
        connections: Number of open connections of VMs, as last reported.
        restarts: Number of restarts after the process ended unexpectedly.
    """

    def __init__(  # noqa: PLR0913 - the parts of the service that it serves
        self,
        terms: ProcessTerms,
        *,
        feed: Feed,
        identity: Identity,
        enable: Callable[[str, str | None], Awaitable[None]],
        approve: Callable[[Sequence[str], Approver], Awaitable[Approval]],
        traffic: Traffic,
        journal: Journal,
    ) -> None:
        self.connections = 0
        self.restarts = 0
        self._decide = approve
        self._terms = terms
        self._feed = feed
        self._identity = identity
        self._grant = enable
        self._traffic = traffic
        self._journal = journal
        self._sockets: Sequence[socket.socket] = ()
        self._started: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._pipe: Pipe | None = None
        self._queue: deque[_Item] = deque()
        self._has_more = asyncio.Event()
        self._told: Declared = ({}, {})
        self._numbers = itertools.count(1)
        self._questions: dict[int, asyncio.Future[bool]] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._looking = asyncio.Lock()
        self._is_behind = False
        self._is_ending = False
        self._signs_of_life = 0
        self._before = _Totals(self._traffic)

    @property
    def pid(self) -> int | None:
        """Process id; None while there is no process."""
        return None if self._started is None else self._started[0].pid

    # Life cycle

    @asynccontextmanager
    async def started(self, sockets: Sequence[socket.socket]) -> AsyncIterator[None]:
        """Start a process, which takes a while to be ready, and make sure that it has ended when the block ends.

        Args:
            sockets: Bound sockets; they stay open here, so that connections wait during a restart.
        """
        self._sockets = sockets
        self._started = self._start()
        try:
            yield
        finally:
            if self._started is not None:
                await self._end(*self._started, timeout_s=0.0)

    @asynccontextmanager
    async def answering(self, grace_s: float) -> AsyncIterator[None]:
        """Have VMs answered until the block ends; pending responses then have `grace_s` seconds.

        Raises:
            ServerError: The process ends before it answers.
        """
        self._feed.listeners.append(self._tell_document)
        self._identity.listeners.append(self._tell_inventory)
        ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        keeping = asyncio.create_task(self._keep(ready))
        try:
            waited: set[asyncio.Future[Any]] = {ready, keeping}
            await asyncio.wait(waited, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                msg = "the metadata process has ended before it answered, see the log"
                raise ServerError(msg)
            yield
        finally:
            self._is_ending = True
            for sock in self._sockets:
                sock.close()
            self._put(messages.encode(messages.Stop(grace_s)))
            await asyncio.wait({keeping}, timeout=grace_s + _END_S)
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            self._feed.listeners.remove(self._tell_document)
            self._identity.listeners.remove(self._tell_inventory)

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        with theirs:
            numbers = [theirs.fileno(), *(sock.fileno() for sock in self._sockets)]
            process = subprocess.Popen(  # noqa: S603 - this same program
                [sys.executable, "-P", "-m", "forewarn.endpoint", *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if not name.startswith(_NOT_HANDED_ON)},
                pass_fds=numbers,
                process_group=0,  # signals from a terminal are for the service only
            )
        return process, ours

    async def _end(self, process: subprocess.Popen[bytes], ours: socket.socket, timeout_s: float) -> int:
        """Make sure that the process has ended, and return its exit status."""
        self._started = None
        ours.close()
        try:
            return await asyncio.to_thread(process.wait, timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return await asyncio.to_thread(process.wait)

    async def _keep(self, ready: asyncio.Future[bool]) -> None:
        """Keep a process running, with a restart whenever it ends, until the service stops."""
        pause_s = _PAUSE_FIRST_S
        while True:
            began_s = uptime_s()
            status: int | str
            try:
                status = await self._live(ready)
            except OSError as error:
                status = error.strerror or str(error)
            except Exception:  # noqa: BLE001 - VMs must be answered in any case; the log has the trace
                _log.exception("the metadata process could not be followed")
                status = "lost"
            if self._is_ending or not ready.done():
                return
            if uptime_s() - began_s > _LIVED_S:
                pause_s = _PAUSE_FIRST_S
            self.restarts += 1
            _log.error("the metadata process has ended, starting another one", status=status, pause_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MOST_S)

    async def _live(self, ready: asyncio.Future[bool]) -> int:
        """Serve one process until it ends, and return its exit status."""
        process, ours = self._started = self._started or self._start()
        try:
            await self._serve(ours, ready)
        finally:
            status = await self._end(process, ours, _END_S)
        return status

    async def _serve(self, ours: socket.socket, ready: asyncio.Future[bool]) -> None:
        """Send a process the full state, then the changes, and handle its messages until it is gone."""
        pipe = await Pipe.over(ours)
        self._pipe = pipe
        self._told = ({}, {})
        self._queue.clear()
        self._queue.append(messages.encode(self._begin()))
        self._tell_all()
        first = self._ask(messages.Sync)
        first.add_done_callback(lambda answered: _pass_on(answered, ready))
        works = self._send(pipe), self._listen(pipe), self._until_silent(pipe, first)
        tasks = {asyncio.create_task(work) for work in works}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._pipe = None
            pipe.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._forget()

    async def _listen(self, pipe: Pipe) -> None:
        """Handle messages of the process until it is gone."""
        while frames := await pipe.receive():
            self._signs_of_life += 1
            for frame in frames:
                self._take(messages.decode_from_endpoint(frame), pipe)

    async def _until_silent(self, pipe: Pipe, first: asyncio.Future[bool]) -> None:
        """Return when the process has sent nothing for too long; its first answer may take longer."""
        await asyncio.wait({first}, timeout=_START_S)
        failures = 0
        while failures < _CHECKS:
            before = self._signs_of_life
            # Bypass the queue, so that a process still receiving a large inventory can answer in between.
            pipe.send(messages.encode(messages.Sync(next(self._numbers))))
            await asyncio.sleep(self._terms.silence_max_s / _CHECKS)
            failures = failures + 1 if self._signs_of_life == before else 0
        _log.error("the metadata process does not answer and is killed", silence_max_s=self._terms.silence_max_s)

    def _begin(self) -> messages.Begin:
        terms = self._terms
        return messages.Begin(
            limits=self._traffic.limits,
            dialect=self._feed.dialect,
            any_caller_is=terms.any_caller_is,
            first_answer_delay_s=terms.first_answer_delay_s,
            report_s=terms.report_s,
            requests_kept=terms.requests_kept,
            requests_before=self._journal.newest,
            calls_max=terms.calls_max,
            calls_per_vm_max=terms.calls_per_vm_max,
        )

    def _forget(self) -> None:
        """Drop the state of a process that is gone: its pending questions will not be answered."""
        self._queue.clear()
        questions, self._questions = self._questions, {}
        for question in questions.values():
            if not question.done():
                question.set_result(False)
        self.connections = 0
        self._is_behind = False
        self._before = _Totals(self._traffic)

    # Updates

    def _tell_document(self, document: Document) -> None:
        if self._pipe is None:
            return
        # Merge only into the last item, so that the stream keeps its order.
        last = self._queue[-1] if self._queue else None
        if isinstance(last, dict):
            last[document.audience.key] = document
            self._has_more.set()
        else:
            self._put({document.audience.key: document})

    def _tell_inventory(self, delta: InventoryDelta | None) -> None:
        if self._pipe is None:
            return
        if delta is not None and len(delta.before.vms) + len(delta.after.vms) <= _TOLD_AT_ONCE:
            self._put(delta)
        elif sum(isinstance(each, tuple) for each in self._queue) >= _INVENTORIES_MAX:
            self._tell_all()  # snapshots are large: replace the waiting ones
        else:
            self._put(self._identity.snapshot())

    def _tell_all(self) -> None:
        """Queue a full snapshot in place of the waiting updates; waiting answers go behind it."""
        answers = [each for each in self._queue if isinstance(each, bytes)]
        self._queue.clear()
        if not self._told[0]:
            self._queue.extend(answers)  # the settings must go first; there can be no answers yet
            answers = []
        self._queue.append(self._identity.snapshot())
        self._queue.append({document.audience.key: document for document in self._feed.all_documents()})
        self._queue.extend(answers)
        self._has_more.set()

    def _put(self, item: _Item) -> None:
        if self._pipe is None:
            return
        self._queue.append(item)
        if len(self._queue) > _WAITING_MAX and sum(not isinstance(each, bytes) for each in self._queue) > _WAITING_MAX:
            self._tell_all()
        self._has_more.set()

    async def _send(self, pipe: Pipe) -> None:
        while True:
            while self._queue:
                item = self._queue.popleft()
                if isinstance(item, bytes):
                    pipe.send(item)
                elif isinstance(item, dict):
                    await self._show(pipe, item)
                elif isinstance(item, InventoryDelta):
                    self._declare_delta(pipe, item)
                else:
                    await self._declare(pipe, item)
                await pipe.drain()
            self._has_more.clear()
            await self._has_more.wait()

    async def _show(self, pipe: Pipe, documents: dict[str, Document]) -> None:
        if len(documents) <= _TOLD_AT_ONCE:
            pipe.send(messages.encode(messages.show(documents.values())))
            return
        for part in _parts(list(documents.values()), _TOLD_AT_ONCE):
            await _push(pipe, messages.show(part))

    async def _declare(self, pipe: Pipe, declared: Declared) -> None:
        """Send what is new, changed or gone since the last declaration, yielding in between."""
        (vms_before, scopes_before), (vms, scopes) = self._told, declared
        for names in _parts(list(vms_before), _COMPARED_AT_ONCE):
            removed = [name for name in names if name not in vms]
            if removed:
                await _push(pipe, messages.Declare(removed_vms=removed))
        for part in _parts(list(vms.items()), _COMPARED_AT_ONCE):
            changed = [messages.sparse(vm) for name, vm in part if vms_before.get(name) != vm]
            for piece in _parts(changed, _TOLD_AT_ONCE):
                await _push(pipe, messages.Declare(vms=piece))
            await asyncio.sleep(0)
        for part_of_scopes in _parts(list(scopes.items()), _TOLD_AT_ONCE):
            moved = [messages.sparse(scope) for name, scope in part_of_scopes if scopes_before.get(name) != scope]
            if moved:
                await _push(pipe, messages.Declare(scopes=moved))
        gone = [name for name in scopes_before if name not in scopes]
        await _push(pipe, messages.Declare(removed_scopes=gone, is_last=True))
        self._told = declared

    def _declare_delta(self, pipe: Pipe, delta: InventoryDelta) -> None:
        """Send a small change at once."""
        before, after = delta.before, delta.after
        vms, scopes = self._told
        for told, names in ((vms, [vm.name for vm in before.vms]), (scopes, [scope.name for scope in before.scopes])):
            for name in names:
                told.pop(name, None)
        vms.update({vm.name: vm for vm in after.vms})
        scopes.update({scope.name: scope for scope in after.scopes})
        message = messages.Declare(
            vms=[messages.sparse(vm) for vm in after.vms],
            scopes=[messages.sparse(scope) for scope in after.scopes],
            removed_vms=[vm.name for vm in before.vms if vm.name not in vms],
            removed_scopes=[scope.name for scope in before.scopes if scope.name not in scopes],
            is_last=True,
        )
        pipe.send(messages.encode(message))

    # Messages

    def _take(self, message: messages.FromEndpoint, pipe: Pipe) -> None:
        match message:
            case messages.Approve():
                self._call(self._approve(message, pipe))
            case messages.Enable():
                self._call(self._enable(message, pipe))
            case messages.Asked():
                self._feed.hear(message.moments)
            case messages.Told():
                self._journal.take_over(message.requests)
            case messages.Counted():
                self._before.add_to(self._traffic, message)
                self._traffic.budgets.met.add(message.limits_met)
                self.connections = message.connections
                self._answered(message.number)
            case messages.Synced():
                self._answered(message.number)

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _approve(self, asked: messages.Approve, pipe: Pipe) -> None:
        approval, failure = None, None
        try:
            approval = await self._decide(asked.event_ids, asked.approver)
        except Exception as error:  # noqa: BLE001 - the error is the VM's answer
            failure = _failure(error)
        self._answer(messages.Answer(asked.number, approval, failure), pipe)

    async def _enable(self, asked: messages.Enable, pipe: Pipe) -> None:
        failure = None
        try:
            await self._grant(asked.key, asked.scope)
        except Exception as error:  # noqa: BLE001 - as above
            failure = _failure(error)
        self._answer(messages.Answer(asked.number, None, failure), pipe)

    def _answer(self, answer: messages.Answer, pipe: Pipe) -> None:
        """Queue an answer, behind the documents published before it."""
        # A restarted process numbers its calls from 1 again, so it must not get answers meant for the earlier one.
        if pipe is self._pipe:
            self._put(messages.encode(answer))

    # Questions

    def _ask(self, make: Callable[[int], messages.Sync | messages.Report]) -> asyncio.Future[bool]:
        """Queue a question; its future is False if the process ends before it answers."""
        number = next(self._numbers)
        question = self._questions[number] = asyncio.get_running_loop().create_future()
        self._put(messages.encode(make(number)))
        return question

    def _answered(self, number: int) -> None:
        question = self._questions.pop(number, None)
        if question is None:
            return
        self._is_behind = False
        if not question.done():
            question.set_result(True)

    async def sync(self) -> bool:
        """Wait until everything published has reached the process, for a second at most.

        Returns:
            True if it has.
        """
        if self._is_behind and len(self._questions) >= _QUESTIONS_MAX:
            return False
        return await self._hear(messages.Sync)

    async def settled(self) -> None:
        """Wait as `sync` does, but skip a process that did not answer in time until it has caught up.

        A restarted process answers no VM before it has the full state.
        """
        if not self._is_behind:
            await self.sync()

    async def look(self) -> None:
        """Update the counters and the journal from the process; they stay as they are if it does not answer."""
        async with self._looking:
            if not self._is_behind:
                after = self._journal.newest
                await self._hear(lambda number: messages.Report(number, after))

    async def _hear(self, make: Callable[[int], messages.Sync | messages.Report]) -> bool:
        if self._pipe is None:
            return False
        question = self._ask(make)
        done, _ = await asyncio.wait({question}, timeout=_SYNC_S)
        if not done:
            self._is_behind = True
        return bool(done) and question.result()


class _Totals:
    """Counters of all earlier processes."""

    def __init__(self, traffic: Traffic) -> None:
        self._fast = list(traffic.fast)
        self._outcomes = Counter(traffic.outcomes)
        self._unknown_callers = traffic.unknown_callers
        self._connections_refused = traffic.connections_refused
        self._over_limit = Counter(traffic.over_limit)

    def add_to(self, traffic: Traffic, counted: messages.Counted) -> None:
        """Set the traffic's counters to the sums of these and those of the current process."""
        traffic.fast[:] = [a + b for a, b in zip(self._fast, counted.fast, strict=True)]
        outcomes = Counter({(version, method, status): count for version, method, status, count in counted.outcomes})
        traffic.outcomes = self._outcomes + outcomes
        traffic.unknown_callers = self._unknown_callers + counted.unknown_callers
        traffic.connections_refused = self._connections_refused + counted.connections_refused
        traffic.budgets.refused = self._over_limit + Counter(counted.over_limit)


def _pass_on(first: asyncio.Future[bool], ready: asyncio.Future[bool]) -> None:
    if first.result() and not ready.done():
        ready.set_result(True)


def _parts(items: list[T], size: int) -> Iterator[list[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


async def _push(pipe: Pipe, message: messages.FromService) -> None:
    """Send one of many messages, and yield."""
    pipe.send(messages.encode(message))
    await pipe.drain()
    await asyncio.sleep(0)


def _failure(error: Exception) -> messages.Failure:
    if isinstance(error, ForewarnError):
        return messages.Failure(error.status, error.message, limit_of(error))
    _log.error("a request of a VM raised", exc_info=error)
    return messages.Failure(500, "an unexpected error; the log of the service has it")
