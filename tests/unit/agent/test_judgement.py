from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest

from forewarn.agent.agreement import ApprovalVerdict, PeerState
from forewarn.agent.handlers import FileHandler
from forewarn.agent.judgement import (
    Action,
    BeginStep,
    ForgetEvent,
    GiveUpStep,
    Judgement,
    ReportUnprepared,
    SendApproval,
    StopStep,
    choose_final_step,
    find_retryable_steps,
    get_reported_state,
    judge_record,
)
from forewarn.agent.record import ApprovalState, EventRecord, StepRun, StepRunState
from forewarn.agent.rule import EventStep, Rule
from tests.support.records import DRAIN, NOT_BEFORE, NOW, B, a_record, a_run, after

S = StepRunState
MARGIN = timedelta(seconds=5)
CUTOFF = NOT_BEFORE - MARGIN
PREPARE, BEFORE, STARTED, RECOVER, CANCELED = (
    EventStep.PREPARE,
    EventStep.BEFORE_APPROVAL,
    EventStep.STARTED,
    EventStep.RECOVER,
    EventStep.CANCELED,
)
PREPARING = Rule(prepare=(DRAIN,), recover=(DRAIN,))
AT_ONCE = Rule(approve="at-once")
OTHER = {"id": B}
HANDLED = Rule(handlers=(FileHandler(touch="/run/drain"),))


def judged(
    record: EventRecord,
    now: datetime = NOW,
    verdict: ApprovalVerdict | None = None,
    others: tuple[EventRecord, ...] = (),
) -> Judgement:
    return judge_record(
        record,
        now,
        MARGIN,
        lambda _record, _cutoff: verdict or ApprovalVerdict(may_approve=True, reason="all agree"),
        others,
    )


def action(record: EventRecord, now: datetime = NOW) -> Action | None:
    return judged(record, now).action


def waiting(record: EventRecord, now: datetime = NOW) -> tuple[str, datetime | None]:
    judgement = judged(record, now)
    assert judgement.action is None
    return judgement.reason, judgement.judge_again_at


# While it is announced


def test_what_is_announced_is_prepared_for() -> None:
    assert action(a_record(PREPARING)) == BeginStep(PREPARE)


def test_preparing_goes_on_until_shortly_before_not_before() -> None:
    record = a_record(PREPARING, runs={PREPARE: S.RUNNING})
    assert waiting(record) == ("step prepare is running", CUTOFF)
    assert action(record, CUTOFF) == StopStep(PREPARE, "NotBefore is near")


def test_a_step_that_was_told_to_end_is_told_once() -> None:
    record = a_record(PREPARING, runs={PREPARE: S.STOPPING})
    assert waiting(record, CUTOFF) == ("step prepare is running", None)
    assert waiting(record, after(minutes=1)) == ("step prepare is running", CUTOFF)


@pytest.mark.parametrize("state", [S.RUNNING, S.STOPPING])
@pytest.mark.parametrize("undoing", [RECOVER, CANCELED])
def test_who_is_to_take_out_of_service_waits_for_who_puts_back(undoing: EventStep, state: StepRunState) -> None:
    """Otherwise it would find the VM out of service, and have nothing to do, just before it is put back."""
    other = a_record(HANDLED, event=OTHER, gone_at=NOW, runs={PREPARE: S.DONE, undoing: state})
    record = a_record(HANDLED)
    waits = Judgement(f"step {undoing} of event {B} uses the same handler", None, CUTOFF)
    assert judged(record, others=(other, record)) == waits
    assert judged(record, CUTOFF, others=(other, record)).action == GiveUpStep(PREPARE, "NotBefore is near")


def test_who_is_to_put_back_waits_for_who_takes_out_of_service() -> None:
    """Meanwhile, however long, it is not judged over and over again."""
    other = a_record(HANDLED, event=OTHER, runs={PREPARE: S.RUNNING})
    gone = a_record(HANDLED, gone_at=NOW, runs={PREPARE: S.DONE})
    assert judged(gone, others=(gone, other)) == Judgement(f"step prepare of event {B} uses the same handler")


