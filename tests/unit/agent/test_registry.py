from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Literal

import pytest

from forewarn.agent.record import ApprovalState, EventRecord, StepRun, StepRunState
from forewarn.agent.registry import EventRegistry, build_log_fields
from forewarn.agent.rule import LOG_ONLY, EventStep, Rule
from forewarn.agent.state import AgentState
from tests.support.occasion import an_event
from tests.support.records import (
    DRAIN,
    NOT_BEFORE,
    NOW,
    A,
    B,
    C,
    InMemory,
    a_book,
    a_record,
    a_run,
    after,
    document,
)

S = StepRunState
PREPARING = Rule(name="drain", prepare=(DRAIN,), recover=(DRAIN,))
SCHEDULED = an_event(id=A)
STARTED = an_event(id=A, status="Started", not_before=None)


def seen(*events: Any, rule: Rule = PREPARING) -> EventRegistry:  # noqa: ANN401 - events
    book = a_book(rule)
    book.observe_document(document(*events), NOW)
    return book


# What is seen


def test_an_event_that_was_not_there_before_is_met() -> None:
    """R100: prepare for each event in current and not in previous."""
    book = seen(SCHEDULED, an_event(id=B))
    assert [record.event.id for record in book.records] == [A, B]
    assert book[A] == EventRecord(event=SCHEDULED, rule=PREPARING, seen_at=NOW)
    assert A in book
    assert C not in book


def test_the_change_from_scheduled_to_started_is_neither_a_new_event_nor_the_end_of_one() -> None:
    """R75, R100: the identity is the EventId."""
    book = seen(SCHEDULED)
    book.observe_document(document(STARTED), after(minutes=1))
    book.observe_document(document(STARTED), after(minutes=2))
    assert book[A] == EventRecord(event=STARTED, rule=PREPARING, seen_at=NOW, started_at=after(minutes=1))


def test_an_id_in_another_case_is_the_same_event_and_is_kept_as_it_is_shown() -> None:
    """R30, R53: also one from the state file of an agent that wrote ids in upper case."""
    book = a_book(Rule())
    book.observe_document(document(an_event(id=A)), NOW)
    book.observe_document(document(an_event(id=A.lower())), NOW)
    (record,) = book.records
    assert record.event.id == A.lower()
    assert record.gone_at is None
    assert A in book
    assert book[A] is book[A.lower()]


def test_an_event_may_appear_as_started() -> None:
    """R73, R78."""
    assert seen(STARTED)[A].started_at == NOW


def test_what_has_started_does_not_go_back() -> None:
    """R75: no arrow leads back; R105: a document may be older than the last."""
    book = seen(STARTED)
    book.observe_document(document(SCHEDULED), after(minutes=1))
    assert book[A].started_at == NOW


def test_an_event_that_is_there_no_longer_is_gone() -> None:
    """R77, R79, R100: recover for each in previous and not in current."""
    book = seen(SCHEDULED, an_event(id=B))
    book.observe_document(document(an_event(id=B)), after(minutes=1))
    book.observe_document(document(), after(minutes=2))
    assert [book[event_id].gone_at for event_id in (A, B)] == [after(minutes=1), after(minutes=2)]


def test_all_events_of_a_document_are_taken_together() -> None:
    """R101."""
    book = seen(SCHEDULED)
    book.observe_document(document(an_event(id=B), an_event(id=C, status="Started"), incarnation=0), after(minutes=1))
    assert book[A].gone_at == after(minutes=1)
    assert book[C].started_at == after(minutes=1)
    assert {record.event.id for record in book.records} == {A, B, C}


def test_an_event_that_comes_back_before_anything_was_done_about_it_was_never_gone() -> None:
    book = seen(SCHEDULED)
    book.observe_document(document(), after(minutes=1))
    book.observe_document(document(SCHEDULED), after(minutes=2))
    assert book[A] == EventRecord(event=SCHEDULED, rule=PREPARING, seen_at=NOW)


