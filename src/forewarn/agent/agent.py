"""The agent: observe, judge, save the decisions, and only then act.

It runs one loop: after an observation, the end of a step, a peer's report or a timeout, every event is judged again.
So a crash at any moment loses nothing that was begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

import msgspec

from forewarn.agent.agreement import ApprovalVerdict, PeerReport, PeerState, may_approve
from forewarn.agent.configuration import Configuration, find_time_zone, merge_live_settings
from forewarn.agent.decision_executor import DecisionExecutor
from forewarn.agent.judgement import (
    Action,
    BeginStep,
    ForgetEvent,
    GiveUpStep,
    ReportUnprepared,
    SendApproval,
    StopStep,
    find_retryable_steps,
    get_reported_state,
    judge_record,
)
from forewarn.agent.metrics import AgentMetrics
from forewarn.agent.record import ApprovalState, EventRecord, FinishedEvent, StepRunState
from forewarn.agent.registry import EventRegistry, build_log_fields
from forewarn.agent.rule import Rule, find_first_match
from forewarn.agent.state import StateStorage
from forewarn.agent.steps import StepExecutor
from forewarn.client import AsyncClient, Document, EndpointError, Event, PollAnswered, PollFailed
from forewarn.clock import Clock
from forewarn.errors import ConfigError, NotFound
from forewarn.util.failpoint import FailPoint, reach_failpoint
from forewarn.wire.document import event_key

__all__ = ["Agent", "PeerReports"]

_log = logging.getLogger("forewarn.agent")

_LOOK_AGAIN_MAX_S = 1.0
"""Maximum sleep while a decision depends on the time, because the clock may be set meanwhile."""

_ROUNDS_MAX = 16
"""Maximum number of consecutive actions on one event in one round of judging."""

_NAME_RETRY_S = 5.0
# An endpoint that refuses the name may never give it, so later tries are rare.
_NAME_RETRY_LATER_S = 60.0
_NAME_TRIES_BEFORE_FALLBACK = 3
_SKEW_MIN = timedelta(seconds=3)
_PATIENCE_S = 10.0


class PeerReports(Protocol):
    """Source of the peers' reports."""

    def get_reports(self, event_id: str) -> Mapping[str, PeerReport]:
        """Return the latest report of each peer about that event, by the peer's name."""