@pytest.mark.parametrize(
    ("rule", "runs"),
    [
        pytest.param(Rule(handlers=(FileHandler(touch="/run/other"),)), {RECOVER: S.RUNNING}, id="another handler"),
        pytest.param(PREPARING, {RECOVER: S.RUNNING}, id="no handler"),
        pytest.param(HANDLED, {RECOVER: S.DONE}, id="has put back"),
        pytest.param(HANDLED, {RECOVER: S.FAILED}, id="could not put back"),
        pytest.param(HANDLED, {STARTED: S.RUNNING}, id="does neither"),
        pytest.param(HANDLED, {PREPARE: S.RUNNING}, id="takes out of service too"),
    ],
)
def test_otherwise_nobody_waits_for_another_event(rule: Rule, runs: dict[EventStep, StepRunState]) -> None:
    others = (a_record(rule, event=OTHER, runs=runs),)
    assert judged(a_record(HANDLED), others=others).action == BeginStep(PREPARE)


def test_what_is_announced_too_late_is_not_prepared_for() -> None:
    record = a_record(PREPARING)
    assert action(record, CUTOFF) == GiveUpStep(PREPARE, "NotBefore is near")
    assert action(record, CUTOFF - timedelta(microseconds=1)) == BeginStep(PREPARE)


def test_without_not_before_there_is_time() -> None:
    record = a_record(PREPARING, {"not_before": None})
    assert action(record, after(days=365)) == BeginStep(PREPARE)
    running = a_record(PREPARING, {"not_before": None}, {PREPARE: S.RUNNING})
    assert waiting(running, after(days=365)) == ("step prepare is running", None)


def test_a_not_before_at_the_beginning_of_time_is_a_moment_like_any_other() -> None:
    """R105: an endpoint that has no moment to tell may send one of its own."""
    record = a_record(PREPARING, {"not_before": datetime.min.replace(tzinfo=UTC)})
    assert action(record) == GiveUpStep(PREPARE, "NotBefore is near")


def test_what_was_interrupted_is_run_again() -> None:
    assert action(a_record(PREPARING, runs={PREPARE: S.INTERRUPTED})) == BeginStep(PREPARE)


# Once it is ready


def test_nothing_is_approved_before_it_is_prepared() -> None:
    """R102: approve when prepared."""
    record = a_record(PREPARING, runs={PREPARE: S.RUNNING})
    assert action(record) is None
    assert action(a_record(PREPARING, runs={PREPARE: S.DONE})) == SendApproval()


def test_what_needs_no_preparation_is_approved_at_once() -> None:
    """R102."""
    assert action(a_record(AT_ONCE)) == SendApproval()
    assert action(a_record(Rule())) == SendApproval()


def test_an_approval_is_sent_once_and_watched_on() -> None:
    """R104: it keeps watching after the approval."""
    assert waiting(a_record(AT_ONCE, approval=ApprovalState.SENDING)) == ("sending the approval", None)
    accepted = a_record(AT_ONCE, approval=ApprovalState.ACCEPTED)
    assert waiting(accepted) == ("approved; it starts when all have approved, or at NotBefore", None)
    started = a_record(Rule(started=(DRAIN,)), approval=ApprovalState.ACCEPTED, started_at=NOW)
    assert action(started) == BeginStep(STARTED)
    gone = a_record(PREPARING, runs={PREPARE: S.DONE}, approval=ApprovalState.ACCEPTED, gone_at=NOW)
    assert action(gone) == BeginStep(RECOVER)


def test_an_approval_that_was_not_taken_is_sent_again_after_a_pause() -> None:
    record = a_record(AT_ONCE, approval_failures=1, approve_again_at=after(seconds=1))
    assert waiting(record) == ("the endpoint did not accept the approval; retrying", after(seconds=1))
    assert action(record, after(seconds=1)) == SendApproval()


@pytest.mark.parametrize(
    ("approve", "why"),
    [
        ("never", "the rule never approves; it starts at NotBefore"),
        ("by-hand", "waiting for `forewarn agent approve`"),
    ],
)
def test_what_a_person_decides_waits_for_that_person(approve: Literal["never", "by-hand"], why: str) -> None:
    rule = Rule(approve=approve, prepare=(DRAIN,))
    assert action(a_record(rule)) == BeginStep(PREPARE)
    record = a_record(rule, runs={PREPARE: S.DONE})
    assert waiting(record) == (why, None)
    assert action(a_record(rule, runs={PREPARE: S.DONE}, by_hand_at=NOW)) == SendApproval()


