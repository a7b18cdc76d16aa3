"""Decisions about one event at one moment: a pure function of the known facts and the time.

It looks at levels, not at edges: asked again after a restart, a lost message or a change of the clock, it comes to the
same conclusion. Five rules:

1. Nothing is approved before it is prepared, unless the rule says so.
2. What was begun is undone once the event is gone, and not before.
3. There is one step at a time, and a step before the approval ends by NotBefore less the margin.
4. No event puts back into service what another is taking out at the same moment: each waits for the other to end.
5. An event that starts before anything was begun is still prepared: late, without an approval, and as well as possible.

Spec: R75 to R81, R100 to R104
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from forewarn.agent.record import Approval, Record, RunState
from forewarn.agent.rule import Step
from forewarn.agent.together import PeerState, Verdict

__all__ = [
    "Action",
    "Approve",
    "Begin",
    "Forget",
    "GiveUp",
    "Judgement",
    "ReportUnprepared",
    "Stop",
    "ending",
    "judge",
    "retryable",
    "standing",
]


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin a step."""

    step: Step


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the running step and count it as failed."""

    step: Step
    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Count a step as failed without beginning it."""

    step: Step
    reason: str


@dataclass(frozen=True, slots=True)
class Approve:
    """Send the approval."""


@dataclass(frozen=True, slots=True)
class ReportUnprepared:
    """Report that the event started before this VM was prepared."""


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove the record: nothing is left to do."""


Action: TypeAlias = Begin | Stop | GiveUp | Approve | ReportUnprepared | Forget


@dataclass(frozen=True, slots=True)
class Judgement:
    """Decision about one event: an action, or a reason to wait.

    Attributes:
        action: Action to take; None to wait.
        look_again_at: Time at which time alone may change the judgement; None if it cannot.
        why: Reason in words, for `agent status` and the log.
    """

    action: Action | None
    look_again_at: datetime | None
    why: str


_BEGINNING = datetime.min.replace(tzinfo=UTC)

_RETRY_MAX = timedelta(seconds=10)
"""Maximum delay before an approval that was not accepted is sent again."""

Agreement: TypeAlias = Callable[[Record, datetime | None], Verdict]
"""Decides if this VM may approve, given the time after which waiting is useless; see `together.may_approve`."""


def judge(
    record: Record, now: datetime, margin: timedelta, agree: Agreement, others: Iterable[Record] = ()
) -> Judgement:
    """Decide what to do about the event.

    Args:
        record: Known facts about the event.
        now: Best estimate of the endpoint's time.
        margin: Time before NotBefore by which steps must end.
        agree: Function that decides if this VM may approve for all VMs of the event.
        others: Records of all events.
    """
    cutoff = _cutoff(record.event.not_before, margin)
    judgement = _judge_alone(record, now, cutoff, agree)
    if isinstance(judgement.action, Begin):
        step = judgement.action.step
        in_the_way = _crossing(record, step, others)
        if in_the_way is not None:
            until = cutoff if step is Step.PREPARE and record.started_at is None else None
            return _wait(f"step {in_the_way.running} of event {in_the_way.event.id} uses the same handler", until)
    return judgement


def _judge_alone(record: Record, now: datetime, cutoff: datetime | None, agree: Agreement) -> Judgement:
    if record.gone_at is not None:
        return _gone(record)
    if record.started_at is not None:
        return _started(record)
    return _preparing(record, now, cutoff) or _approving(record, now, cutoff, agree)


_UNDOING = frozenset({Step.RECOVER, Step.CANCELED})


def _crossing(record: Record, step: Step, others: Iterable[Record]) -> Record | None:
    """Return the event for which a handler is currently doing the opposite of that step; None if there is none."""
    opposites = _UNDOING if step is Step.PREPARE else {Step.PREPARE} if step in _UNDOING else frozenset()
    return next(
        (
            other
            for other in others
            if other is not record
            and other.running in opposites
            and any(handler in other.rule.handlers for handler in record.rule.handlers)
        ),
        None,
    )


def retryable(record: Record, now: datetime, margin: timedelta) -> tuple[Step, ...]:
    """Return the failed steps that would run again now, in order; it is too late for the others.

    Args:
        record: Known facts about the event.
        now: Best estimate of the endpoint's time.
        margin: Time before NotBefore by which steps must end.
    """
    if record.gone_at is not None:
        in_time: tuple[Step, ...] = (Step.RECOVER, Step.CANCELED)
    elif record.started_at is not None:
        in_time = (Step.PREPARE, Step.STARTED)
    else:
        cutoff = _cutoff(record.event.not_before, margin)
        is_late = cutoff is not None and now >= cutoff
        is_approved = record.approval is Approval.ACCEPTED
        in_time = () if is_late else (Step.PREPARE,) if is_approved else (Step.PREPARE, Step.BEFORE_APPROVAL)
    return tuple(step for step in in_time if record.has_failed(step))


def standing(record: Record) -> PeerState:
    """Return the state of the event that this VM reports to its peers."""
    rule = record.rule
    is_preparing = not record.is_prepared and not record.has_failed(Step.PREPARE)
    if record.by_hand_at is not None:
        return PeerState.PREPARING if is_preparing else PeerState.PREPARED
    has_failed = record.has_failed(Step.PREPARE) or record.has_failed(Step.BEFORE_APPROVAL)
    if rule.approve == "never" or (has_failed and rule.on_failure == "hold"):
        return PeerState.HELD
    if is_preparing:
        return PeerState.PREPARING
    return PeerState.HELD if rule.approve == "by-hand" else PeerState.PREPARED


def _cutoff(not_before: datetime | None, margin: timedelta) -> datetime | None:
    """Return the time by which steps before the approval must end; NotBefore may be any time, even near the minimum."""
    return None if not_before is None else not_before - min(margin, not_before - _BEGINNING)


def _wait(why: str, until: datetime | None = None) -> Judgement:
    return Judgement(None, until, why)


def _do(action: Action, why: str) -> Judgement:
    return Judgement(action, None, why)


def _preparing(record: Record, now: datetime, cutoff: datetime | None) -> Judgement | None:
    """Decide what is left to do before the approval; None if nothing is."""
    is_late = cutoff is not None and now >= cutoff
    if record.running is not None:
        if is_late and not record.is_stopping:
            return _do(Stop(record.running, "NotBefore is near"), "no time is left")
        return _wait(f"step {record.running} is running", None if is_late else cutoff)
    if not record.rule.has_preparation or record.is_done(Step.PREPARE) or record.has_failed(Step.PREPARE):
        return None
    if is_late:
        return _do(GiveUp(Step.PREPARE, "NotBefore is near"), "no time is left to prepare")
    return _do(Begin(Step.PREPARE), "it is announced")


def _approving(  # noqa: PLR0911 - one return for each reason to wait
    record: Record, now: datetime, cutoff: datetime | None, agree: Agreement
) -> Judgement:
    """Decide what to do about the approval, now that preparation has ended."""
    if record.approval is Approval.ACCEPTED:
        return _wait("approved; it starts when all have approved, or at NotBefore")
    if record.by_hand_at is None:
        objection = _objection(record, cutoff, agree)
        if objection is not None:
            return objection
    if record.rule.before_approval and not record.is_done(Step.BEFORE_APPROVAL):
        has_failed = record.has_failed(Step.BEFORE_APPROVAL)
        if not has_failed and (cutoff is None or now < cutoff):
            return _do(Begin(Step.BEFORE_APPROVAL), "the approval is due")
        if record.rule.on_failure == "hold" and record.by_hand_at is None:
            what = "a hook before the approval failed" if has_failed else "no time is left for hooks before it"
            retry = "; mend it, then run `forewarn agent retry`" if has_failed else ""
            return _wait(f"held: {what}{retry}; it starts at NotBefore")
    if record.approval is Approval.SENDING:
        return _wait("the approval is on its way")
    # A time further ahead comes from a clock that has been set back since.
    if record.approve_again_at is not None and now < record.approve_again_at <= now + _RETRY_MAX:
        return _wait("the endpoint did not take the approval; it is sent again", record.approve_again_at)
    return _do(Approve(), "ready")


_UNWILLING = {
    "never": "the rule never approves; it starts at NotBefore",
    "by-hand": "waiting for `forewarn agent approve`",
}


def _objection(record: Record, cutoff: datetime | None, agree: Agreement) -> Judgement | None:
    """Return the reason not to approve yet; None if there is none."""
    rule = record.rule
    if rule.approve in _UNWILLING:
        return _wait(_UNWILLING[rule.approve])
    if record.has_failed(Step.PREPARE) and rule.on_failure == "hold":
        return _wait("held: preparing failed; mend it, then run `forewarn agent retry`; it starts at NotBefore")
    verdict = agree(record, cutoff)
    return None if verdict.may else _wait(verdict.why, verdict.at)


def _started(record: Record) -> Judgement:
    rule = record.rule
    if rule.has_preparation and not record.is_done(Step.PREPARE) and not record.is_reported_unprepared:
        return _do(ReportUnprepared(), "it started before this VM was prepared")
    if record.running is not None:
        return _wait(f"started; step {record.running} is running")
    if _can_still_prepare(record):
        return _do(Begin(Step.PREPARE), "it started before this VM was prepared")
    run = record.run(Step.STARTED)
    has_work = bool(rule.started or (rule.handlers and record.has_begun_to_prepare))
    if has_work and (run is None or run.state is RunState.INTERRUPTED):
        return _do(Begin(Step.STARTED), "it has started")
    return _wait("started; recovery begins when it is gone")


def _can_still_prepare(record: Record) -> bool:
    """Return True if preparing never began or is to be run again; a failed preparation is not retried automatically."""
    run = record.run(Step.PREPARE)
    return record.rule.has_preparation and (run is None or run.tries == 0 or run.state is RunState.INTERRUPTED)


def _gone(record: Record) -> Judgement:
    running = record.running
    if running is not None:
        may_go_on = record.is_stopping or running in _UNDOING
        return (
            _wait(f"step {running} is running") if may_go_on else _do(Stop(running, "the event is gone"), "it is over")
        )
    ended = next((step for step in (Step.RECOVER, Step.CANCELED) if step in record.runs), None)
    if ended is None:
        step = ending(record)
        is_unprepared = step is Step.RECOVER and record.rule.has_preparation and not record.is_done(Step.PREPARE)
        if is_unprepared and not record.is_reported_unprepared:
            return _do(ReportUnprepared(), "it came and went before this VM was prepared")
        return _do(Begin(step) if _needs(record, step) else Forget(), "it is gone")
    if record.is_done(ended):
        return _do(Forget(), "all is done")
    if record.has_failed(ended):
        return _wait(f"step {ended} failed; mend it, then run `forewarn agent retry`")
    return _do(Begin(ended), "it was interrupted")


def ending(record: Record) -> Step:
    """Return the last step of an event that is gone.

    An event that was approved, or whose NotBefore has passed, must be assumed to be over, not cancelled.
    """
    not_before = record.event.not_before
    is_over = (
        record.started_at is not None
        or record.approval is Approval.ACCEPTED
        or (not_before is not None and record.gone_at is not None and record.gone_at >= not_before)
    )
    return Step.RECOVER if is_over else Step.CANCELED


def _needs(record: Record, step: Step) -> bool:
    """Return True if there is anything to undo, or any hook to run."""
    if record.rule.has_preparation and not record.has_begun_to_prepare:
        return step is Step.RECOVER and bool(record.rule.recover)
    return bool(record.has_begun_to_prepare or record.rule.hooks(step))
