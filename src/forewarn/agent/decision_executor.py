"""Execution of the agent's decisions, which are already on disk: steps, alert hooks and approvals, each in a task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from forewarn.agent.metrics import AgentMetrics
from forewarn.agent.record import ApprovalState, EventRecord, StepRunState
from forewarn.agent.registry import EventRegistry, build_log_fields
from forewarn.agent.rule import EventStep
from forewarn.agent.steps import StepExecutor
from forewarn.client import AsyncClient, EndpointError
from forewarn.errors import HookFailed
from forewarn.util.failpoint import FailPoint, reach_failpoint
from forewarn.wire.document import event_key

__all__ = ["DecisionExecutor"]

_log = logging.getLogger("forewarn.agent")

# As short as `Pace.retry_max_s`, because the notice of a Preempt is 30 s (R71).
_APPROVE_RETRY_S_MAX = 8.0
_OUTPUT_KEPT = 4096


class DecisionExecutor:
    """Executor of decisions; it records their results in the registry.

    Args:
        registry: Events of this VM.
        client: Client for the endpoint.
        steps: Runner of hooks and handlers.
        metrics: Counters of the agent.
        now: Returns the best estimate of the endpoint's time.
        save: Saves the registry; after a failure the registry stays dirty.
        wake: Requests a new round of judging.
        is_dry_run: True to send no approvals.
    """

    def __init__(  # noqa: PLR0913 - its ports
        self,
        registry: EventRegistry,
        *,
        client: AsyncClient,
        steps: StepExecutor,
        metrics: AgentMetrics,
        now: Callable[[], datetime],
        save: Callable[[], None],
        wake: Callable[[], None],
        is_dry_run: bool,
    ) -> None:
        self._registry = registry
        self._client = client
        self._steps = steps
        self._metrics = metrics
        self._now = now
        self._save = save
        self._wake = wake
        self._is_dry_run = is_dry_run
        self._step_tasks: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    def open(self, group: asyncio.TaskGroup) -> None:
        """Start tasks in that group from now on."""
        self._group = group

    def close(self) -> None:
        """Start no further tasks; steps cancelled from now on have not failed, and resume at the next start."""
        self._group = None

    def _start_background_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task in the background, unless the agent is ending."""
        if self._group is None:
            # A coroutine that was never started warns unless it is closed.
            work.close()
        else:
            self._group.create_task(work)

    def start_step(self, record: EventRecord, step: EventStep) -> None:
        """Start the task of a step, whose run is on disk."""
        assert self._group is not None  # noqa: S101 - `open` has set it, and nothing begins after `close`
        event_id = record.event.id
        task = self._step_tasks[event_key(event_id)] = self._group.create_task(self._run_step(record, step))
        task.add_done_callback(partial(self._forget_step, event_id, step))

    def cancel_step(self, event_id: str) -> None:
        """Cancel the step of an event that is under way; it then counts as failed."""
        if task := self._step_tasks.get(event_key(event_id)):
            task.cancel()

    def _forget_step(self, event_id: str, step: EventStep, task: asyncio.Task[None]) -> None:
        """Forget the task of a step that has ended; if it never ran, mark the step as failed."""
        # The step's end may have begun the next one, whose task is kept.
        if self._step_tasks.get(event_key(event_id)) is task:
            del self._step_tasks[event_key(event_id)]
        # A task that is cancelled before its first turn never enters `_run_step`, which would record the failure.
        run = self._registry[event_id].runs.get(step) if event_id in self._registry else None
        if run is not None and run.state is StepRunState.STOPPING and self._group is not None:
            self._registry.update_run(event_id, step, state=StepRunState.FAILED, ended_at=self._now())
            self.report_failure(event_id, step, run.reason)
            self._wake()

    async def _run_step(self, record: EventRecord, step: EventStep) -> None:
        """Run a step and record its result."""
        event_id = record.event.id
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        state, reason, output = StepRunState.DONE, "", ""
        details: dict[str, Any] = {}
        try:
            output = await self._steps.run(
                record, step, self._registry.vm, partial(self._save_handler_memory, event_id)
            )
        except HookFailed as error:
            state, reason, details = StepRunState.FAILED, error.message, error.details
            output = str(details.get("output", ""))
        except asyncio.CancelledError:
            run = self._registry[event_id].runs[step]
            # A stop is recorded before the task is cancelled, so the state shows who has cancelled it.
            if run.state is not StepRunState.STOPPING:
                raise  # The agent is ending; the step resumes at its next start.
            state, reason = StepRunState.FAILED, run.reason
        except Exception as error:  # noqa: BLE001 - one broken handler must not end the agent
            _log.exception("event %s: step %s failed unexpectedly", event_id, step)
            state, reason = StepRunState.FAILED, f"{type(error).__name__}: {error}"
        reach_failpoint(FailPoint.STEP_ENDED)
        has_succeeded = state is StepRunState.DONE
        self._metrics.steps[step.value, "done" if has_succeeded else "failed"].add(loop.time() - began_s)
        self._registry.update_run(
            event_id,
            step,
            state=state,
            reason=reason,
            # The state file is rewritten at each change, so it must stay small.
            output=output[-_OUTPUT_KEPT:],
            exit_status=details.get("exit_status"),
            has_timed_out=details.get("has_timed_out", False),
            ended_at=self._now(),
        )
        if has_succeeded:
            _log.info("event %s: step %s is done", event_id, step, extra=build_log_fields(record) | {"output": output})
        else:
            self.report_failure(event_id, step, reason)
        self._wake()

    async def _save_handler_memory(self, event_id: str, place: str, memory: dict[str, Any]) -> None:
        """Save a handler's memory.

        Raises:
            HookFailed: It could not be saved; the handler must not continue.
        """
        self._registry.update_record(event_id, memory=self._registry[event_id].memory | {place: memory})
        # Saved immediately, because the handler acts as soon as this returns.
        self._save()
        # A handler that acted without a saved memory could not restore the original state after a crash.
        if self._registry.is_dirty:
            raise HookFailed("cannot write the state file")

    def report_failure(self, event_id: str, step: EventStep, reason: str) -> None:
        """Report a failed step in the log, and through the rule's alert hooks."""
        record = self._registry[event_id]
        _log.error("event %s: step %s failed: %s", event_id, step, reason, extra=build_log_fields(record))
        # A separate task, because an alert that is slow or fails must delay neither the approval nor the recovery.
        if record.rule.alert:
            self._start_background_task(self._run_alert_hooks(record, f"step {step} failed: {reason}"))

    async def _run_alert_hooks(self, record: EventRecord, reason: str) -> None:
        try:
            await self._steps.run(
                record, EventStep.ALERT, self._registry.vm, partial(self._save_handler_memory, record.event.id), reason
            )
        except HookFailed as error:
            _log.error("event %s: the alert failed: %s", record.event.id, error.message)

    def start_approval(self, event_id: str) -> None:
        """Start sending the approval of an event."""
        self._start_background_task(self._deliver_approval(event_id, self._registry[event_id].seen_at))

    async def _deliver_approval(self, event_id: str, seen_at: datetime) -> None:
        """Send the approval and record the result; the event may be gone meanwhile."""
        failure = ""
        try:
            if not self._is_dry_run:
                # One attempt: the judgement decides about the next, since the event may be gone or held by then.
                await self._client.approve_once([event_id])
                reach_failpoint(FailPoint.APPROVAL_SENT)
        except EndpointError as error:
            failure = error.message
        if failure:
            self._metrics.approval_failures += 1
            _log.warning("event %s: the approval was not accepted: %s", event_id, failure)
        if event_id not in self._registry or self._registry[event_id].seen_at != seen_at:
            return  # It is over, and its id now belongs to another event.
        record = self._registry[event_id]
        if failure:
            failures = record.approval_failures + 1
            # The exponent is limited, because after hours of failures the power would overflow.
            pause = timedelta(seconds=min(2.0 ** min(failures - 1, 10), _APPROVE_RETRY_S_MAX))
            self._registry.update_record(
                event_id,
                approval=ApprovalState.NONE,
                approval_failures=failures,
                approve_again_at=self._now() + pause,
            )
        else:
            self._registry.update_record(
                event_id, approval=ApprovalState.ACCEPTED, approved_at=self._now(), approval_failures=0
            )
            self._metrics.approvals.add((self._now() - record.seen_at).total_seconds())
            _log.info("event %s is approved", event_id, extra=build_log_fields(record))
        self._wake()