def test_a_person_who_approves_does_not_cut_preparing_short() -> None:
    assert action(a_record(PREPARING, by_hand_at=NOW)) == BeginStep(PREPARE)
    assert action(a_record(PREPARING, runs={PREPARE: S.RUNNING}, by_hand_at=NOW)) is None


def test_what_could_not_be_prepared_is_held_unless_the_rule_or_a_person_says_otherwise() -> None:
    failed = {PREPARE: S.FAILED}
    held = "held: preparation failed; fix it, then run `forewarn agent retry`; it starts at NotBefore"
    assert waiting(a_record(PREPARING, runs=failed)) == (held, None)
    assert action(a_record(PREPARING, runs=failed, by_hand_at=NOW)) == SendApproval()
    assert action(a_record(Rule(prepare=(DRAIN,), on_failure="approve"), runs=failed)) == SendApproval()


def test_the_peers_have_a_say() -> None:
    """R50, R103."""
    soon = after(seconds=9)
    judgement = judged(
        a_record(AT_ONCE), verdict=ApprovalVerdict(may_approve=False, ask_again_at=soon, reason="after you")
    )
    assert judgement == Judgement("after you", None, soon)
    by_hand = judged(a_record(AT_ONCE, by_hand_at=NOW), verdict=ApprovalVerdict(may_approve=False, reason="after you"))
    assert by_hand.action == SendApproval()


def test_the_peers_are_asked_with_the_moment_after_which_it_is_not_worth_while() -> None:
    asked: list[datetime | None] = []

    def agree(_record: EventRecord, cutoff: datetime | None) -> ApprovalVerdict:
        asked.append(cutoff)
        return ApprovalVerdict(may_approve=True, reason="")

    for not_before in (NOT_BEFORE, None):
        judge_record(a_record(AT_ONCE, {"not_before": not_before}), NOW, MARGIN, agree)
    assert asked == [CUTOFF, None]


# Just before the approval

LAST_CALL = Rule(before_approval=(DRAIN,))


def test_hooks_before_the_approval_run_when_everything_else_is_settled() -> None:
    assert action(a_record(LAST_CALL)) == BeginStep(BEFORE)
    judgement = judged(a_record(LAST_CALL), verdict=ApprovalVerdict(may_approve=False, reason="after you"))
    assert judgement.action is None
    assert action(a_record(LAST_CALL, runs={BEFORE: S.DONE})) == SendApproval()


def test_hooks_before_the_approval_run_again_after_an_interruption() -> None:
    assert action(a_record(LAST_CALL, runs={BEFORE: S.INTERRUPTED})) == BeginStep(BEFORE)


def test_a_hook_before_the_approval_that_failed_holds_it_unless_told_otherwise() -> None:
    failed = {BEFORE: S.FAILED}
    assert waiting(a_record(LAST_CALL, runs=failed))[0] == (
        "held: a before-approval hook failed; fix it, then run `forewarn agent retry`; it starts at NotBefore"
    )
    assert action(a_record(LAST_CALL, runs=failed, by_hand_at=NOW)) == SendApproval()
    assert action(a_record(Rule(before_approval=(DRAIN,), on_failure="approve"), runs=failed)) == SendApproval()


def test_hooks_before_the_approval_do_not_begin_when_there_is_no_time_for_them() -> None:
    assert waiting(a_record(LAST_CALL), CUTOFF)[0] == (
        "held: no time is left for before-approval hooks; it starts at NotBefore"
    )
    assert action(a_record(Rule(before_approval=(DRAIN,), on_failure="approve")), CUTOFF) == SendApproval()
    assert action(a_record(LAST_CALL, {"not_before": None}), after(days=9)) == BeginStep(BEFORE)


# Once it has started


APPEARED = {"status": "Started", "not_before": None}


