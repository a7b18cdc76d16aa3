"""What hooks are told, and what a dry run says. Steps carried out for real: tests/integration/test_agent_steps."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.agent.handlers import FileHandler
from forewarn.agent.record import StepRunState
from forewarn.agent.rule import EventStep, Hook, Rule
from forewarn.agent.steps import VARIABLES, DryRunExecutor, build_environment, build_payload
from tests.support.occasion import an_event
from tests.support.records import DRAIN, a_record

RULE = Rule(
    name="db",
    handlers=(FileHandler(touch="/run/drain"), FileHandler(remove="/run/ok")),
    prepare=(DRAIN,),
    started=(Hook(webhook="https://example.com/secret"),),
    recover=(("undrain", "--now"),),
)


def test_every_variable_that_is_described_is_set_and_no_other() -> None:
    assert build_environment(a_record(), EventStep.PREPARE, "db").keys() == VARIABLES.keys()


@pytest.mark.parametrize("step", list(EventStep))
def test_a_hook_is_told_which_step_it_is(step: EventStep) -> None:
    assert build_environment(a_record(), step, "db")["FOREWARN_STEP"] == step.value
    assert json.loads(build_payload(a_record(), step, "db"))["step"] == step.value


def test_a_hook_is_told_whether_everything_is_prepared() -> None:
    for state, is_prepared in ((StepRunState.RUNNING, False), (StepRunState.DONE, True)):
        record = a_record(RULE, runs={EventStep.PREPARE: state})
        assert build_environment(record, EventStep.ALERT, "db")["FOREWARN_PREPARED"] == str(is_prepared).lower()
        assert json.loads(build_payload(record, EventStep.ALERT, "db"))["prepared"] is is_prepared


def test_what_is_not_known_is_told_as_empty() -> None:
    record = a_record(event={"not_before": None, "source": "", "resources": (), "duration_s": -1})
    environment = build_environment(record, EventStep.PREPARE, "")
    assert environment["FOREWARN_EVENT_NOT_BEFORE"] == ""
    assert environment["FOREWARN_EVENT_RESOURCES"] == ""
    assert environment["FOREWARN_EVENT_DURATION_S"] == "-1"
    assert environment["FOREWARN_REASON"] == ""


def test_names_that_do_not_all_fit_into_a_variable_are_whole_as_far_as_they_do() -> None:
    names = tuple(f"f\u00fcr-{n}" for n in range(10_000))
    told = build_environment(a_record(event={"resources": names}), EventStep.PREPARE, "db")["FOREWARN_EVENT_RESOURCES"]
    assert len(told.encode()) <= 32_000
    shown = told.split(",")
    assert shown == list(names[: len(shown)])
    assert json.loads(build_payload(a_record(event={"resources": names}), EventStep.PREPARE, "db"))["event"][
        "resources"
    ] == list(names)


text = st.text(max_size=20)


@given(
    description=text | st.text().map(lambda part: part * 5000),
    resources=st.lists(text, max_size=5),
    vm=text,
    reason=text,
)
def test_whatever_an_event_holds_a_process_can_be_given_it(
    description: str, resources: list[str], vm: str, reason: str
) -> None:
    event = an_event(description=description, resources=tuple(resources))
    for value in build_environment(a_record(event=event), EventStep.PREPARE, vm, reason).values():
        assert "\0" not in value
        assert len(value.encode()) <= 32_000
    told = json.loads(build_payload(a_record(event=event), EventStep.PREPARE, vm, reason))
    assert (told["event"]["description"], told["vm"], told["reason"]) == (description, vm, reason)


# Dry runs


def at_once(work: Coroutine[Any, Any, str]) -> str:
    """What becomes of something that waits for nothing."""
    with pytest.raises(StopIteration) as ended:
        work.send(None)
    value: str = ended.value.value
    return value


async def nothing_to_remember(_place: str, _memory: dict[str, Any]) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (
            EventStep.PREPARE,
            [
                "dry run: prepare would create the file /run/drain",
                "dry run: prepare would remove the file /run/ok",
                "dry run: prepare would run drain",
            ],
        ),
        (EventStep.BEFORE_APPROVAL, []),
        (EventStep.STARTED, ["dry run: started would run webhook example.com"]),
        (
            EventStep.RECOVER,
            [
                "dry run: recover would run undrain --now",
                "dry run: recover would undo: remove the file /run/ok",
                "dry run: recover would undo: create the file /run/drain",
            ],
        ),
    ],
)
def test_a_dry_run_says_what_it_would_do(step: EventStep, said: list[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "forewarn.agent"):
        assert at_once(DryRunExecutor().run(a_record(RULE), step, "db", nothing_to_remember)) == ""
    assert caplog.messages == said
