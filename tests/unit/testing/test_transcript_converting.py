"""From a transcript to a scenario: each thing that was seen becomes the step that makes it so."""

from __future__ import annotations

import json
from datetime import timedelta

from hypothesis import given

from forewarn.testing.scenario.scenario_loader import Scenario
from forewarn.testing.scenario.scenario_model import ExpectStep, FaultStep, ScheduleStep, StepTime, TimelineStep
from forewarn.testing.transcript.transcript import RequestFailure, Transcript, TranscriptEntry
from forewarn.testing.transcript.transcript_conversion import convert_transcript
from tests.support.parsed_scenario import parse_scenario
from tests.support.showings import ID, event, shown, transcript, transcripts


def convert(*entries: TranscriptEntry, end_s: float = 3600.0) -> Scenario:
    return parse_scenario(convert_transcript(transcript(*entries, end_s=end_s)).encode(), "recorded")


def omissions(*entries: TranscriptEntry) -> list[str]:
    lines = convert_transcript(transcript(*entries)).splitlines()
    return [line.removeprefix("# Left out: ") for line in lines if line.startswith("# Left out")]


def verbs(scenario: Scenario) -> list[str]:
    return [step.action_name for step in scenario.steps if step.action_name not in {"expect", "poll"}]


def step_of(scenario: Scenario, verb: str) -> TimelineStep:
    return next(step for step in scenario.steps if step.action_name == verb)


def expectations(scenario: Scenario) -> list[ExpectStep]:
    return [step.expect for step in scenario.steps if step.expect is not None]


# What becomes of what


def test_an_event_that_appears_is_scheduled_when_it_was_first_seen() -> None:
    scenario = convert(shown(0, 57), shown(30.5, 58, event()))
    step = step_of(scenario, "schedule")
    assert step.at == StepTime(timedelta(seconds=30.5), is_relative=False)
    assert isinstance(step.action, ScheduleStep)
    assert step.action.vms == ("vm-1",)
    assert (step.action.type, step.action.source) == ("Freeze", "Platform")
    assert step.action.duration == 9
    assert step.action.notice == timedelta(seconds=869.5)
    assert step.action.description == "Host server is undergoing maintenance."
    assert scenario.event_ids == (ID.format(0),)
    assert scenario.settings["initial_incarnation"] == 57
    assert [e.incarnation for e in expectations(scenario) if e.incarnation is not None] == [57, 58]


def test_one_that_starts_early_is_started_and_one_that_starts_at_notbefore_starts_by_itself() -> None:
    early = convert(shown(0, 1, event()), shown(100, 2, event(start_s=None)), shown(200, 3))
    assert verbs(early) == ["schedule", "start", "complete"]
    late = convert(shown(0, 1, event()), shown(900.4, 2, event(start_s=None)), shown(1500, 3))
    assert verbs(late) == ["schedule", "complete"]
    for scenario in (early, late):
        assert [e.status for e in expectations(scenario) if e.status] == ["Scheduled", "Started", "gone"]


def test_one_that_goes_before_it_has_started_is_taken_back() -> None:
    assert verbs(convert(shown(0, 1, event()), shown(100, 2))) == ["schedule", "cancel"]


def test_one_that_goes_after_its_notbefore_was_not_seen_to_start_and_is_complete() -> None:
    assert verbs(convert(shown(0, 1, event()), shown(905, 2))) == ["schedule", "complete"]


def test_a_vm_that_goes_takes_its_other_events_with_it() -> None:
    preempt, freeze = event(0, EventType="Preempt", start_s=None), event(1)
    together = convert(shown(0, 1, preempt, freeze), shown(100, 2))
    assert [
        (step.action_name, step.action) for step in together.steps if step.action_name in {"cancel", "complete"}
    ] == [
        ("cancel", "freeze-1"),
        ("complete", "preempt-1"),
    ]
    alone = (shown(0, 1, preempt, freeze), shown(100, 2, freeze))
    assert verbs(convert(*alone)) == ["schedule", "schedule", "complete"]
    assert omissions(*alone) == [f"the Freeze {ID.format(1)} from 100 s on: vm-1 was gone by then"]


def test_two_that_take_the_same_vm_away_end_with_the_first() -> None:
    by_both = enumerate(("User", "Platform"))
    preempts = [event(number, EventType="Preempt", start_s=30, EventSource=source) for number, source in by_both]
    both = (shown(0, 1, *preempts), shown(100, 2))
    assert verbs(convert(*both)) == ["schedule", "schedule", "complete"]
    assert omissions(*both) == [f"the Preempt {ID.format(1)} from 100 s on: vm-1 was gone by then"]
    assert [e.events for e in expectations(convert(*both)) if e.events is not None] == [2, 0]


def test_one_that_is_first_seen_started_has_no_notice() -> None:
    scenario = convert(shown(0, 1), shown(5, 2, event(start_s=None, EventType="Preempt", Description="")))
    action = step_of(scenario, "schedule").action
    assert isinstance(action, ScheduleStep)
    assert action.notice == timedelta(0)
    assert [e.status for e in expectations(scenario) if e.status] == ["Started"]


def test_each_change_happens_when_it_was_seen_to_the_millisecond() -> None:
    """Also one that is first seen started: an operation without notice starts at once, in the middle of a second."""
    sudden = event(EventType="Preempt", start_s=None)
    scenario = convert(shown(0, 1), shown(7.085, 2, sudden), shown(9.123, 3))
    moments = {step.action_name: step.at.span.total_seconds() for step in scenario.steps if step.at is not None}
    assert moments == {"poll": 0.0, "schedule": 7.085, "complete": 9.123}