@pytest.mark.parametrize("runs", [{}, {PREPARE: a_run(S.FAILED, tries=0)}])
def test_what_starts_before_anything_is_prepared_is_reported_and_prepared_for_at_once(
    runs: dict[EventStep, StepRun],
) -> None:
    """R73, R77, R78, R90: a host that fails, an eviction without notice, a notice too short to begin."""
    record = a_record(PREPARING, APPEARED, runs, started_at=NOW)
    assert action(record) == ReportUnprepared()
    reported = a_record(PREPARING, APPEARED, runs, started_at=NOW, is_reported_unprepared=True)
    assert action(reported) == BeginStep(PREPARE)


def test_what_is_prepared_late_takes_its_time_then_hears_of_the_start_and_is_never_approved() -> None:
    def at(runs: dict[EventStep, StepRunState]) -> EventRecord:
        rule = Rule(handlers=HANDLED.handlers, before_approval=(DRAIN,))
        return a_record(rule, APPEARED, runs, started_at=NOW, is_reported_unprepared=True)

    assert waiting(at({PREPARE: S.RUNNING}), after(days=1)) == ("started; step prepare is running", None)
    for state in (S.DONE, S.FAILED):
        assert action(at({PREPARE: state})) == BeginStep(STARTED)
        assert waiting(at({PREPARE: state, STARTED: S.DONE})) == ("started; recovery begins when it is gone", None)


def test_what_is_prepared_late_is_undone_when_it_is_gone() -> None:
    members = {"started_at": NOW, "gone_at": after(minutes=1), "is_reported_unprepared": True}
    assert action(a_record(PREPARING, APPEARED, {PREPARE: S.RUNNING}, **members)) == StopStep(
        PREPARE, "the event is gone"
    )
    for state in (S.DONE, S.FAILED):
        assert action(a_record(PREPARING, APPEARED, {PREPARE: state}, **members)) == BeginStep(RECOVER)


def test_what_failed_or_was_stopped_before_the_start_is_not_begun_again() -> None:
    """R76: at NotBefore it starts, prepared or not."""
    record = a_record(PREPARING, runs={PREPARE: S.FAILED}, started_at=NOW)
    assert action(record) == ReportUnprepared()
    reported = a_record(PREPARING, runs={PREPARE: S.FAILED}, started_at=NOW, is_reported_unprepared=True)
    assert waiting(reported, after(days=1)) == ("started; recovery begins when it is gone", None)


def test_what_is_under_way_or_interrupted_when_it_starts_is_carried_on() -> None:
    """R80: the very impact may have restarted the agent, and another may follow."""

    def at(state: StepRunState) -> EventRecord:
        return a_record(PREPARING, runs={PREPARE: state}, started_at=NOW, is_reported_unprepared=True)

    assert waiting(at(S.RUNNING), after(days=1)) == ("started; step prepare is running", None)
    assert action(at(S.INTERRUPTED)) == BeginStep(PREPARE)


def test_who_prepares_late_waits_for_who_puts_back_and_is_not_judged_over_and_over_again() -> None:
    """Its NotBefore, where the endpoint still shows one, is over."""
    other = a_record(HANDLED, event=OTHER, gone_at=NOW, runs={PREPARE: S.DONE, RECOVER: S.RUNNING})
    record = a_record(HANDLED, started_at=NOW, is_reported_unprepared=True)
    waits = Judgement(f"step recover of event {B} uses the same handler")
    assert judged(record, after(days=1), others=(other, record)) == waits


def test_hooks_of_the_start_run_once() -> None:
    rule = Rule(started=(DRAIN,))
    assert action(a_record(rule, started_at=NOW)) == BeginStep(STARTED)
    assert action(a_record(rule, runs={STARTED: S.INTERRUPTED}, started_at=NOW)) == BeginStep(STARTED)
    for state in (S.DONE, S.FAILED):
        assert action(a_record(rule, runs={STARTED: state}, started_at=NOW)) is None


def test_handlers_hear_of_the_start_when_they_have_prepared() -> None:
    ready = a_record(HANDLED, runs={PREPARE: S.DONE}, started_at=NOW)
    assert action(ready) == BeginStep(STARTED)
    preparing = a_record(HANDLED, runs={PREPARE: S.RUNNING}, started_at=NOW, is_reported_unprepared=True)
    assert action(preparing) is None


