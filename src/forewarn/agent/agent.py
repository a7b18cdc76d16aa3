"""The agent: observe, judge, save the decisions, and only then act.

It runs one loop: after an observation, the end of a step, a peer's report or a timeout, every event is judged again.
So a crash at any moment loses nothing that was begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol

import msgspec

from forewarn.agent.book import Book, facts
from forewarn.agent.configuration import Configuration, local_time, to_local
from forewarn.agent.judgement import (
    Action,
    Approve,
    Begin,
    Forget,
    GiveUp,
    ReportUnprepared,
    Stop,
    judge,
    retryable,
    standing,
)
from forewarn.agent.metrics import AgentMetrics
from forewarn.agent.record import Approval, Finished, Record, RunState
from forewarn.agent.reload import merge
from forewarn.agent.rule import Rule, Step, first_match
from forewarn.agent.state import Memory
from forewarn.agent.steps import Steps
from forewarn.agent.together import PeerState, Report, Verdict, may_approve
from forewarn.client import AsyncClient, Document, EndpointError, Event, Missed, Seen
from forewarn.clock import Clock
from forewarn.errors import ConfigError, HookFailed, NotFound
from forewarn.wire.document import event_key

__all__ = ["Agent", "Reports"]

_log = logging.getLogger("forewarn.agent")

_LOOK_AGAIN_MAX_S = 1.0
"""Maximum sleep while a decision depends on the time, because the clock may be set meanwhile."""

_ROUNDS_MAX = 16
"""Maximum number of consecutive actions on one event in one round of judging."""

_NAME_RETRY_S = 5.0
_NAME_RETRY_LATER_S = 60.0
_NAME_TRIES_BEFORE_FALLBACK = 3
_APPROVE_RETRY_S_MAX = 8.0
_SKEW_MIN = timedelta(seconds=3)
_PATIENCE_S = 10.0
_OUTPUT_KEPT = 4096


class Reports(Protocol):
    """Source of the peers' reports."""

    def of(self, event_id: str) -> Mapping[str, Report]:
        """Return the latest report of each peer about that event, by the peer's name."""
        ...


