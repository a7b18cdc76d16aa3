"""Service side of one metadata process: starts it, sends it updates, answers its calls, and restarts it."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from forewarn.clock import uptime_s
from forewarn.core.maintenance.approval import ApprovalResult, Approver
from forewarn.endpoint import messages
from forewarn.endpoint.child_process import ChildProcess
from forewarn.endpoint.pipe import Pipe
from forewarn.endpoint.quota import find_exceeded_limit
from forewarn.endpoint.request_journal import JournalEntry
from forewarn.endpoint.update_queue import UpdateQueue
from forewarn.errors import ForewarnError, ServerError
from forewarn.publishing.feed import Feed
from forewarn.util.tasks import cancel_tasks

__all__ = ["MetadataProcess", "ProcessPorts"]

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

_CHECKS = 6
"""Number of liveness checks within `silence_max_s`.

All of them must fail. So a suspended machine does not get the process killed: that fails only one check.
"""

_QUESTIONS_MAX = 100
"""Maximum number of pending questions to a process that does not answer."""

_MakeQuestion = Callable[[int], messages.SyncRequest | messages.CounterRequest]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPorts:
    """Functions of the service that the handle of a metadata process calls; `number` is the number of the process.

    Attributes:
        enable: Enables an audience; see `Authority`.
        approve: Handles an approval.
        make_settings: Makes the settings for a new process, by number.
        find_position: Returns the position of the newest update; 0 if updates are not numbered.
        on_answering: Called with the number, and whether the process answers VMs from now on or no longer does.
        on_silent: Called with the number, and whether the process has not answered the latest liveness check.
        on_received: Called with the number, and the position up to which the process has received all updates.
        on_counters: Called with the number and a report.
        on_requests: Called with the number and recorded requests.
    """

    enable: Callable[[str, str | None], Awaitable[None]]
    approve: Callable[[Sequence[str], Approver], Awaitable[ApprovalResult]]
    make_settings: Callable[[int], messages.EndpointSettings]
    find_position: Callable[[], int]
    on_answering: Callable[[int, bool], None]
    on_silent: Callable[[int, bool], None]
    on_received: Callable[[int, int], None]
    on_counters: Callable[[int, messages.CounterReport], None]
    on_requests: Callable[[int, Sequence[JournalEntry]], None]


class MetadataProcess:
    """Handle of the service on one process that answers VMs.

    Args:
        number: Number of the process, from 0.
        settings: Settings that concern this handle, too.
        ports: What the process needs of the service.
        feed: Receives the times of last requests.
        queue: Updates for the process.

    Attributes:
        queue: As above.
        restarts: Number of restarts after the process ended unexpectedly.
        received: Position up to which the process has received all updates.
    """

    def __init__(
        self, number: int, settings: messages.ProcessSettings, ports: ProcessPorts, feed: Feed, queue: UpdateQueue
    ) -> None:
        self.queue = queue
        self.restarts = 0
        self.received = 0
        self._number = number
        self._settings = settings
        self._ports = ports
        self._feed = feed
        self._sockets: Sequence[socket.socket] = ()
        self._descriptors: Sequence[int] = ()
        self._child: ChildProcess | None = None
        self._pipe: Pipe | None = None
        self._numbers = itertools.count(1)
        self._questions: dict[int, asyncio.Future[bool]] = {}
        # By pipe: calls of a process that is gone may still run, and count for no other.
        self._calls: dict[Pipe, set[asyncio.Task[None]]] = {}
        self._is_behind = False
        self._is_ending = False
        self._batches_received = 0

    @property
    def pid(self) -> int | None:
        """Process id; None while there is no process."""
        return None if self._child is None else self._child.pid

    # Life cycle

    @asynccontextmanager
    async def start(self, sockets: Sequence[socket.socket], descriptors: Sequence[int]) -> AsyncIterator[None]:
        """Start a process, which takes a while to be ready, and make sure that it has ended when the block ends.

        Args:
            sockets: Bound sockets; they stay open here, so that connections wait during a restart.
            descriptors: File descriptors that the process inherits besides.
        """
        self._sockets, self._descriptors = sockets, descriptors
        # Started before the service has loaded its state, so that both processes import their modules at the same time.
        self._child = ChildProcess(sockets, descriptors)
        try:
            yield
        finally:
            if self._child is not None:
                await self._end_child(self._child, timeout_s=0.0)

    @asynccontextmanager
    async def answer_vms(self, grace_s: float) -> AsyncIterator[None]:
        """Have VMs answered until the block ends; pending responses then have `grace_s` seconds.

        Raises:
            ServerError: The process ends before it answers.
        """
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
            self.begin_end(grace_s)
            await asyncio.wait({keeping}, timeout=grace_s + _END_S)
            await cancel_tasks(keeping)

    def begin_end(self, grace_s: float) -> None:
        """Ask the process to end, and restart it no more."""
        if self._is_ending:
            return
        # First, or the end of the process would count as a crash and cause a restart.
        self._is_ending = True
        # While any process holds a socket open, the kernel goes on to queue connections that no one will accept.
        for sock in self._sockets:
            sock.close()
        self.queue.add_message(messages.encode(messages.StopRequest(grace_s)))

    async def _end_child(self, child: ChildProcess, timeout_s: float) -> int:
        # First, so that a failure here cannot make `start` end the same process again.
        self._child = None
        return await child.end(timeout_s)

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
            _log.error(
                "the metadata process ended, restarting it", status=status, pause_s=pause_s, process=self._number
            )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MOST_S)

    async def _run_one_process(self, ready: asyncio.Future[bool]) -> int:
        """Serve one process until it ends, and return its exit status."""
        child = self._child = self._child or ChildProcess(self._sockets, self._descriptors)
        try:
            await self._exchange_messages(child.channel, ready)
        finally:
            status = await self._end_child(child, _END_S)
        return status

    async def _exchange_messages(self, ours: socket.socket, ready: asyncio.Future[bool]) -> None:
        """Send a process the full state, then the changes, and handle its messages until it is gone."""
        pipe = await Pipe.from_socket(ours)
        # Nothing is awaited from here until all of it is queued, so no update gets in front of the snapshot.
        self._pipe = pipe
        # The order matters: settings, full state, then the sync that makes the process accept VMs. So no VM ever gets
        # an answer from half an inventory. The settings bypass the queue, where a new snapshot replaces the full state.
        pipe.send(messages.encode(self._ports.make_settings(self._number)))
        self.queue.open(self._ports.find_position())
        first = self._queue_question(messages.SyncRequest)
        first.add_done_callback(lambda answered: self._note_first_answer(answered, ready))
        works = self.queue.send(pipe), self._handle_messages(pipe), self._wait_until_silent(pipe, first)
        tasks = {asyncio.create_task(work) for work in works}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            # Further updates are dropped: the next process begins with a snapshot.
            self._pipe = None
            self.queue.close()
            pipe.close()
            await cancel_tasks(*tasks)
            self._reset_process_state()

    def _note_first_answer(self, first: asyncio.Future[bool], ready: asyncio.Future[bool]) -> None:
        if first.result():
            self._ports.on_answering(self._number, True)  # noqa: FBT003 - a callback has no names
            if not ready.done():
                ready.set_result(True)

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
            was_silent = failures > 0
            failures = failures + 1 if self._batches_received == before else 0
            if was_silent is not failures > 0:
                self._ports.on_silent(self._number, failures > 0)
        _log.error("the metadata process does not answer, killing it", silence_max_s=self._settings.silence_max_s)

    def _reset_process_state(self) -> None:
        """Drop the state of a process that is gone: its pending questions will not be answered."""
        questions, self._questions = self._questions, {}
        for question in questions.values():
            if not question.done():
                # Not an exception: an operator whose change is committed must get an answer all the same.
                question.set_result(False)
        self._is_behind = False
        self.received = 0
        self._ports.on_answering(self._number, False)  # noqa: FBT003 - a callback has no names

    # Messages

    def send_at_once(self, message: messages.FromService) -> None:
        """Send a message past the waiting updates; only a hint that may be lost, as nothing bounds these."""
        if self._pipe is not None:
            self._pipe.send(messages.encode(message))

    def hint_published(self) -> None:
        """Have the process look at the published position."""
        # While bytes wait to be sent, the process looks anyway when it has received them. So hints do not pile up.
        if self._pipe is not None and not self._pipe.unsent_bytes:
            self._pipe.send(_HINT)

    def _handle_message(self, message: messages.FromEndpoint, pipe: Pipe) -> None:
        match message:
            case messages.ApproveCall():
                decide = partial(self._ports.approve, message.event_ids, message.approver)
                self._start_call(self._handle_call(message.number, decide, pipe), pipe)
            case messages.EnableCall():
                grant = partial(self._ports.enable, message.key, message.scope)
                self._start_call(self._handle_call(message.number, grant, pipe), pipe)
            case messages.LastRequestTimes():
                self._feed.merge_polls(message.moments)
            case messages.PositionReceived():
                self.received = message.position
                self._ports.on_received(self._number, message.position)
            case messages.JournalEntries():
                self._ports.on_requests(self._number, message.requests)
            case messages.CounterReport():
                self._ports.on_counters(self._number, message)
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
            self.queue.add_message(messages.encode(messages.CallResult(number, approval, failure)))

    # Questions

    def _queue_question(self, make_message: _MakeQuestion) -> asyncio.Future[bool]:
        """Queue a question; its future is False if the process ends before it answers."""
        number = next(self._numbers)
        question = self._questions[number] = asyncio.get_running_loop().create_future()
        self.queue.add_message(messages.encode(make_message(number)))
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

    async def fetch_counters(self, requests_after: int) -> None:
        """Have the counters reported, and the requests recorded after that number; not by a process that is behind."""
        if not self._is_behind:
            await self._wait_for_reply(lambda number: messages.CounterRequest(number, requests_after))

    async def _wait_for_reply(self, make_message: _MakeQuestion) -> bool:
        if self._pipe is None:
            return False
        question = self._queue_question(make_message)
        # `wait` leaves the question pending after the time-out; its late answer ends `_is_behind`.
        done, _ = await asyncio.wait({question}, timeout=_SYNC_S)
        if not done:
            self._is_behind = True
        return bool(done) and question.result()


_HINT = messages.encode(messages.PositionPublished())


def _encode_failure(error: Exception) -> messages.CallFailure:
    if isinstance(error, ForewarnError):
        return messages.CallFailure(error.status, error.message, find_exceeded_limit(error))
    _log.error("a request from a VM raised an exception", exc_info=error)
    return messages.CallFailure(500, "unexpected error; see the log of the service")
