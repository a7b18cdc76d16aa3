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

from forewarn.agent.agreement import ApprovalVerdict, PeerState
from forewarn.agent.record import ApprovalState, EventRecord, StepRunState
from forewarn.agent.rule import EventStep

__all__ = [
    "Action",
    "BeginStep",
    "ForgetEvent",
    "GiveUpStep",
    "Judgement",
    "ReportUnprepared",
    "SendApproval",
    "StopStep",
    "choose_final_step",
    "find_retryable_steps",
    "get_reported_state",
    "judge_record",
]


@dataclass(frozen=True, slots=True)
class BeginStep:
    """Begin a step."""

    step: EventStep


@dataclass(frozen=True, slots=True)
class StopStep:
    """Stop the running step and count it as failed."""

    step: EventStep
    reason: str


@dataclass(frozen=True, slots=True)
class GiveUpStep:
    """Count a step as failed without beginning it."""

    step: EventStep
    reason: str


@dataclass(frozen=True, slots=True)
class SendApproval:
    """Send the approval."""


@dataclass(frozen=True, slots=True)
class ReportUnprepared:
    """Report that the event started before this VM was prepared."""


@dataclass(frozen=True, slots=True)
class ForgetEvent:
    """Remove the record: nothing is left to do."""


Action: TypeAlias = BeginStep | StopStep | GiveUpStep | SendApproval | ReportUnprepared | ForgetEvent


@dataclass(frozen=True, slots=True)
class Judgement:
    """Decision about one event: an action, or a reason to wait.

    Attributes:
        reason: Reason in words, for `agent status` and the log.
        action: Action to take; None to wait.
        judge_again_at: Time at which time alone may change the judgement; None if it cannot.
    """

    reason: str
    action: Action | None = None
    judge_again_at: datetime | None = None


_BEGINNING = datetime.min.replace(tzinfo=UTC)

# More than the longest pause of `DecisionExecutor`, 8 s, so that only a clock that was set gives a later time.
_RETRY_MAX = timedelta(seconds=10)
"""Maximum delay before an approval that was not accepted is sent again."""

Agreement: TypeAlias = Callable[[EventRecord, datetime | None], ApprovalVerdict]
"""Decides if this VM may approve, given the time after which waiting is useless; see `agreement.may_approve`."""


def judge_record(
    record: EventRecord,
    now: datetime,
    margin: timedelta,
    check_agreement: Agreement,
    records: Iterable[EventRecord] = (),
) -> Judgement:
    """Decide what to do about the event.

    Args:
        record: Known facts about the event.
        now: Best estimate of the endpoint's time.
        margin: Time before NotBefore by which steps must end.
        check_agreement: Function that decides if this VM may approve for all VMs of the event.
        records: Records of all events.
    """
    cutoff = _compute_cutoff(record.event.not_before, margin)
    # A gone event was often Started before, so this test comes first.
    if record.gone_at is not None:
        judgement = _judge_gone(record)
    elif record.started_at is not None:
        judgement = _judge_started(record)
    else:
        judgement = _judge_preparation(record, now, cutoff) or _judge_approval(record, now, cutoff, check_agreement)
    if isinstance(judgement.action, BeginStep):
        step = judgement.action.step
        in_the_way = _find_conflicting_record(record, step, records)
        if in_the_way is not None:
            # Preparation is given up at the cutoff, so the judgement changes then. Undoing has no deadline.
            until = cutoff if step is EventStep.PREPARE and record.started_at is None else None
            return Judgement(
                f"step {in_the_way.running_step} of event {in_the_way.event.id} uses the same handler",
                judge_again_at=until,
            )
    return judgement


_UNDOING = frozenset({EventStep.RECOVER, EventStep.CANCELED})


def _find_conflicting_record(
    record: EventRecord, step: EventStep, records: Iterable[EventRecord]
) -> EventRecord | None:
    """Return the event for which a handler is currently doing the opposite of that step; None if there is none."""
    # Two preparations may overlap: the registry's order of looks determines which of them saw the original state.
    opposites = _UNDOING if step is EventStep.PREPARE else {EventStep.PREPARE} if step in _UNDOING else frozenset()
    return next(
        (
            other
            for other in records
            if other is not record
            and other.running_step in opposites
            # Hooks are not compared, because their settings do not show which resource they change.
            and any(handler in other.rule.handlers for handler in record.rule.handlers)
        ),
        None,
    )