def test_further_impacts_while_it_is_started_change_nothing() -> None:
    """R80, R82: the document does not change, and nothing happens but at its end."""
    record = a_record(PREPARING, {"status": "Started"}, {PREPARE: S.DONE}, started_at=NOW)
    assert {waiting(record, after(minutes=minutes)) for minutes in range(60)} == {
        ("started; recovery begins when it is gone", None)
    }


# Once it is gone


def test_recovery_begins_when_the_event_is_gone_and_not_before() -> None:
    """R79, R104."""
    record = a_record(PREPARING, {"status": "Started"}, {PREPARE: S.DONE}, started_at=NOW)
    assert action(record, after(days=1)) is None
    gone = a_record(PREPARING, {"status": "Started"}, {PREPARE: S.DONE}, started_at=NOW, gone_at=after(minutes=10))
    assert action(gone, after(minutes=10)) == BeginStep(RECOVER)


def test_a_reboot_that_turned_out_as_a_freeze_needs_nothing_but_the_removal() -> None:
    """R81: this VM was not restarted; it prepared before, and recovers when the event is gone, and that is all."""
    reboot = {"type": "Reboot", "status": "Started", "not_before": None}
    running = a_record(PREPARING, reboot, {PREPARE: S.DONE}, started_at=NOW)
    assert action(running) is None
    assert action(a_record(PREPARING, reboot, {PREPARE: S.DONE}, started_at=NOW, gone_at=NOW)) == BeginStep(RECOVER)


def test_what_was_cancelled_is_undone() -> None:
    """R77."""
    gone = a_record(PREPARING, runs={PREPARE: S.DONE}, gone_at=after(minutes=1))
    assert choose_final_step(gone) is CANCELED
    assert action(gone) == BeginStep(CANCELED)


@pytest.mark.parametrize(
    ("members", "event", "step"),
    [
        ({"started_at": NOW}, {}, RECOVER),
        ({"approval": ApprovalState.ACCEPTED}, {}, RECOVER),  # it was started and over between two looks
        ({"approval": ApprovalState.SENDING}, {}, CANCELED),
        ({"gone_at": NOT_BEFORE}, {}, RECOVER),
        ({"gone_at": NOT_BEFORE - timedelta(seconds=1)}, {}, CANCELED),
        ({}, {"not_before": None}, CANCELED),
    ],
)
def test_whoever_saw_it_approved_or_its_time_come_takes_it_for_over(
    members: dict[str, Any], event: dict[str, Any], step: EventStep
) -> None:
    record = a_record(PREPARING, event, {PREPARE: S.DONE}, **({"gone_at": NOW} | members))
    assert choose_final_step(record) is step
    assert action(record) == BeginStep(step)


def test_an_event_that_is_still_there_is_not_over_because_its_time_has_come() -> None:
    assert choose_final_step(a_record(PREPARING)) is CANCELED


@pytest.mark.parametrize("step", [PREPARE, BEFORE, STARTED])
def test_what_is_under_way_when_the_event_goes_is_stopped_first(step: EventStep) -> None:
    rule = Rule(prepare=(DRAIN,), before_approval=(DRAIN,), started=(DRAIN,))
    before = {PREPARE: S.DONE} if step is not PREPARE else {}
    gone = a_record(rule, runs=before | {step: S.RUNNING}, gone_at=NOW)
    assert action(gone) == StopStep(step, "the event is gone")
    stopping = a_record(rule, runs=before | {step: S.STOPPING}, gone_at=NOW)
    assert waiting(stopping) == (f"step {step} is running", None)
    stopped = a_record(rule, runs=before | {step: S.FAILED}, gone_at=NOW)
    assert action(stopped) == BeginStep(CANCELED)