@pytest.mark.parametrize(
    "runs",
    [
        {EventStep.RECOVER: S.RUNNING},
        {EventStep.CANCELED: S.FAILED},
        {EventStep.PREPARE: S.STOPPING},
        {EventStep.CANCELED: S.DONE},
    ],
)
def test_what_comes_back_while_it_is_undone_is_another_event(runs: Mapping[EventStep, StepRunState]) -> None:
    book = seen(SCHEDULED)
    book.update_record(A, runs={step: a_run(state) for step, state in runs.items()}, gone_at=after(minutes=1))
    book.observe_document(document(STARTED), after(minutes=2))
    assert book[A].gone_at == after(minutes=1)
    assert book[A].event == SCHEDULED
    book.remove_record(A, after(minutes=3))
    assert book[A] == EventRecord(event=STARTED, rule=PREPARING, seen_at=after(minutes=3), started_at=after(minutes=3))


def test_the_rule_is_the_one_that_matched_at_first() -> None:
    """A new configuration must not forget how to undo."""
    memory = InMemory()
    book = a_book(PREPARING, memory)
    book.observe_document(document(SCHEDULED), NOW)
    book.save()
    later = a_book(LOG_ONLY, memory)
    later.load(after(minutes=1))
    later.observe_document(document(STARTED, an_event(id=B)), after(minutes=1))
    assert later[A].rule == PREPARING
    assert later[B].rule == LOG_ONLY


def test_more_events_than_the_limit_are_left_alone_until_there_is_room(caplog: pytest.LogCaptureFixture) -> None:
    book = a_book(PREPARING, records_max=2)
    events = document(*(an_event(id=event_id) for event_id in (A, B, C)))
    book.observe_document(events, NOW)
    book.observe_document(events, NOW)
    assert [record.event.id for record in book.records] == [A, B]
    assert caplog.messages.count(f"event {C} is ignored: 2 events are tracked (events_max)") == 1
    book.observe_document(document(an_event(id=B), an_event(id=C)), after(minutes=1))
    book.remove_record(A, after(minutes=1))
    assert [record.event.id for record in book.records] == [B, C]


def test_what_was_left_alone_and_is_gone_is_said_again_when_it_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    book = a_book(PREPARING, records_max=1)
    for events in ((A, B), (A,), (A, B)):
        book.observe_document(document(*(an_event(id=event_id) for event_id in events)), NOW)
    assert caplog.messages.count(f"event {B} is ignored: 1 events are tracked (events_max)") == 2


@pytest.mark.parametrize(
    ("rule", "resources", "level"),
    [
        (PREPARING, ("db",), logging.INFO),
        (PREPARING, ("web",), logging.INFO),
        (LOG_ONLY, ("db",), logging.INFO),
        (LOG_ONLY, ("web",), logging.DEBUG),
    ],
)
def test_what_is_no_concern_of_this_vm_is_said_quietly(
    rule: Rule, resources: tuple[str, ...], level: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "forewarn.agent"):
        seen(an_event(id=A, resources=resources), rule=rule)
    assert [record.levelno for record in caplog.records if "new event" in record.message] == [level]


def test_a_log_line_says_of_which_event_it_is() -> None:
    assert build_log_fields(a_record(PREPARING, {"id": A})) == {
        "event_id": A,
        "event_type": "Freeze",
        "resources": ["db"],
        "rule": "drain",
    }


# What is written down


def test_only_what_changes_has_to_be_saved() -> None:
    book = seen(SCHEDULED)
    changes: list[Callable[[], object]] = [
        lambda: None,
        book.save,
        lambda: book.observe_document(document(SCHEDULED), after(minutes=1)),
        lambda: book.update_record(A, gone_at=None),
        lambda: book.update_record(A, by_hand_at=NOW),
        book.save,
        lambda: book.set_vm_name("web", NOW),
    ]
    dirty = []
    for change in changes:
        change()
        dirty.append(book.is_dirty)
    assert dirty == [True, False, False, False, True, False, True]


def test_what_could_not_be_saved_has_to_be_saved_still() -> None:
    memory = InMemory()
    book = a_book(PREPARING, memory)
    book.observe_document(document(SCHEDULED), NOW)
    memory.is_full = True
    with pytest.raises(OSError, match="No space left"):
        book.save()
    assert book.is_dirty
    memory.is_full = False
    book.save()
    assert memory.load().records == book.records


