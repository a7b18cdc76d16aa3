from __future__ import annotations

import pytest

from forewarn.agent.codec import decode_json, encode_json
from forewarn.agent.handlers import FileHandler
from forewarn.agent.record import EventRecord, StepRun, StepRunState
from forewarn.agent.rule import EventStep, Rule
from forewarn.agent.window import WeeklyWindow
from tests.support.records import DRAIN, NOW, a_record, a_run, after

S = StepRunState
PREPARING = Rule(prepare=(DRAIN,))


def test_nothing_has_become_of_a_step_that_was_not_begun() -> None:
    record = a_record(PREPARING)
    assert record.runs.get(EventStep.PREPARE) is None
    assert not record.is_done(EventStep.PREPARE)
    assert not record.has_failed(EventStep.PREPARE)
    assert record.running_step is None
    assert not record.is_stopping
    assert not record.has_begun_to_prepare


@pytest.mark.parametrize(
    ("state", "is_running", "is_stopping", "is_done", "has_failed"),
    [
        (S.RUNNING, True, False, False, False),
        (S.STOPPING, True, True, False, False),
        (S.DONE, False, False, True, False),
        (S.FAILED, False, False, False, True),
        (S.INTERRUPTED, False, False, False, False),
    ],
)
def test_a_step_has_come_so_far(
    state: StepRunState, is_running: bool, is_stopping: bool, is_done: bool, has_failed: bool
) -> None:
    run = a_run(state)
    record = a_record(PREPARING, runs={EventStep.PREPARE: run})
    assert record.runs.get(EventStep.PREPARE) is run
    assert (record.running_step is EventStep.PREPARE) is is_running
    assert record.is_stopping is is_stopping
    assert record.is_done(EventStep.PREPARE) is is_done
    assert record.has_failed(EventStep.PREPARE) is has_failed
    assert record.is_prepared is is_done
    assert record.has_begun_to_prepare


def test_the_step_that_is_under_way_is_the_one_that_has_not_ended() -> None:
    record = a_record(PREPARING, runs={EventStep.PREPARE: S.DONE, EventStep.STARTED: S.RUNNING})
    assert record.running_step is EventStep.STARTED


def test_a_step_that_was_given_up_before_it_began_leaves_nothing_to_undo() -> None:
    record = a_record(PREPARING, runs={EventStep.PREPARE: a_run(S.FAILED, tries=0)})
    assert record.has_failed(EventStep.PREPARE)
    assert not record.has_begun_to_prepare


def test_without_preparation_a_vm_is_ready_from_the_first_sight() -> None:
    record = a_record(Rule())
    assert record.is_prepared
    assert record.prepared_at == NOW


@pytest.mark.parametrize(
    ("runs", "is_ready"),
    [
        ({}, False),
        ({EventStep.PREPARE: a_run(S.RUNNING)}, False),
        ({EventStep.PREPARE: a_run(S.FAILED, ended_at=after(seconds=9))}, False),
        ({EventStep.PREPARE: a_run(S.DONE, ended_at=after(seconds=9))}, True),
    ],
)
def test_with_preparation_a_vm_is_ready_once_it_is_done(runs: dict[EventStep, StepRun], is_ready: bool) -> None:
    record = a_record(PREPARING, runs=runs)
    assert record.is_prepared is is_ready
    assert record.prepared_at == (after(seconds=9) if is_ready else None)


def test_a_record_survives_being_written_and_read() -> None:
    rule = Rule(
        name="db",
        window=(WeeklyWindow("22:00-06:00"),),
        handlers=(FileHandler(touch="/run/drain"),),
        prepare=(("drain",), DRAIN),
        description="a|b",
    )
    record = a_record(
        rule,
        {"description": "f\u00fcr \u96ea\n", "duration_s": -1, "not_before": None},
        {EventStep.PREPARE: a_run(S.FAILED, reason="no", output="\x1b[0m")},
        memory={"0": {"existed": True, "content": "\u00ff\u0000"}},
        started_at=after(microseconds=1),
    )
    assert decode_json(encode_json(record), EventRecord) == record