@pytest.mark.parametrize("step", [RECOVER, CANCELED])
def test_undoing_goes_on_to_its_end(step: EventStep) -> None:
    def at(state: StepRunState) -> EventRecord:
        return a_record(PREPARING, runs={PREPARE: S.DONE, step: state}, gone_at=NOW)

    assert waiting(at(S.RUNNING), after(days=1)) == (f"step {step} is running", None)
    assert action(at(S.INTERRUPTED)) == BeginStep(step)
    assert action(at(S.DONE)) == ForgetEvent()
    assert waiting(at(S.FAILED)) == (f"step {step} failed; fix it, then run `forewarn agent retry`", None)


NOT_BEGUN: dict[EventStep, StepRun] = {}
GIVEN_UP = {PREPARE: a_run(S.FAILED, tries=0)}
BEGUN = {PREPARE: a_run(S.FAILED)}


@pytest.mark.parametrize(
    ("rule", "runs", "is_over", "expected"),
    [
        # Something may have been changed: it is undone, whatever became of the event.
        (Rule(prepare=(DRAIN,)), BEGUN, True, BeginStep(RECOVER)),
        (Rule(prepare=(DRAIN,)), BEGUN, False, BeginStep(CANCELED)),
        (HANDLED, BEGUN, True, BeginStep(RECOVER)),
        # Nothing was changed, but after an impact hooks may look after things.
        (PREPARING, GIVEN_UP, True, BeginStep(RECOVER)),
        (PREPARING, NOT_BEGUN, True, BeginStep(RECOVER)),
        (PREPARING, GIVEN_UP, False, ForgetEvent()),
        (Rule(prepare=(DRAIN,)), GIVEN_UP, True, ForgetEvent()),
        (HANDLED, NOT_BEGUN, True, ForgetEvent()),
        # The rule prepares nothing, and wants to be told nevertheless.
        (Rule(recover=(DRAIN,)), NOT_BEGUN, True, BeginStep(RECOVER)),
        (Rule(recover=(DRAIN,)), NOT_BEGUN, False, BeginStep(CANCELED)),
        (Rule(canceled=(DRAIN,)), NOT_BEGUN, True, ForgetEvent()),
        (Rule(canceled=(DRAIN,)), NOT_BEGUN, False, BeginStep(CANCELED)),
        (Rule(), NOT_BEGUN, True, ForgetEvent()),
    ],
)
def test_what_was_begun_is_undone_and_nothing_else(
    rule: Rule, runs: Mapping[EventStep, StepRun], is_over: bool, expected: Action
) -> None:
    record = a_record(
        rule, runs=runs, gone_at=after(minutes=1), started_at=NOW if is_over else None, is_reported_unprepared=True
    )
    assert action(record) == expected


def test_what_came_and_went_unprepared_is_reported_before_it_is_forgotten() -> None:
    """R104: the agent may have been away for the whole of it."""
    record = a_record(PREPARING, gone_at=after(minutes=20), runs=NOT_BEGUN)
    assert action(record) == ReportUnprepared()
    prepared = a_record(PREPARING, gone_at=after(minutes=20), runs={PREPARE: a_run()})
    assert action(prepared) == BeginStep(RECOVER)


# What the peers are told


@pytest.mark.parametrize(
    ("rule", "runs", "by_hand_at", "state"),
    [
        (Rule(), {}, None, PeerState.PREPARED),
        (PREPARING, {}, None, PeerState.PREPARING),
        (PREPARING, {PREPARE: S.RUNNING}, None, PeerState.PREPARING),
        (PREPARING, {PREPARE: S.DONE}, None, PeerState.PREPARED),
        (PREPARING, {PREPARE: S.FAILED}, None, PeerState.HELD),
        (PREPARING, {PREPARE: S.FAILED}, NOW, PeerState.PREPARED),
        (Rule(prepare=(DRAIN,), on_failure="approve"), {PREPARE: S.FAILED}, None, PeerState.PREPARED),
        (Rule(approve="never"), {}, None, PeerState.HELD),
        (Rule(approve="never"), {}, NOW, PeerState.PREPARED),
        (Rule(approve="never", prepare=(DRAIN,)), {}, NOW, PeerState.PREPARING),
        (LAST_CALL, {BEFORE: S.FAILED}, None, PeerState.HELD),
        (LAST_CALL, {BEFORE: S.FAILED}, NOW, PeerState.PREPARED),
        (Rule(approve="by-hand"), {}, None, PeerState.HELD),
        (Rule(approve="by-hand"), {}, NOW, PeerState.PREPARED),
        (Rule(approve="by-hand", prepare=(DRAIN,)), {}, None, PeerState.HELD),
        (Rule(approve="by-hand", prepare=(DRAIN,)), {}, NOW, PeerState.PREPARING),
    ],
)
def test_peers_are_told_how_far_this_vm_is(
    rule: Rule, runs: dict[EventStep, StepRunState], by_hand_at: datetime | None, state: PeerState
) -> None:
    assert get_reported_state(a_record(rule, runs=runs, by_hand_at=by_hand_at)) is state