def find_retryable_steps(record: EventRecord, now: datetime, margin: timedelta) -> tuple[EventStep, ...]:
    """Return the failed steps that would run again now, in order; it is too late for the others. See `judge_record`."""
    if record.gone_at is not None:
        in_time: tuple[EventStep, ...] = (EventStep.RECOVER, EventStep.CANCELED)
    elif record.started_at is not None:
        in_time = (EventStep.PREPARE, EventStep.STARTED)
    else:
        cutoff = _compute_cutoff(record.event.not_before, margin)
        is_late = cutoff is not None and now >= cutoff
        is_approved = record.approval is ApprovalState.ACCEPTED
        # Once the approval is accepted, the hooks before it have lost their purpose.
        in_time = (
            () if is_late else (EventStep.PREPARE,) if is_approved else (EventStep.PREPARE, EventStep.BEFORE_APPROVAL)
        )
    return tuple(step for step in in_time if record.has_failed(step))


def get_reported_state(record: EventRecord) -> PeerState:
    """Return the state of the event that this VM reports to its peers."""
    rule = record.rule
    is_preparing = not record.is_prepared and not record.has_failed(EventStep.PREPARE)
    # An operator's approval overrides rules that hold the event, and a failed preparation.
    if record.by_hand_at is not None:
        return PeerState.PREPARING if is_preparing else PeerState.PREPARED
    has_failed = record.has_failed(EventStep.PREPARE) or record.has_failed(EventStep.BEFORE_APPROVAL)
    # An operator decides, however long preparation takes: peers must not take a late VM for one that has failed.
    if rule.approve in {"never", "by-hand"} or (has_failed and rule.on_failure == "hold"):
        return PeerState.HELD
    return PeerState.PREPARING if is_preparing else PeerState.PREPARED


def _compute_cutoff(not_before: datetime | None, margin: timedelta) -> datetime | None:
    """Return the time by which steps before the approval must end; NotBefore may be any time, even near the minimum."""
    return None if not_before is None else not_before - min(margin, not_before - _BEGINNING)


def _judge_preparation(record: EventRecord, now: datetime, cutoff: datetime | None) -> Judgement | None:
    """Decide what is left to do before the approval; None if nothing is."""
    is_late = cutoff is not None and now >= cutoff
    if record.running_step is not None:
        # A step is stopped only once: it may still be within its grace period.
        if is_late and not record.is_stopping:
            return Judgement("no time is left", StopStep(record.running_step, "NotBefore is near"))
        return Judgement(f"step {record.running_step} is running", judge_again_at=None if is_late else cutoff)
    if not record.rule.has_preparation or record.is_done(EventStep.PREPARE) or record.has_failed(EventStep.PREPARE):
        return None
    if is_late:
        # Recorded as failed, so that alert hooks report it, and `on_failure` decides about the approval.
        return Judgement("no time is left to prepare", GiveUpStep(EventStep.PREPARE, "NotBefore is near"))
    return Judgement("it is announced", BeginStep(EventStep.PREPARE))


def _judge_approval(  # noqa: PLR0911 - one return for each reason to wait
    record: EventRecord, now: datetime, cutoff: datetime | None, check_agreement: Agreement
) -> Judgement:
    """Decide what to do about the approval, now that preparation has ended."""
    if record.approval is ApprovalState.ACCEPTED:
        return Judgement("approved; it starts when all have approved, or at NotBefore")
    # An operator's approval overrides the rule and the peers, but not the hooks before the approval.
    if record.by_hand_at is None:
        objection = _find_objection(record, cutoff, check_agreement)
        if objection is not None:
            return objection
    # Only when all objections are settled, because these hooks do what is to happen as late as possible.
    if record.rule.before_approval and not record.is_done(EventStep.BEFORE_APPROVAL):
        has_failed = record.has_failed(EventStep.BEFORE_APPROVAL)
        if not has_failed and (cutoff is None or now < cutoff):
            return Judgement("the approval is due", BeginStep(EventStep.BEFORE_APPROVAL))
        if record.rule.on_failure == "hold" and record.by_hand_at is None:
            what = "a before-approval hook failed" if has_failed else "no time is left for before-approval hooks"
            retry = "; fix it, then run `forewarn agent retry`" if has_failed else ""
            return Judgement(f"held: {what}{retry}; it starts at NotBefore")
    # No time limit is needed: the request has one, and its task then records ACCEPTED or NONE.
    if record.approval is ApprovalState.SENDING:
        return Judgement("sending the approval")
    # A time further ahead comes from a clock that has been set back since.
    if record.approve_again_at is not None and now < record.approve_again_at <= now + _RETRY_MAX:
        return Judgement("the endpoint did not accept the approval; retrying", judge_again_at=record.approve_again_at)
    return Judgement("ready", SendApproval())


