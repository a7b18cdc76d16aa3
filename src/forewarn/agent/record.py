"""What the agent knows of one event: everything that has to survive a restart. Values only; `judgement` reads them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from forewarn.agent.rule import Rule, Step
from forewarn.wire.document import Event

__all__ = ["Approval", "Finished", "Record", "Run", "RunState"]


class RunState(StrEnum):
    """How far a step has come."""

    RUNNING = "running"
    STOPPING = "stopping"
    """It was told to end before its time, and has failed once it has."""

    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    """It is to be run again: the agent was killed meanwhile, or an operator wants it retried."""


class Approval(StrEnum):
    """How far the approval has come."""

    NONE = "none"
    SENDING = "sending"
    """It may have reached the endpoint."""

    ACCEPTED = "accepted"
    """The endpoint answered 200."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one step.

    Attributes:
        tries: How often it was begun; 0 when it was given up before.
        reason: Why it failed; empty otherwise.
        output: The end of what its hooks printed.
        exit_status: Of the command that failed, negative for a signal; None when no command did.
        has_timed_out: Whether it failed because something took longer than its time-out.
    """

    state: RunState
    began_at: datetime
    ended_at: datetime | None = None
    tries: int = 1
    reason: str = ""
    output: str = ""
    exit_status: int | None = None
    has_timed_out: bool = False


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One event, from when it is seen first until nothing is left to do about it.

    Attributes:
        event: As it was seen last.
        rule: The one that matched when it was seen first: a new configuration must not forget how to undo.
        seen_at: When it was seen first.
        started_at: When it was seen Started; None while it was not.
        gone_at: When it was seen gone; None while it is there.
        runs: What became of each step that was begun.
        approval: How far it has come.
        approved_at: When the endpoint took it.
        approval_failures: How often it did not, in a row.
        approve_again_at: When to send the approval again after a failure.
        by_hand_at: When an operator approved it.
        is_reported_unprepared: Whether it was reported as started before this VM was prepared.
        memory: What built-in handlers remember, by their place in the rule.
        looks: In which order they began to, among those of all events: the first has seen how things were before.
    """

    event: Event
    rule: Rule
    seen_at: datetime
    started_at: datetime | None = None
    gone_at: datetime | None = None
    runs: dict[Step, Run] = {}
    approval: Approval = Approval.NONE
    approved_at: datetime | None = None
    approval_failures: int = 0
    approve_again_at: datetime | None = None
    by_hand_at: datetime | None = None
    is_reported_unprepared: bool = False
    memory: dict[str, dict[str, Any]] = {}
    looks: dict[str, int] = {}

    def run(self, step: Step) -> Run | None:
        """What became of that step; None while it was not begun."""
        return self.runs.get(step)

    def is_done(self, step: Step) -> bool:
        """Whether that step succeeded."""
        run = self.runs.get(step)
        return run is not None and run.state is RunState.DONE

    def has_failed(self, step: Step) -> bool:
        """Whether that step was given up."""
        run = self.runs.get(step)
        return run is not None and run.state is RunState.FAILED

    @property
    def failed(self) -> tuple[Step, ...]:
        """The steps that were given up."""
        return tuple(step for step in self.runs if self.has_failed(step))

    @property
    def running(self) -> Step | None:
        """The step that is under way; there is one at a time."""
        under_way = {RunState.RUNNING, RunState.STOPPING}
        return next((step for step, run in self.runs.items() if run.state in under_way), None)

    @property
    def is_stopping(self) -> bool:
        """Whether the step that is under way was told to end."""
        return any(run.state is RunState.STOPPING for run in self.runs.values())

    @property
    def is_prepared(self) -> bool:
        """Whether everything that the rule wants done before the impact is done."""
        return not self.rule.has_preparation or self.is_done(Step.PREPARE)

    @property
    def has_begun_to_prepare(self) -> bool:
        """Whether there may be something to undo."""
        run = self.runs.get(Step.PREPARE)
        return run is not None and run.tries > 0

    def is_mended_by(self, rule: Rule) -> bool:
        """Whether a retry may go on with that rule of a newer configuration instead of its own.

        It has to be about the same events. Its handlers have to be the same unless these have changed nothing yet, for
        what they remember says how to undo it.
        """
        has_same_handlers = rule.handlers == self.rule.handlers or not any(self.memory.values())
        return has_same_handlers and rule.name == self.rule.name and rule.conditions == self.rule.conditions

    @property
    def ready_at(self) -> datetime | None:
        """Since when this VM is prepared; None while it is not."""
        if not self.rule.has_preparation:
            return self.seen_at
        run = self.runs.get(Step.PREPARE)
        return run.ended_at if run is not None and run.state is RunState.DONE else None


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """An event about which nothing is left to do.

    Attributes:
        outcome: ``recovered``, ``canceled``, or ``observed`` when no rule matched.
        was_prepared: Whether this VM was prepared before it started; None when there was nothing to prepare.
    """

    event: Event
    rule: str
    outcome: str
    seen_at: datetime
    approved_at: datetime | None
    started_at: datetime | None
    gone_at: datetime | None
    was_prepared: bool | None
