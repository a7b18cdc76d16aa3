from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from forewarn.agent.exposition import list_families, render_metrics
from forewarn.agent.metrics import AgentMetrics, get_display_state
from forewarn.agent.record import ApprovalState, EventRecord, StepRunState
from forewarn.agent.rule import LOG_ONLY, EventStep, Rule
from tests.support.records import DRAIN, NOT_BEFORE, NOW, a_record, after

PREPARING = Rule(prepare=(DRAIN,))


def read(metrics: AgentMetrics) -> dict[str, float]:
    """Every sample that is there, with its labels in the order of their names."""
    return {
        sample.name + "".join(f" {sample.labels[name]}" for name in sorted(sample.labels)): sample.value
        for family in text_string_to_metric_families(render_metrics(metrics).decode())
        for sample in family.samples
    }


def of(*records: EventRecord) -> AgentMetrics:
    return AgentMetrics(lambda: records, lambda: NOW)


@pytest.mark.parametrize(
    ("rule", "members", "expected"),
    [
        (PREPARING, {}, "preparing"),
        (PREPARING, {"runs": {EventStep.PREPARE: StepRunState.DONE}}, "prepared"),
        (PREPARING, {"runs": {EventStep.PREPARE: StepRunState.FAILED}}, "failed"),
        (PREPARING, {"runs": {EventStep.PREPARE: StepRunState.FAILED}, "approval": ApprovalState.ACCEPTED}, "approved"),
        (Rule(), {}, "prepared"),
        (Rule(), {"approval": ApprovalState.SENDING}, "prepared"),
        (LOG_ONLY, {}, "watched"),
        (Rule(approve="never", prepare=(DRAIN,)), {}, "preparing"),
        (PREPARING, {"started_at": NOW}, "started"),
        (PREPARING, {"started_at": NOW, "gone_at": NOW}, "recovering"),
        (PREPARING, {"gone_at": NOW, "runs": {EventStep.CANCELED: StepRunState.RUNNING}}, "recovering"),
        (PREPARING, {"gone_at": NOW, "runs": {EventStep.CANCELED: StepRunState.FAILED}}, "recovery-failed"),
        (PREPARING, {"gone_at": NOW, "runs": {EventStep.RECOVER: StepRunState.FAILED}}, "recovery-failed"),
    ],
)
def test_one_word_says_where_an_event_stands(rule: Rule, members: dict[str, Any], expected: str) -> None:
    assert get_display_state(a_record(rule, **members)) == expected


def test_before_anything_has_happened_there_is_something_to_see() -> None:
    samples = read(of())
    assert samples["forewarn_agent_polls_total ok"] == 0
    assert samples["forewarn_agent_polls_total failed"] == 0
    assert samples["forewarn_agent_drained"] == 0
    assert samples["forewarn_agent_config_current"] == 1
    assert "forewarn_agent_notice_left_seconds" not in samples
    assert not [name for name in samples if name.startswith("forewarn_agent_events ")]


def test_what_happens_is_counted() -> None:
    metrics = of()
    metrics.polls["ok"] += 1
    metrics.last_poll_at = NOW
    metrics.polls["failed"] += 1
    metrics.polls["failed"] += 1
    metrics.steps["prepare", "done"].add(0.7)
    metrics.steps["recover", "failed"].add(70)
    metrics.approvals.add(3)
    metrics.approval_failures += 1
    metrics.unprepared_events["Reboot"] += 1
    metrics.ended_events["Freeze", "canceled"] += 1
    metrics.save_failures += 1
    samples = read(metrics)
    expected = {
        "forewarn_agent_polls_total ok": 1,
        "forewarn_agent_polls_total failed": 2,
        "forewarn_agent_last_poll_timestamp_seconds": NOW.timestamp(),
        "forewarn_agent_step_seconds_sum done prepare": 0.7,
        "forewarn_agent_step_seconds_bucket 0.5 done prepare": 0,
        "forewarn_agent_step_seconds_bucket 1.0 done prepare": 1,
        "forewarn_agent_step_seconds_count failed recover": 1,
        "forewarn_agent_approval_seconds_sum": 3,
        "forewarn_agent_approval_failures_total": 1,
        "forewarn_agent_unprepared_total Reboot": 1,
        "forewarn_agent_events_ended_total canceled Freeze": 1,
        "forewarn_agent_state_save_failures_total": 1,
    }
    assert {name: samples.get(name) for name in expected} == expected


def test_what_is_there_is_told_when_it_is_asked_for() -> None:
    early = after(minutes=4)
    metrics = of(
        a_record(PREPARING),
        a_record(PREPARING, {"not_before": early}),
        a_record(LOG_ONLY, {"type": "Reboot", "not_before": None}),
        a_record(PREPARING, {"not_before": NOW}, gone_at=NOW),
    )
    samples = read(metrics)
    events = {name: count for name, count in samples.items() if name.startswith("forewarn_agent_events ")}
    assert events == {
        "forewarn_agent_events preparing Freeze": 2,
        "forewarn_agent_events watched Reboot": 1,
        "forewarn_agent_events recovering Freeze": 1,
    }
    assert samples["forewarn_agent_notice_left_seconds"] == 240
    assert samples["forewarn_agent_drained"] == 1


def test_a_notice_that_is_over_is_negative() -> None:
    metrics = AgentMetrics(lambda: [a_record(Rule())], lambda: NOT_BEFORE + timedelta(seconds=9))
    assert read(metrics)["forewarn_agent_notice_left_seconds"] == -9
    assert read(metrics)["forewarn_agent_drained"] == 0


def test_every_metric_is_described_with_its_labels() -> None:
    metrics = of(a_record())
    families = {family.name: labels for family, labels in list_families(metrics)}
    assert families["forewarn_agent_events"] == ("type", "state")
    assert families["forewarn_agent_step_seconds"] == ("step", "outcome")
    assert families["forewarn_agent_drained"] == ()
    shown = {family.name for family in text_string_to_metric_families(render_metrics(metrics).decode())}
    assert {name.removesuffix("_created") for name in shown} == set(families)
    assert all(family.documentation for family, _ in list_families(metrics))