_UNWILLING = {
    "never": "the rule never approves; it starts at NotBefore",
    "by-hand": "waiting for `forewarn agent approve`",
}


def _find_objection(record: EventRecord, cutoff: datetime | None, check_agreement: Agreement) -> Judgement | None:
    """Return the reason not to approve yet; None if there is none."""
    rule = record.rule
    if rule.approve in _UNWILLING:
        return Judgement(_UNWILLING[rule.approve])
    if record.has_failed(EventStep.PREPARE) and rule.on_failure == "hold":
        return Judgement("held: preparation failed; fix it, then run `forewarn agent retry`; it starts at NotBefore")
    verdict = check_agreement(record, cutoff)
    return None if verdict.may_approve else Judgement(verdict.reason, judge_again_at=verdict.ask_again_at)


def _judge_started(record: EventRecord) -> Judgement:
    rule = record.rule
    # Reported before a late preparation begins, because its success would hide that the VM was not ready in time.
    if rule.has_preparation and not record.is_done(EventStep.PREPARE) and not record.is_reported_unprepared:
        return Judgement("it started before this VM was prepared", ReportUnprepared())
    if record.running_step is not None:
        return Judgement(f"started; step {record.running_step} is running")
    # The impact may still come, and others may follow (R80), so a late drain is better than none.
    if _can_still_prepare(record):
        return Judgement("it started before this VM was prepared", BeginStep(EventStep.PREPARE))
    run = record.runs.get(EventStep.STARTED)
    # Hooks run in any case. Handlers hear of the start only if they may have changed something.
    has_work = bool(rule.started or (rule.handlers and record.has_begun_to_prepare))
    if has_work and (run is None or run.state is StepRunState.INTERRUPTED):
        return Judgement("it has started", BeginStep(EventStep.STARTED))
    return Judgement("started; recovery begins when it is gone")


def _can_still_prepare(record: EventRecord) -> bool:
    """Return True if preparing never began or is to be run again; a failed preparation is not retried automatically."""
    run = record.runs.get(EventStep.PREPARE)
    return record.rule.has_preparation and (run is None or run.tries == 0 or run.state is StepRunState.INTERRUPTED)


def _judge_gone(record: EventRecord) -> Judgement:
    running = record.running_step
    if running is not None:
        # Undoing always runs to its end. Any other step has lost its purpose, and would work against the undoing.
        may_go_on = record.is_stopping or running in _UNDOING
        return (
            Judgement(f"step {running} is running")
            if may_go_on
            else Judgement("it is over", StopStep(running, "the event is gone"))
        )
    # A final step once begun is kept: an answer to an approval may arrive later, and would change the choice.
    ended = next((step for step in (EventStep.RECOVER, EventStep.CANCELED) if step in record.runs), None)
    if ended is None:
        step = choose_final_step(record)
        is_unprepared = (
            step is EventStep.RECOVER and record.rule.has_preparation and not record.is_done(EventStep.PREPARE)
        )
        if is_unprepared and not record.is_reported_unprepared:
            return Judgement("it came and went before this VM was prepared", ReportUnprepared())
        return Judgement("it is gone", BeginStep(step) if _requires_step(record, step) else ForgetEvent())
    if record.is_done(ended):
        return Judgement("all steps are done", ForgetEvent())
    # The record stays, and keeps a drained VM out of service on /drainz, because nothing has put it back yet.
    if record.has_failed(ended):
        return Judgement(f"step {ended} failed; fix it, then run `forewarn agent retry`")
    return Judgement("it was interrupted", BeginStep(ended))


def choose_final_step(record: EventRecord) -> EventStep:
    """Return the last step of an event that is gone.

    An event that was approved, or whose NotBefore has passed, must be assumed to be over, not cancelled.
    """
    not_before = record.event.not_before
    is_over = (
        record.started_at is not None
        or record.approval is ApprovalState.ACCEPTED
        # At NotBefore it starts without an approval (R76), and may have ended before the next poll.
        or (not_before is not None and record.gone_at is not None and record.gone_at >= not_before)
    )
    return EventStep.RECOVER if is_over else EventStep.CANCELED


def _requires_step(record: EventRecord, step: EventStep) -> bool:
    """Return True if there is anything to undo, or any hook to run."""
    # Nothing was changed, so only the recover hooks of an event that did hit the VM are left to run.
    if record.rule.has_preparation and not record.has_begun_to_prepare:
        return step is EventStep.RECOVER and bool(record.rule.recover)
    return bool(record.has_begun_to_prepare or record.rule.get_hooks(step))