def test_failures_become_faults_for_as_long_as_they_stood() -> None:
    entries = [
        shown(0, 1),
        TranscriptEntry(at_s=10, status=410),
        TranscriptEntry(at_s=20, status=502),
        TranscriptEntry(at_s=30, failure=RequestFailure.NO_CONNECTION),
        TranscriptEntry(at_s=40, failure=RequestFailure.BROKEN),
        TranscriptEntry(at_s=50, took_s=9, failure=RequestFailure.TIME_OUT),
        TranscriptEntry(at_s=60, status=200),
        TranscriptEntry(at_s=70, status=200, body=b'{"Even'),
        TranscriptEntry(at_s=80, status=200, body=b"{}"),
        shown(95, 1),
        TranscriptEntry(at_s=100, status=429),
    ]
    faults = [step.action for step in convert(*entries, end_s=101).steps if isinstance(step.action, FaultStep)]
    assert [(fault.kind, fault.lasts) for fault in faults] == [
        ("410", timedelta(seconds=10)),
        ("503", timedelta(seconds=10)),
        ("refused", timedelta(seconds=10)),
        ("reset", timedelta(seconds=10)),
        ("time-out", timedelta(seconds=10)),
        ("empty", timedelta(seconds=10)),
        ("truncated", timedelta(seconds=10)),
        ("no-events", timedelta(seconds=15)),
        ("429", timedelta(seconds=1)),
    ]
    assert omissions(*entries) == ["the status 502 at 20 s: replaced by 503"]


def test_vms_that_are_told_of_each_other_share_a_scope() -> None:
    scenario = convert(shown(0, 1, event(Resources=["web-1", "web-2"])))
    assert {vm.scope for vm in scenario.inventory.vms} == {"recorded"}
    assert len({vm.host for vm in scenario.inventory.vms}) == 2
    alone = convert(shown(0, 1, event()))
    assert [vm.scope for vm in alone.inventory.vms] == [None]


def test_a_terminate_has_a_scale_set_that_asked_to_be_told() -> None:
    scenario = convert(shown(0, 1, event(EventType="Terminate", start_s=300)))
    assert scenario.inventory.scopes[0].terminate_notification.enable


def test_the_endpoint_s_clock_is_believed_where_it_differs_from_ours() -> None:
    body = json.dumps({"DocumentIncarnation": 2, "Events": [event()]}).encode()
    for date, notice_s in (("Sun, 01 Mar 2026 11:00:00 GMT", 4500), ("Sun, 01 Mar 2026 12:00:00 GMT", 899.5)):
        entry = TranscriptEntry(at_s=0.5, status=200, headers={"date": date}, body=body)
        action = step_of(convert(entry), "schedule").action
        assert isinstance(action, ScheduleStep)
        assert action.notice == timedelta(seconds=notice_s)


def test_a_recording_of_days_does_not_lose_its_scope() -> None:
    assert convert(shown(0, 1), end_s=7 * 86_400).settings["disable_after"] == "14d"
    assert "disable_after" not in convert(shown(0, 1)).settings


# What the service would not do


def test_what_the_service_would_not_do_is_left_out_and_said() -> None:
    both = [event(0), event(1, EventType="Reboot")]
    assert omissions(shown(0, 1, *both)) == [
        f"the Reboot {ID.format(1)} from 0 s on: it would queue behind freeze-1, which affects the same VM"
    ]
    assert "its type 'Pause' is unknown" in omissions(shown(0, 1, event(EventType="Pause")))[0]
    assert "exceeds the maximum of 15m" in omissions(shown(0, 1, event(EventType="Terminate", start_s=3600)))[0]
    assert "can affect only one VM" in omissions(shown(0, 1, event(EventType="Preempt", Resources=["a", "b"])))[0]
    preempted = [event(0, EventType="Preempt", start_s=None), event(1, start_s=999)]
    assert "vm-1 was gone" in omissions(*[shown(0, 1, preempted[0]), shown(9, 2), shown(10, 3, preempted[1])])[0]


def test_what_was_left_out_is_not_counted_among_the_events() -> None:
    scenario = convert(shown(0, 1, event(0), event(1)), shown(9, 2, event(1)), shown(10, 3))
    assert [e.events for e in expectations(scenario) if e.events is not None] == [0]


def test_a_long_transcript_ends_where_a_scenario_is_full() -> None:
    entries = [shown(n, n, *([event(n % 10)] if n % 2 else [])) for n in range(1000)]
    scenario = convert(*entries)
    assert len(scenario.steps) == 1000
    assert "a scenario has at most 1000 steps" in omissions(*entries)[-1]


def test_an_id_that_comes_again_or_is_none_gets_another() -> None:
    entries = [shown(0, 1, event(0)), shown(1, 2), shown(2, 3, event(0)), shown(3, 4), shown(4, 5, event(EventId="x"))]
    assert len(set(convert(*entries).event_ids)) == 3


def test_a_transcript_without_answers_is_a_scenario_without_events() -> None:
    assert [step.action_name for step in convert().steps] == ["poll"]


# Whatever was recorded


@given(transcripts())
def test_whatever_was_recorded_becomes_a_scenario_that_can_be_read(recorded: Transcript) -> None:
    parse_scenario(convert_transcript(recorded).encode(), "recorded")


def test_a_recorded_text_names_no_parameter() -> None:
    scenario = convert(shown(0, 1, event(Description="a ${b} and ${")))
    action = step_of(scenario, "schedule").action
    assert isinstance(action, ScheduleStep)
    assert action.description == "a ${b} and ${"