# Retries

ALL_FAILED = dict.fromkeys((PREPARE, BEFORE, STARTED, RECOVER), S.FAILED)


@pytest.mark.parametrize(
    ("members", "now", "steps"),
    [
        ({}, NOW, (PREPARE, BEFORE)),
        ({}, CUTOFF - timedelta(seconds=1), (PREPARE, BEFORE)),
        ({}, CUTOFF, ()),
        ({"approval": ApprovalState.ACCEPTED}, NOW, (PREPARE,)),
        ({"approval": ApprovalState.SENDING}, NOW, (PREPARE, BEFORE)),
        ({"started_at": NOW}, after(days=1), (PREPARE, STARTED)),
        ({"started_at": NOW, "gone_at": NOW}, NOW, (RECOVER,)),
        ({"event": {"not_before": None}}, NOW, (PREPARE, BEFORE)),
    ],
)
def test_a_failed_step_can_be_retried_while_there_is_a_use_in_it(
    members: dict[str, Any], now: datetime, steps: tuple[EventStep, ...]
) -> None:
    assert find_retryable_steps(a_record(runs=ALL_FAILED, **members), now, MARGIN) == steps


@pytest.mark.parametrize("state", [state for state in S if state is not S.FAILED])
def test_only_what_has_failed_can_be_retried(state: StepRunState) -> None:
    assert find_retryable_steps(a_record(runs=dict.fromkeys(ALL_FAILED, state)), NOW, MARGIN) == ()


@pytest.mark.parametrize(
    ("members", "step"),
    [
        ({}, PREPARE),
        ({"started_at": NOW}, STARTED),
        ({"started_at": NOW, "gone_at": NOW}, RECOVER),
    ],
)
def test_what_is_to_be_retried_begins_again(members: dict[str, Any], step: EventStep) -> None:
    rule = Rule(prepare=(DRAIN,), started=(DRAIN,), recover=(DRAIN,))
    runs = {PREPARE: S.DONE} | {step: S.INTERRUPTED}
    assert action(a_record(rule, runs=runs, **members)) == BeginStep(step)


def test_what_a_retry_has_no_time_for_is_undone_all_the_same() -> None:
    """It was begun once, so there may be something to undo."""
    runs = {PREPARE: a_run(S.INTERRUPTED)}
    assert action(a_record(PREPARING, runs=runs), CUTOFF) == GiveUpStep(PREPARE, "NotBefore is near")
    assert action(a_record(PREPARING, runs=runs, gone_at=NOW), NOW) == BeginStep(CANCELED)


# Rules of a newer configuration


@pytest.mark.parametrize(
    ("newer", "memory", "is_mended"),
    [
        (Rule(name="a", prepare=(("other",),), handlers=HANDLED.handlers), {"0": {"was": 1}}, True),
        (Rule(name="a", prepare=(("other",),)), {"0": {"was": 1}}, False),
        (Rule(name="a", prepare=(("other",),)), {"0": {}}, True),
        (Rule(name="b", handlers=HANDLED.handlers), {}, False),
        (Rule(name="a", handlers=HANDLED.handlers, types=("Freeze",)), {}, False),
    ],
)
def test_a_newer_rule_mends_one_about_the_same_events_that_has_the_same_to_undo(
    newer: Rule, memory: dict[str, dict[str, Any]], is_mended: bool
) -> None:
    rule = Rule(name="a", prepare=(DRAIN,), handlers=HANDLED.handlers)
    assert a_record(rule, memory=memory).can_retry_with(newer) is is_mended