class Agent:
    """Agent that watches one endpoint for one VM.

    Args:
        configuration: Configuration in effect at the start.
        client: Client for the endpoint; not closed by the agent.
        clock: This machine's clock; the endpoint's time is derived from it and from the endpoint's answers.
        steps: Runner of hooks and handlers.
        storage: Storage of the state.
        fallback_name: This VM's name if neither the configuration nor the endpoint gives it.
        reports: Reports of the peers; None without peers.

    Attributes:
        metrics: Counters of this agent.
        listeners: Callbacks, called on the event loop whenever something may have changed.
        last_error: Reason for the latest failed poll; empty if the latest poll succeeded.
        last_answer_at: Time of the endpoint's latest answer, on this machine's clock; None before the first.
        config_error: Reason why the latest reload was rejected; empty if it was accepted.
        restart_keys: Changed settings that take effect only after a restart.
    """

    def __init__(  # noqa: PLR0913 - its ports
        self,
        configuration: Configuration,
        *,
        client: AsyncClient,
        clock: Clock,
        steps: StepExecutor,
        storage: StateStorage,
        fallback_name: str = "",
        reports: PeerReports | None = None,
    ) -> None:
        self.configuration = configuration
        self.metrics = AgentMetrics(lambda: self.records, self.now)
        self.listeners: list[Callable[[], None]] = []
        self.last_error = ""
        self.last_answer_at: datetime | None = None
        self.config_error = ""
        self.restart_keys: tuple[str, ...] = ()
        self._rules = configuration.rules
        self._zone = find_time_zone(configuration.timezone)
        self._client = client
        self._clock = clock
        self._fallback_name = fallback_name
        self._reports = reports
        self._clock_skew = timedelta(0)
        self._last_answer_s: float | None = None
        self._document: Document | None = None
        self._registry = EventRegistry(
            storage, self._match_rule, records_max=configuration.events_max, history_max=configuration.history_max
        )
        self._registry.vm = configuration.name
        self._executor = DecisionExecutor(
            self._registry,
            client=client,
            steps=steps,
            metrics=self.metrics,
            now=self.now,
            save=self._save_records,
            wake=self.wake,
            is_dry_run=configuration.dry_run,
        )
        self._wait_reasons: dict[str, str] = {}
        self._saved_states: dict[str, PeerState] = {}
        self._wake_event = asyncio.Event()

    # State

    @property
    def vm(self) -> str:
        """This VM's name; empty until it is known."""
        return self._registry.vm

    @property
    def records(self) -> tuple[EventRecord, ...]:
        """Events on which work is left."""
        return self._registry.records

    @property
    def finished(self) -> tuple[FinishedEvent, ...]:
        """The latest events on which no work is left, oldest first."""
        return self._registry.finished

    @property
    def is_ready(self) -> bool:
        """True if the endpoint has answered recently."""
        if self._last_answer_s is None:
            return False
        # The endpoint may hold a request for `wait`, and a few failed polls in a row are not yet a problem.
        patience_s = (self.configuration.wait + 3 * self.configuration.poll_interval).total_seconds() + _PATIENCE_S
        return asyncio.get_running_loop().time() - self._last_answer_s < patience_s

    @property
    def is_drained(self) -> bool:
        """True if this VM should get no work."""
        return any(record.rule.drains_vm for record in self.records)

    def get_wait_reason(self, event_id: str) -> str:
        """Return the reason why the event is waiting, in words."""
        return self._wait_reasons.get(event_key(event_id), "")

    def now(self) -> datetime:
        """Return the best estimate of the endpoint's time."""
        return self._clock.now() + self._clock_skew

    def get_reported_states(self) -> dict[str, PeerState]:
        """Return the states to report to peers, as last saved: of events not started that name this VM and others."""
        # Peers must not learn of a state that a crash would undo, so what a full disk has refused is not reported.
        if not self._registry.is_dirty:
            self._saved_states = {
                record.event.key: get_reported_state(record)
                for record in self.records
                if record.gone_at is None
                # Once it has started, no approval is needed, and peers have nothing left to ask.
                and record.started_at is None
                and len(record.event.resources) > 1
                and record.event.affects(self.vm)
            }
        return self._saved_states

    def _match_rule(self, event: Event, now: datetime) -> Rule:
        return find_first_match(self._rules, event, self.vm, now.astimezone(self._zone))

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
            for record in self._find_records(event_id)
            # An approval that is still being sent may be refused, so it does not count as approved.
            if record.gone_at is None and record.started_at is None and record.approval is not ApprovalState.ACCEPTED
        ]
        if not ids:
            msg = f"no event {event_id} is waiting for approval" if event_id else "no event is waiting for approval"
            raise NotFound(msg)
        for each in ids:
            # Only recorded here. The next judging sends the approval, once the VM is prepared and this is on disk.
            self._registry.update_record(each, by_hand_at=self.now())
        self.wake()
        return ids

    def retry_recovery(self, event_id: str | None) -> list[str]:
        """Run failed recoveries again.

        Returns:
            Ids of the events.

        Raises:
            NotFound: There is no such event, or no recovery has failed.
        """
        ids = self._schedule_retries(record for record in self._find_records(event_id) if record.gone_at is not None)
        if not ids:
            raise NotFound(f"the recovery of event {event_id} did not fail" if event_id else "no recovery has failed")
        return ids

    def retry_failed_steps(self, event_id: str | None) -> list[str]:
        """Run the failed steps of one event, or of all, again where that still makes sense.

        Steps before the approval can be retried until NotBefore is near, `prepare` and `started` while the event is
        Started, and then the recovery. If the rule of the same name has other hooks by now, those are run; see
        `EventRecord.can_retry_with`.

        Returns:
            Ids of the events.

        Raises:
            NotFound: There is no such event, or none of its steps has failed and can be retried.
        """
        meant = self._find_records(event_id)
        ids = self._schedule_retries(meant)
        if ids:
            return ids
        if event_id and not meant:
            msg = f"there is no event {event_id}"
        elif any(record.has_failed(step) for record in meant for step in record.runs):
            msg = "too late to retry the failed steps: the event has moved on, or NotBefore is near"
        else:
            msg = f"no step of event {event_id} has failed" if event_id else "no step has failed"
        raise NotFound(msg)

    def _find_records(self, event_id: str | None) -> list[EventRecord]:
        """Return the event with that id, ignoring case; all events if the id is None."""
        return [record for record in self.records if event_id is None or record.event.key == event_key(event_id)]

    def _schedule_retries(self, records: Iterable[EventRecord]) -> list[str]:
        """Schedule failed steps to run again where that still makes sense, and return the ids of their events."""
        ids = []
        for record in records:
            steps = find_retryable_steps(record, self.now(), self.configuration.margin)
            if steps:
                # A faulty hook may have been fixed by a reload since, so a newer rule with the same undoing is used.
                rule = next((rule for rule in self._rules if record.can_retry_with(rule)), record.rule)
                self._registry.update_record(record.event.id, rule=rule)
                for step in steps:
                    # Judging begins an interrupted step again, so retries need no code of their own.
                    self._registry.update_run(record.event.id, step, state=StepRunState.INTERRUPTED)
                ids.append(record.event.id)
                _log.info(
                    "event %s: %s runs again", record.event.id, " and ".join(steps), extra=build_log_fields(record)
                )
        self.wake()
        return ids

    def reconfigure(self, loaded: Configuration) -> None:
        """Apply a reloaded configuration.

        Announced events on which no work has begun are matched again. All others keep their rule.
        """
        self.configuration, self.restart_keys = merge_live_settings(self.configuration, loaded)
        self._rules = self.configuration.rules
        self._zone = find_time_zone(self.configuration.timezone)
        self._registry.reconfigure(
            self.now(), records_max=self.configuration.events_max, history_max=self.configuration.history_max
        )
        self.config_error = ""
        self.metrics.count_reload(is_accepted=True)
        _log.info("configuration reloaded: %d rules", len(self._rules))
        if self.restart_keys:
            _log.warning("configuration reloaded, but changes to %s need a restart", ", ".join(self.restart_keys))
        self.wake()

    def reject_reload(self, error: ConfigError) -> None:
        """Record that the reload failed, and keep the configuration in effect."""
        self.config_error = error.message
        self.metrics.count_reload(is_accepted=False)
        _log.error("configuration not reloaded; the previous one stays in effect: %s", error.message)

    def wake(self) -> None:
        """Request a new round of judging."""
        self._wake_event.set()

    # Life cycle

    async def run(self) -> None:
        """Watch, judge and act until cancelled; steps under way are then stopped, and resumed at the next start.

        Raises:
            ConfigError: The state cannot be read.
        """
        # Before the first poll: an event that ended while the agent was away shows only as missing from the document.
        self._registry.load(self.now())
        async with asyncio.TaskGroup() as group:
            self._executor.open(group)
            if not self.configuration.name:
                group.create_task(self._learn_name())
            group.create_task(self._follow_endpoint())
            try:
                await self._keep_judging()
            finally:
                # The group now cancels all tasks. Their steps have not failed, and no new task may start.
                self._executor.close()

    async def _learn_name(self) -> None:
        """Ask the endpoint for this VM's name until it answers (R106)."""
        failures = 0
        while True:
            try:
                name = await self._client.fetch_name()
            except EndpointError as error:
                failures += 1
                # Rules depend on the name, so nothing is judged without one. After some failures, a guess is better
                # than missing an event.
                if failures == _NAME_TRIES_BEFORE_FALLBACK and not self.vm:
                    _log.warning("%s; until it does, this VM assumes the name %r", error.message, self._fallback_name)
                    self._set_name(self._fallback_name)
                is_early = failures < _NAME_TRIES_BEFORE_FALLBACK
                await asyncio.sleep(_NAME_RETRY_S if is_early else _NAME_RETRY_LATER_S)
            else:
                self._set_name(name)
                return

    def _set_name(self, name: str) -> None:
        if name and name != self.vm:
            _log.info("this VM's name is %s", name)
            self._registry.set_vm_name(name, self.now())
            self._update_records()

    async def _follow_endpoint(self) -> None:
        """Process what the endpoint answers."""
        async with contextlib.aclosing(self._client.follow()) as seen:
            async for observation in seen:
                if isinstance(observation, PollAnswered):
                    self._record_answer(observation)
                else:
                    self._record_failed_poll(observation)

    def _record_answer(self, seen: PollAnswered) -> None:
        self.last_answer_at = self._clock.now()
        # Kept on the loop's clock as well, because `is_ready` measures a span, and the wall clock may be set in it.
        self._last_answer_s = asyncio.get_running_loop().time()
        self.metrics.polls["ok"] += 1
        self.metrics.last_poll_at = self.last_answer_at
        if self.last_error:
            _log.info("the metadata endpoint answers again")
            self.last_error = ""
        if seen.served_at is not None:
            # The header has whole seconds and was written a moment ago, so a small difference is not skew.
            skew = seen.served_at - self.last_answer_at
            self._clock_skew = skew if abs(skew) >= _SKEW_MIN else timedelta(0)
        if seen.is_changed:
            count = len(seen.document.events)
            # Converted only for a log that shows it: a document may hold thousands of events.
            extra = {"document": msgspec.to_builtins(seen.document)} if _log.isEnabledFor(logging.DEBUG) else {}
            _log.debug("document %s has %d events", seen.document.incarnation, count, extra=extra)
            self._document = seen.document
            self._update_records()

    def _record_failed_poll(self, failure: PollFailed) -> None:
        self.metrics.polls["failed"] += 1
        self.last_error = failure.error.message
        if failure.failures & (failure.failures - 1) == 0:  # the first, second, fourth, eighth ... in a row
            _log.warning("%s (%d in a row)", failure.error.message, failure.failures)

    def _update_records(self) -> None:
        """Update the registry from the document once this VM's name is known, because rules depend on it."""
        if self._document is not None and self.vm:
            self._registry.observe_document(self._document, self.now())
            self.wake()

    # Judging

    async def _keep_judging(self) -> None:
        while True:
            # Clear before judging, so that a wake-up in between is not lost.
            self._wake_event.clear()
            look_again_at = self._judge_all()
            # After the save in `_judge_all`, because peers must not learn of a state that a crash would undo.
            for listener in self.listeners:
                listener()
            timeout_s = None
            if look_again_at is not None:
                # One millisecond more, so that the time has passed at the next judging.
                timeout_s = min(max((look_again_at - self.now()).total_seconds(), 0.0) + 0.001, _LOOK_AGAIN_MAX_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._wake_event.wait()

    def _judge_all(self) -> datetime | None:
        """Judge every event, save the decisions, carry them out, and return when to judge again."""
        effects: list[Callable[[], object]] = []
        # A failed save is retried first, because approvals wait for it.
        if self._registry.is_save_failing:
            self._save_records()
        looks = [
            self._judge_until_idle(record.event.id, effects)
            for record in self.records
            # Before the first answer, the endpoint's time is uncertain; what is gone does not depend on it.
            if self._last_answer_s is not None or record.gone_at is not None
        ]
        # Save before acting, so that a crash loses nothing that was begun. A retry that has just failed is enough.
        if self._registry.is_dirty and not self._registry.is_save_failing:
            self._save_records()
        if self._registry.is_dirty:
            looks.append(self.now() + timedelta(seconds=_LOOK_AGAIN_MAX_S))  # retry the save
        if effects:
            reach_failpoint(FailPoint.STEP_RECORDED)
        # Steps are carried out even if the save failed: a full disk must not leave this VM unprepared.
        for effect in effects:
            effect()
        return min((look for look in looks if look is not None), default=None)

    def _judge_until_idle(self, event_id: str, effects: list[Callable[[], object]]) -> datetime | None:
        """Judge one event until nothing is left to do but wait."""
        now = self.now()
        # Each action changes the record, which may make another action due at once. The limit guards against a bug.
        for _ in range(_ROUNDS_MAX):
            if event_id not in self._registry:
                return None
            # Judged with the current records, because another event may have begun a step in this same round.
            judgement = judge_record(
                self._registry[event_id], now, self.configuration.margin, self._check_agreement, self.records
            )
            self._wait_reasons[event_key(event_id)] = judgement.reason
            if judgement.action is None:
                return judgement.judge_again_at
            effect = self._apply_decision(self._registry[event_id], judgement.action)
            if effect is not None:
                effects.append(effect)
        _log.error("event %s: judging does not terminate; this is a bug", event_id)
        return self.now() + timedelta(seconds=_LOOK_AGAIN_MAX_S)

    def _check_agreement(self, record: EventRecord, cutoff: datetime | None) -> ApprovalVerdict:
        if self._is_unsaved(record):
            return ApprovalVerdict(
                may_approve=False, reason="held: the state file cannot be written; it starts at NotBefore"
            )
        reports = self._reports.get_reports(record.event.key) if self._reports is not None else {}
        return may_approve(record, self.vm, self.configuration.together, reports, self.now(), cutoff)

    def _apply_decision(self, record: EventRecord, action: Action) -> Callable[[], object] | None:
        """Record the change that the action makes, and return the effect to carry out once it is saved."""
        event_id = record.event.id
        effect: Callable[[], object] | None = None
        match action:
            case BeginStep(step):
                begun = self._registry.begin_run(event_id, step, self.now())
                _log.info("event %s: step %s begins", event_id, step, extra=build_log_fields(record))
                effect = partial(self._executor.start_step, begun, step)
            case StopStep(step, reason):
                self._registry.update_run(event_id, step, state=StepRunState.STOPPING, reason=reason)
                effect = partial(self._executor.cancel_step, event_id)
            case GiveUpStep(step, reason):
                self._registry.give_up_run(event_id, step, reason, self.now())
                effect = partial(self._executor.report_failure, event_id, step, reason)
            case SendApproval():
                # On disk before the request leaves: after a crash, the agent knows that the approval may have arrived.
                self._registry.update_record(event_id, approval=ApprovalState.SENDING, approve_again_at=None)
                _log.debug(
                    "event %s: sending the approval", event_id, extra=build_log_fields(record) | {"action": "approve"}
                )
                effect = partial(self._start_approval, event_id)
            case ReportUnprepared():
                # Without this mark the judgement would ask for the report again, and so would an agent that restarts.
                self._registry.update_record(event_id, is_reported_unprepared=True)
                self.metrics.unprepared_events[record.event.type] += 1
                _log.warning("event %s started before this VM was prepared", event_id, extra=build_log_fields(record))
            case ForgetEvent():
                finished = self._registry.remove_record(event_id, self.now())
                self._wait_reasons.pop(event_key(event_id), None)
                self.metrics.ended_events[record.event.type, finished.outcome] += 1
                _log.info("event %s is finished: %s", event_id, finished.outcome, extra=build_log_fields(record))
        return effect

    def _is_unsaved(self, record: EventRecord) -> bool:
        """Return True if the record must be on disk before its approval is sent, and may not be.

        The impact may restart this VM. Without the record, the agent would not undo the preparation, and would repeat
        it while an approval that it no longer knows lets the impact happen. An operator's approval does not wait.
        """
        return self._registry.is_save_failing and record.has_begun_to_prepare and record.by_hand_at is None

    def _start_approval(self, event_id: str) -> None:
        """Start sending the approval; if the save before it has failed, judge the event again later."""
        if self._is_unsaved(self._registry[event_id]):
            self._registry.update_record(event_id, approval=ApprovalState.NONE)
        else:
            self._executor.start_approval(event_id)

    def _save_records(self) -> None:
        """Save everything; a failure, such as a full disk, does not stop the agent, which would be worse."""
        try:
            self._registry.save()
        except OSError as error:
            self.metrics.save_failures += 1
            _log.error("cannot write the state file: %s", error.strerror)
