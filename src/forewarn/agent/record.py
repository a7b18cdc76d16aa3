"""State of one event that must survive a restart. Values only; `judgement` interprets them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from forewarn.agent.rule import EventStep, Rule
from forewarn.wire.document import Event

__all__ = ["ApprovalState", "EventRecord", "FinishedEvent", "StepRun", "StepRunState"]


class StepRunState(StrEnum):
    """Progress of a step."""

    RUNNING = "running"
    STOPPING = "stopping"
    """The step is being stopped before its end, and counts as failed once it has stopped."""

    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    """The step is to be run again: the agent was killed meanwhile, or an operator retries it."""


class ApprovalState(StrEnum):
    """Progress of the approval."""

    NONE = "none"
    SENDING = "sending"
    """The approval may have reached the endpoint."""

    ACCEPTED = "accepted"
    """The endpoint answered 200."""


class StepRun(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one step.

    Attributes:
        tries: Number of attempts; 0 if the step was given up before the first.
        reason: Reason for the failure; empty otherwise.
        output: End of the output of its hooks.
        exit_status: Exit status of the command that failed, negative for a signal; None if no command failed.
        has_timed_out: True if it failed because something exceeded its time limit.
    """

    state: StepRunState
    began_at: datetime
    ended_at: datetime | None = None
    tries: int = 1
    reason: str = ""
    output: str = ""
    exit_status: int | None = None
    has_timed_out: bool = False


class EventRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One event, from its first sight until no work on it is left.

    Attributes:
        event: The event as last seen.
        rule: Rule that matched at first sight: a new configuration must not change how to undo.
        seen_at: Time of the first sight.
        started_at: Time at which it was seen Started; None before.
        gone_at: Time at which it was seen gone; None while it is present.
        runs: Result of each step that was begun or given up.
        approval: Progress of the approval.
        approved_at: Time at which the endpoint accepted the approval.
        approval_failures: Number of consecutive failed approvals.
        approve_again_at: Time of the next attempt after a failed approval.
        by_hand_at: Time at which an operator approved it.
        is_reported_unprepared: True if it was reported as started before this VM was prepared.
        memory: Memory of built-in handlers, by their position in the rule.
        looks: Order in which the handlers of all events began to remember: the first saw the original state.
    """

    event: Event
    rule: Rule
    seen_at: datetime
    started_at: datetime | None = None
    gone_at: datetime | None = None
    # msgspec gives each struct its own empty dict, so the defaults here are not shared.
    runs: dict[EventStep, StepRun] = {}
    approval: ApprovalState = ApprovalState.NONE
    approved_at: datetime | None = None
    approval_failures: int = 0
    approve_again_at: datetime | None = None
    by_hand_at: datetime | None = None
    is_reported_unprepared: bool = False
    memory: dict[str, dict[str, Any]] = {}
    looks: dict[str, int] = {}

    def is_done(self, step: EventStep) -> bool:
        """Return True if that step succeeded."""
        run = self.runs.get(step)
        return run is not None and run.state is StepRunState.DONE

    def has_failed(self, step: EventStep) -> bool:
        """Return True if that step has failed."""
        run = self.runs.get(step)
        return run is not None and run.state is StepRunState.FAILED

    @property
    def running_step(self) -> EventStep | None:
        """The step that is running; there is at most one."""
        under_way = {StepRunState.RUNNING, StepRunState.STOPPING}
        return next((step for step, run in self.runs.items() if run.state in under_way), None)

    @property
    def is_stopping(self) -> bool:
        """True if the running step is being stopped."""
        return any(run.state is StepRunState.STOPPING for run in self.runs.values())

    @property
    def is_prepared(self) -> bool:
        """True if everything that the rule prepares before the impact is done."""
        return not self.rule.has_preparation or self.is_done(EventStep.PREPARE)

    @property
    def has_begun_to_prepare(self) -> bool:
        """True if there may be something to undo."""
        run = self.runs.get(EventStep.PREPARE)
        # A run without a try was given up before it could change anything.
        return run is not None and run.tries > 0

    def can_retry_with(self, rule: Rule) -> bool:
        """Return True if a retry may use that rule of a newer configuration instead of this record's own.

        It must select the same events. Its handlers must be the same unless these have changed nothing yet, because
        their memory says how to undo it.
        """
        has_same_handlers = rule.handlers == self.rule.handlers or not any(self.memory.values())
        return has_same_handlers and rule.name == self.rule.name and rule.conditions == self.rule.conditions

    @property
    def prepared_at(self) -> datetime | None:
        """Time since which this VM is prepared; None until then."""
        if not self.rule.has_preparation:
            return self.seen_at
        return self.runs[EventStep.PREPARE].ended_at if self.is_done(EventStep.PREPARE) else None


class FinishedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event on which no work is left.

    Attributes:
        outcome: ``recovered``, ``canceled``, or ``observed`` if no rule matched.
        was_prepared: True if this VM was prepared before the event started; None if there was nothing to prepare.
    """

    event: Event
    rule: str
    outcome: str
    seen_at: datetime
    approved_at: datetime | None
    started_at: datetime | None
    gone_at: datetime | None
    was_prepared: bool | None