def test_a_step_is_counted_each_time_that_it_begins() -> None:
    book = seen(SCHEDULED)
    book.begin_run(A, EventStep.PREPARE, NOW)
    assert book[A].runs == {EventStep.PREPARE: StepRun(state=S.RUNNING, began_at=NOW)}
    book.update_run(A, EventStep.PREPARE, state=S.INTERRUPTED, reason="killed", output="half")
    book.begin_run(A, EventStep.PREPARE, after(minutes=1))
    assert book[A].runs == {EventStep.PREPARE: StepRun(state=S.RUNNING, began_at=after(minutes=1), tries=2)}
    book.update_run(A, EventStep.PREPARE, state=S.DONE, ended_at=after(minutes=2), output="ok")
    assert book[A].is_prepared
    assert book[A].runs[EventStep.PREPARE].output == "ok"


def test_a_step_that_is_given_up_has_failed_whether_it_was_begun_or_not() -> None:
    book = seen(SCHEDULED, an_event(id=B))
    book.give_up_run(A, EventStep.PREPARE, "too late", after(minutes=1))
    assert book[A].runs[EventStep.PREPARE] == StepRun(
        state=S.FAILED, began_at=after(minutes=1), ended_at=after(minutes=1), tries=0, reason="too late"
    )
    assert not book[A].has_begun_to_prepare
    book.begin_run(B, EventStep.PREPARE, NOW)
    book.update_run(B, EventStep.PREPARE, state=S.INTERRUPTED)
    book.give_up_run(B, EventStep.PREPARE, "too late", after(minutes=1))
    assert book[B].runs[EventStep.PREPARE].tries == 1
    assert book[B].has_begun_to_prepare


# What is kept of it at the end


@pytest.mark.parametrize(
    ("rule", "members", "outcome", "was_prepared"),
    [
        (
            PREPARING,
            {"runs": {EventStep.PREPARE: a_run(), EventStep.RECOVER: a_run()}, "started_at": NOW},
            "recovered",
            True,
        ),
        (PREPARING, {"runs": {EventStep.PREPARE: a_run(), EventStep.CANCELED: a_run()}}, "canceled", None),
        (
            PREPARING,
            {"runs": {EventStep.RECOVER: a_run()}, "started_at": NOW, "is_reported_unprepared": True},
            "recovered",
            False,
        ),
        (LOG_ONLY, {}, "observed", None),
        (LOG_ONLY, {"started_at": NOW}, "observed", None),
        (Rule(approve="never"), {}, "canceled", None),
        (Rule(approve="never"), {"gone_at": NOT_BEFORE}, "recovered", None),
        # Given up before it began, and then cancelled: there was nothing to undo.
        (PREPARING, {"runs": {EventStep.PREPARE: a_run(S.FAILED, tries=0)}}, "canceled", None),
        (Rule(before_approval=(DRAIN,)), {"runs": {EventStep.BEFORE_APPROVAL: a_run()}}, "canceled", None),
        (Rule(started=(DRAIN,)), {"runs": {EventStep.STARTED: a_run()}, "started_at": NOW}, "recovered", None),
    ],
)
def test_an_event_ends_as_recovered_or_canceled(
    rule: Rule, members: dict[str, Any], outcome: str, was_prepared: bool | None
) -> None:
    book = seen(SCHEDULED, rule=rule)
    book.update_record(A, **({"gone_at": after(minutes=1)} | members))
    finished = book.remove_record(A, after(minutes=2))
    assert (finished.outcome, finished.was_prepared) == (outcome, was_prepared)
    assert (finished.event, finished.rule, finished.seen_at) == (SCHEDULED, rule.name, NOW)


@pytest.mark.parametrize(("history_max", "kept"), [(0, []), (2, [B, C]), (9, [A, B, C])])
def test_the_last_of_what_is_finished_is_kept(history_max: int, kept: list[str]) -> None:
    book = a_book(history_max=history_max)
    book.observe_document(document(*(an_event(id=event_id) for event_id in (A, B, C))), NOW)
    for event_id in (A, B, C):
        book.observe_document(document(), NOW)
        book.remove_record(event_id, NOW)
    assert [finished.event.id for finished in book.finished] == kept
    assert book.records == ()