class Agent:
    """Agent that watches one endpoint for one VM.

    Args:
        configuration: Configuration in effect at the start.
        client: Client for the endpoint; not closed by the agent.
        clock: This machine's clock; the endpoint's time is derived from it and from the endpoint's answers.
        steps: Runner of hooks and handlers.
        memory: Storage of the state.
        fallback_name: This VM's name if neither the configuration nor the endpoint gives it.
        reports: Reports of the peers; None without peers.

    Attributes:
        metrics: Counters of this agent.
        listeners: Callbacks, called on the event loop whenever something may have changed.
        last_error: Reason for the latest failed poll; empty if the latest poll succeeded.
        last_answer_at: Time of the endpoint's latest answer, on this machine's clock; None before the first.
        config_error: Reason why the latest reload was rejected; empty if it was accepted.
        waiting_keys: Changed settings that take effect only after a restart.
    """

    def __init__(  # noqa: PLR0913 - its ports
        self,
        configuration: Configuration,
        *,
        client: AsyncClient,
        clock: Clock,
        steps: Steps,
        memory: Memory,
        fallback_name: str = "",
        reports: Reports | None = None,
    ) -> None:
        self.configuration = configuration
        self.metrics = AgentMetrics(lambda: self.records, self.now)
        self.listeners: list[Callable[[], None]] = []
        self.last_error = ""
        self.last_answer_at: datetime | None = None
        self.config_error = ""
        self.waiting_keys: tuple[str, ...] = ()
        self._rules = configuration.rules
        self._zone = local_time(configuration.timezone)
        self._client = client
        self._clock = clock
        self._steps = steps
        self._fallback_name = fallback_name
        self._reports = reports
        self._skew = timedelta(0)
        self._answered_s: float | None = None
        self._document: Document | None = None
        self._book = Book(
            memory, self._choose, records_max=configuration.events_max, history_max=configuration.history_max
        )
        self._book.vm = configuration.name
        self._works: dict[str, asyncio.Task[None]] = {}
        self._whys: dict[str, str] = {}
        self._wake = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self._is_ending = False

    # State

    @property
    def vm(self) -> str:
        """This VM's name; empty until it is known."""
        return self._book.vm

    @property
    def records(self) -> tuple[Record, ...]:
        """Events on which work is left."""
        return self._book.records

    @property
    def finished(self) -> tuple[Finished, ...]:
        """The latest events on which no work is left, oldest first."""
        return self._book.finished

    @property
    def is_ready(self) -> bool:
        """True if the endpoint has answered recently."""
        if self._answered_s is None:
            return False
        patience_s = (self.configuration.wait + 3 * self.configuration.poll_interval).total_seconds() + _PATIENCE_S
        return asyncio.get_running_loop().time() - self._answered_s < patience_s

    @property
    def is_drained(self) -> bool:
        """True if this VM should get no work."""
        return any(record.rule.drains for record in self.records)

    def why(self, event_id: str) -> str:
        """Return the reason why the event is waiting, in words."""
        return self._whys.get(event_key(event_id), "")

    def now(self) -> datetime:
        """Return the best estimate of the endpoint's time."""
        return self._clock.now() + self._skew

    def standings(self) -> dict[str, PeerState]:
        """Return the state reported to peers, by event: events not yet started that name this VM and others."""
        return {
            record.event.key: standing(record)
            for record in self.records
            if record.gone_at is None
            and record.started_at is None
            and len(record.event.resources) > 1
            and record.event.affects(self.vm)
        }

    def _choose(self, event: Event, now: datetime) -> Rule:
        return first_match(self._rules, event, self.vm, to_local(now, self._zone))

    # Commands of operators

    def approve_by_hand(self, event_id: str | None) -> list[str]:
        """Approve one event as an operator, or all that are not approved yet.

        Returns:
            Ids of the approved events.

        Raises:
            NotFound: There is no such event, or none waits for approval.
        """
        ids = [
            record.event.id
            for record in self._meant(event_id)
            if record.gone_at is None and record.started_at is None and record.approval is not Approval.ACCEPTED
        ]
        if not ids:
            msg = f"no event {event_id} waits for approval" if event_id else "no event waits for approval"
            raise NotFound(msg)
        for each in ids:
            self._book.change(each, by_hand_at=self.now())
        self.wake()
        return ids

    def recover_again(self, event_id: str | None) -> list[str]:
        """Run failed recoveries again.

        Returns:
            Ids of the events.

        Raises:
            NotFound: There is no such event, or no recovery has failed.
        """
        ids = self._run_again(record for record in self._meant(event_id) if record.gone_at is not None)
        if not ids:
            msg = f"the recovery of event {event_id} did not fail" if event_id else "no recovery has failed"
            raise NotFound(msg)
        return ids

    def retry(self, event_id: str | None) -> list[str]:
        """Run the failed steps of one event, or of all, again where that still makes sense.

        Steps before the approval can be retried until NotBefore is near, `prepare` and `started` while the event is
        Started, and then the recovery. If the rule of the same name has other hooks by now, those are run; see
        `Record.is_mended_by`.

        Returns:
            Ids of the events.

        Raises:
            NotFound: There is no such event, or none of its steps has failed and can be retried.
        """
        meant = self._meant(event_id)
        ids = self._run_again(meant)
        if ids:
            return ids
        if event_id and not meant:
            msg = f"there is no event {event_id}"
        elif any(record.failed for record in meant):
            msg = "it is too late to retry what has failed: the event has gone on since, or NotBefore is near"
        else:
            msg = f"no step of event {event_id} has failed" if event_id else "no step has failed"
        raise NotFound(msg)

    def _meant(self, event_id: str | None) -> list[Record]:
        """Return the event with that id, ignoring case; all events if the id is None."""
        return [record for record in self.records if event_id is None or record.event.key == event_key(event_id)]

    def _run_again(self, records: Iterable[Record]) -> list[str]:
        """Schedule failed steps to run again where that still makes sense, and return the ids of their events."""
        ids = []
        for record in records:
            steps = retryable(record, self.now(), self.configuration.margin)
            if steps:
                rule = next((rule for rule in self._rules if record.is_mended_by(rule)), record.rule)
                self._book.change(record.event.id, rule=rule)
                for step in steps:
                    self._book.change_run(record.event.id, step, state=RunState.INTERRUPTED)
                ids.append(record.event.id)
                _log.info("event %s: %s runs again", record.event.id, " and ".join(steps), extra=facts(record))
        self.wake()
        return ids

    def reconfigure(self, read: Configuration) -> None:
        """Apply a reloaded configuration.

        Announced events on which no work has begun are matched again. All others keep their rule.
        """
        self.configuration, self.waiting_keys = merge(self.configuration, read)
        self._rules = self.configuration.rules
        self._zone = local_time(self.configuration.timezone)
        self._book.reconfigure(
            self.now(), records_max=self.configuration.events_max, history_max=self.configuration.history_max
        )
        self.config_error = ""
        self.metrics.reloaded(is_taken=True)
        _log.info("the configuration was read again: %d rules", len(self._rules))
        if self.waiting_keys:
            _log.warning("the configuration was read again, but %s wait for a restart", ", ".join(self.waiting_keys))
        self.wake()

    def keep_configuration(self, error: ConfigError) -> None:
        """Record that the reload failed, and keep the configuration in effect."""
        self.config_error = error.message
        self.metrics.reloaded(is_taken=False)
        _log.error("the configuration was not taken, and the one before stays in effect: %s", error.message)

    def wake(self) -> None:
        """Request a new round of judging."""
        self._wake.set()

    # Life cycle

    async def run(self) -> None:
        """Watch, judge and act until cancelled; steps under way are then stopped, and resumed at the next start.

        Raises:
            ConfigError: The state cannot be read.
        """
        self._book.load(self.now())
        async with asyncio.TaskGroup() as group:
            self._group = group
            if not self.configuration.name:
                group.create_task(self._learn_name())
            group.create_task(self._follow())
            try:
                await self._keep_judging()
            finally:
                self._is_ending = True

    async def _learn_name(self) -> None:
        """Ask the endpoint for this VM's name until it answers (R106)."""
        failures = 0
        while True:
            try:
                name = await self._client.name()
            except EndpointError as error:
                failures += 1
                if failures == _NAME_TRIES_BEFORE_FALLBACK and not self.vm:
                    _log.warning("%s; until it does, this VM takes itself for %r", error.message, self._fallback_name)
                    self._rename(self._fallback_name)
                is_early = failures < _NAME_TRIES_BEFORE_FALLBACK
                await asyncio.sleep(_NAME_RETRY_S if is_early else _NAME_RETRY_LATER_S)
            else:
                self._rename(name)
                return

    def _rename(self, name: str) -> None:
        if name and name != self.vm:
            _log.info("this VM is %s", name)
            self._book.rename(name, self.now())
            self._take_in()

    async def _follow(self) -> None:
        """Process what the endpoint answers."""
        async with contextlib.aclosing(self._client.follow()) as seen:
            async for observation in seen:
                if isinstance(observation, Seen):
                    self._note_answer(observation)
                else:
                    self._note_failure(observation)

    def _note_answer(self, seen: Seen) -> None:
        self.last_answer_at = self._clock.now()
        self._answered_s = asyncio.get_running_loop().time()
        self.metrics.polled(self.last_answer_at)
        if self.last_error:
            _log.info("the metadata endpoint answers again")
            self.last_error = ""
        if seen.served_at is not None:
            # The header has whole seconds and was written a moment ago, so a small difference is not skew.
            skew = seen.served_at - self.last_answer_at
            self._skew = skew if abs(skew) >= _SKEW_MIN else timedelta(0)
        if seen.is_changed:
            count = len(seen.document.events)
            told = {"document": msgspec.to_builtins(seen.document)} if _log.isEnabledFor(logging.DEBUG) else {}
            _log.debug("document %s holds %d events", seen.document.incarnation, count, extra=told)
            self._document = seen.document
            self._take_in()

    def _note_failure(self, missed: Missed) -> None:
        self.metrics.missed()
        self.last_error = missed.error.message
        if missed.failures & (missed.failures - 1) == 0:  # the first, second, fourth, eighth ... in a row
            _log.warning("%s (%d in a row)", missed.error.message, missed.failures)

    def _take_in(self) -> None:
        """Update the book from the document once this VM's name is known, because rules depend on it."""
        if self._document is not None and self.vm:
            self._book.see(self._document, self.now())
            self.wake()

    # Judging

    async def _keep_judging(self) -> None:
        while True:
            # Clear before judging, so that a wake-up in between is not lost.
            self._wake.clear()
            look_again_at = self._settle()
            for listener in self.listeners:
                listener()
            timeout_s = None
            if look_again_at is not None:
                # One millisecond more, so that the time has passed at the next judging.
                timeout_s = min(max((look_again_at - self.now()).total_seconds(), 0.0) + 0.001, _LOOK_AGAIN_MAX_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._wake.wait()

    def _settle(self) -> datetime | None:
        """Judge every event, save the decisions, carry them out, and return when to judge again."""
        effects: list[Callable[[], object]] = []
        looks = [self._settle_one(record.event.id, effects) for record in self.records if self._is_judged(record)]
        # Save before acting, so that a crash loses nothing that was begun.
        if self._book.is_dirty:
            self._save()
        if self._book.is_dirty:
            looks.append(self.now() + timedelta(seconds=_LOOK_AGAIN_MAX_S))  # retry the save
        for effect in effects:
            effect()
        return min((look for look in looks if look is not None), default=None)

    def _is_judged(self, record: Record) -> bool:
        """Return True if the event can be judged: before the first answer, the time is uncertain unless it is gone."""
        return self._answered_s is not None or record.gone_at is not None

    def _settle_one(self, event_id: str, effects: list[Callable[[], object]]) -> datetime | None:
        """Judge one event until nothing is left to do but wait."""
        now = self.now()
        for _ in range(_ROUNDS_MAX):
            if event_id not in self._book:
                return None
            judgement = judge(self._book[event_id], now, self.configuration.margin, self._agree, self.records)
            self._whys[event_key(event_id)] = judgement.why
            if judgement.action is None:
                return judgement.look_again_at
            effect = self._decide(self._book[event_id], judgement.action)
            if effect is not None:
                effects.append(effect)
        _log.error("event %s does not come to rest; this is a bug", event_id)
        return self.now() + timedelta(seconds=_LOOK_AGAIN_MAX_S)

    def _agree(self, record: Record, cutoff: datetime | None) -> Verdict:
        reports = self._reports.of(record.event.key) if self._reports is not None else {}
        return may_approve(record, self.vm, self.configuration.together, reports, self.now(), cutoff)

    def _decide(self, record: Record, action: Action) -> Callable[[], object] | None:
        """Record the change that the action makes, and return the effect to carry out once it is saved."""
        event_id = record.event.id
        effect: Callable[[], object] | None = None
        match action:
            case Begin(step):
                begun = self._book.begin_run(event_id, step, self.now())
                _log.info("event %s: step %s begins", event_id, step, extra=facts(record))
                effect = partial(self._begin, begun, step)
            case Stop(step, reason):
                self._book.change_run(event_id, step, state=RunState.STOPPING, reason=reason)
                effect = partial(self._stop, event_id)
            case GiveUp(step, reason):
                self._book.give_up_run(event_id, step, reason, self.now())
                effect = partial(self._alert, event_id, step, reason)
            case Approve():
                self._book.change(event_id, approval=Approval.SENDING, approve_again_at=None)
                _log.debug("event %s: the approval is sent", event_id, extra=facts(record) | {"action": "approve"})
                effect = partial(self._send_approval, event_id)
            case ReportUnprepared():
                self._book.change(event_id, is_reported_unprepared=True)
                self.metrics.unprepared(record.event.type)
                _log.warning("event %s started before this VM was prepared", event_id, extra=facts(record))
            case Forget():
                finished = self._book.forget(event_id, self.now())
                self._whys.pop(event_key(event_id), None)
                self.metrics.ended(record.event.type, finished.outcome)
                _log.info("event %s is done with: %s", event_id, finished.outcome, extra=facts(record))
        return effect

    def _save(self) -> None:
        """Save everything; a failure, such as a full disk, does not stop the agent, which would be worse."""
        try:
            self._book.save()
        except OSError as error:
            self.metrics.save_failed()
            _log.error("cannot write the state file: %s", error.strerror)

    # Effects

    def _group_of(self) -> asyncio.TaskGroup:
        assert self._group is not None  # noqa: S101 - set by `run`
        return self._group

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task in the background, unless the agent is ending."""
        if self._is_ending:
            work.close()
        else:
            self._group_of().create_task(work)

    def _begin(self, record: Record, step: Step) -> None:
        event_id = record.event.id
        task = self._works[event_key(event_id)] = self._group_of().create_task(self._run_step(record, step))
        # A task that is cancelled before its first turn never enters `_run_step`, so the callback records its failure.
        task.add_done_callback(lambda _: self._note_unbegun(event_id, step))

    def _stop(self, event_id: str) -> None:
        self._works[event_key(event_id)].cancel()

    def _note_unbegun(self, event_id: str, step: Step) -> None:
        """Mark a step as failed that was stopped before its task first ran."""
        run = self._book[event_id].run(step) if event_id in self._book else None
        if run is not None and run.state is RunState.STOPPING and not self._is_ending:
            self._book.change_run(event_id, step, state=RunState.FAILED, ended_at=self.now())
            self._alert(event_id, step, run.reason)
            self.wake()

    async def _run_step(self, record: Record, step: Step) -> None:
        """Run a step and record its result."""
        event_id = record.event.id
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        state, reason, output = RunState.DONE, "", ""
        details: dict[str, Any] = {}
        try:
            output = await self._steps.run(record, step, self.vm, partial(self._remember, event_id))
        except HookFailed as error:
            state, reason, details = RunState.FAILED, error.message, error.details
            output = str(details.get("output", ""))
        except asyncio.CancelledError:
            run = self._book[event_id].runs[step]
            if run.state is not RunState.STOPPING:
                raise  # The agent is ending; the step resumes at its next start.
            state, reason = RunState.FAILED, run.reason
        except Exception as error:  # noqa: BLE001 - one broken handler must not end the agent
            _log.exception("event %s: step %s broke", event_id, step)
            state, reason = RunState.FAILED, f"{type(error).__name__}: {error}"
        has_succeeded = state is RunState.DONE
        self.metrics.stepped(step, loop.time() - began_s, has_succeeded=has_succeeded)
        self._book.change_run(
            event_id,
            step,
            state=state,
            reason=reason,
            output=output[-_OUTPUT_KEPT:],
            exit_status=details.get("exit_status"),
            has_timed_out=details.get("has_timed_out", False),
            ended_at=self.now(),
        )
        if has_succeeded:
            _log.info("event %s: step %s is done", event_id, step, extra=facts(record) | {"output": output})
        else:
            self._alert(event_id, step, reason)
        self.wake()

    async def _remember(self, event_id: str, place: str, memory: dict[str, Any]) -> None:
        """Save a handler's memory.

        Raises:
            HookFailed: It could not be saved; the handler must not continue.
        """
        self._book.change(event_id, memory=self._book[event_id].memory | {place: memory})
        self._save()
        if self._book.is_dirty:
            msg = "cannot write the state file"
            raise HookFailed(msg)

    def _alert(self, event_id: str, step: Step, reason: str) -> None:
        """Report a failed step in the log, and through the rule's alert hooks."""
        record = self._book[event_id]
        _log.error("event %s: step %s failed: %s", event_id, step, reason, extra=facts(record))
        if record.rule.alert:
            self._spawn(self._run_alert(record, f"step {step} failed: {reason}"))

    async def _run_alert(self, record: Record, reason: str) -> None:
        try:
            await self._steps.run(record, Step.ALERT, self.vm, partial(self._remember, record.event.id), reason)
        except HookFailed as error:
            _log.error("event %s: the alert failed: %s", record.event.id, error.message)

    def _send_approval(self, event_id: str) -> None:
        self._spawn(self._approve(event_id, self._book[event_id].seen_at))

    async def _approve(self, event_id: str, met_at: datetime) -> None:
        """Send the approval and record the result; the event may be gone meanwhile."""
        failure = ""
        try:
            if not self.configuration.dry_run:
                await self._client.approve_once([event_id])
        except EndpointError as error:
            failure = error.message
        if failure:
            self.metrics.approval_failed()
            _log.warning("event %s: the approval was not taken: %s", event_id, failure)
        if event_id not in self._book or self._book[event_id].seen_at != met_at:
            return  # It is over, and its id now belongs to another event.
        record = self._book[event_id]
        if failure:
            failures = record.approval_failures + 1
            pause = timedelta(seconds=min(2.0 ** min(failures - 1, 10), _APPROVE_RETRY_S_MAX))
            self._book.change(
                event_id,
                approval=Approval.NONE,
                approval_failures=failures,
                approve_again_at=self.now() + pause,
            )
        else:
            self._book.change(event_id, approval=Approval.ACCEPTED, approved_at=self.now(), approval_failures=0)
            self.metrics.approved((self.now() - record.seen_at).total_seconds())
            _log.info("event %s is approved", event_id, extra=facts(record))
        self.wake()