def test_a_shorter_history_is_cut_at_the_next_end() -> None:
    memory = InMemory()
    book = a_book(memory=memory, history_max=3)
    book.observe_document(document(*(an_event(id=event_id) for event_id in (A, B, C))), NOW)
    book.observe_document(document(), NOW)
    for event_id in (A, B, C):
        book.remove_record(event_id, NOW)
    book.save()
    later = a_book(memory=memory, history_max=1)
    later.load(NOW)
    later.observe_document(document(SCHEDULED), NOW)
    later.observe_document(document(), NOW)
    later.remove_record(A, NOW)
    assert [finished.event.id for finished in later.finished] == [A]


# What is taken up after a restart


def taken_up(record: EventRecord, vm: str = "") -> EventRegistry:
    memory = InMemory()
    memory.save(AgentState(vm="db", records=(record,)))
    book = a_book(memory=memory, vm=vm)
    book.load(after(minutes=5))
    return book


def test_without_a_state_there_is_nothing_to_take_up() -> None:
    book = a_book()
    book.load(NOW)
    assert book.records == ()
    assert not book.is_dirty


def test_the_name_of_the_configuration_outweighs_the_one_that_was_kept() -> None:
    assert taken_up(a_record()).vm == "db"
    assert taken_up(a_record(), vm="web").vm == "web"


@pytest.mark.parametrize("approval", list(ApprovalState))
def test_an_approval_of_which_nobody_knows_whether_it_arrived_is_sent_again(approval: ApprovalState) -> None:
    """R49: sending it again does no harm."""
    record = a_record(approval=approval)
    expected = ApprovalState.NONE if approval is ApprovalState.SENDING else approval
    assert taken_up(record)[record.event.id].approval is expected


@pytest.mark.parametrize(
    ("interrupted", "step", "state", "expected"),
    [
        ("run-again", EventStep.PREPARE, S.RUNNING, S.INTERRUPTED),
        ("run-again", EventStep.RECOVER, S.RUNNING, S.INTERRUPTED),
        ("mark", EventStep.PREPARE, S.RUNNING, S.FAILED),
        ("mark", EventStep.STARTED, S.RUNNING, S.FAILED),
        ("mark", EventStep.RECOVER, S.RUNNING, S.INTERRUPTED),
        ("mark", EventStep.CANCELED, S.RUNNING, S.INTERRUPTED),
        ("run-again", EventStep.PREPARE, S.STOPPING, S.FAILED),
        ("mark", EventStep.PREPARE, S.STOPPING, S.FAILED),
        ("run-again", EventStep.PREPARE, S.DONE, S.DONE),
        ("mark", EventStep.PREPARE, S.FAILED, S.FAILED),
        ("mark", EventStep.PREPARE, S.INTERRUPTED, S.INTERRUPTED),
    ],
)
def test_what_was_under_way_is_run_again_or_marked_as_failed(
    interrupted: Literal["run-again", "mark"], step: EventStep, state: StepRunState, expected: StepRunState
) -> None:
    rule = Rule(prepare=(DRAIN,), interrupted=interrupted)
    record = a_record(rule, runs={step: a_run(state, tries=3)})
    run = taken_up(record)[record.event.id].runs[step]
    assert run.state is expected
    assert run.tries == 3
    if expected is S.FAILED and state in {S.RUNNING, S.STOPPING}:
        assert run.ended_at == after(minutes=5)
    if interrupted == "mark" and (state, expected) == (S.RUNNING, S.FAILED):
        assert run.reason == "the agent was interrupted"


def test_what_went_while_the_agent_was_away_is_gone_now() -> None:
    """R104."""
    book = taken_up(a_record(PREPARING, {"id": A}, {EventStep.PREPARE: S.DONE}))
    book.observe_document(document(an_event(id=B)), NOW + timedelta(hours=1))
    assert book[A].gone_at == NOW + timedelta(hours=1)
    assert book[B].gone_at is None
