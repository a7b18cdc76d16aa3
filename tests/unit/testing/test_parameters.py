"""Parameters of scenarios, and timelines that include others."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from forewarn.errors import ConfigError
from forewarn.testing.scenario.scenario_loader import Scenario, check_scenario, load_scenario
from forewarn.testing.scenario.scenario_model import ScheduleStep, StepTime
from tests.support.parsed_scenario import parse_scenario

HEAD = """\
title: A test
inventory:
  hosts: [{name: host-1}]
  vms: [{name: web-0, host: host-1}, {name: web-1, host: host-1}]
"""
PARAMETERS = "parameters: {vm: web-0, seconds: 9, notice: 5m}\n"
TIMELINE = """\
timeline:
- poll: ${vm}
- note: $${x} for ${vm}
  schedule: {vms: ["${vm}"], type: Freeze, duration: "${seconds}", notice: "${notice}"}
"""


def parsed(content: str, **given: str) -> Scenario:
    return parse_scenario(content.encode(), "a", "a.yaml", given=given)


def refused(content: str, **given: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parsed(content, **given)
    return caught.value.message


def schedule_of(scenario: Scenario) -> ScheduleStep:
    return next(step.schedule for step in scenario.steps if step.schedule is not None)


def test_parameters_have_their_defaults() -> None:
    scenario = parsed(HEAD + PARAMETERS + TIMELINE)
    made = schedule_of(scenario)
    assert (made.vms, made.duration, made.notice) == (("web-0",), 9, timedelta(minutes=5))
    assert scenario.steps[1].note == "${x} for web-0"


def test_given_values_take_the_place_of_defaults_and_have_their_types() -> None:
    made = schedule_of(parsed(HEAD + PARAMETERS + TIMELINE, vm="web-1", seconds="30", notice="30"))
    assert (made.vms, made.duration, made.notice) == (("web-1",), 30, timedelta(seconds=30))


@pytest.mark.parametrize(
    ("content", "given", "expected"),
    [
        pytest.param(
            PARAMETERS + TIMELINE, {"notise": "1s"}, "no parameter 'notise': did you mean 'notice'?", id="given"
        ),
        pytest.param(
            PARAMETERS + TIMELINE,
            {"seconds": "long"},
            "expected a whole number, like its default 9, not 'long'",
            id="type",
        ),
        pytest.param("timeline: [{poll: web-0}]\n", {"a": "1"}, "no parameter 'a': it declares none", id="none"),
        pytest.param(
            PARAMETERS.replace("vm:", "mv:") + TIMELINE,
            {},
            "a.yaml:7: there is no parameter 'vm': expected one of mv, seconds",
            id="unknown",
        ),
        pytest.param(
            "timeline:\n- poll: ${vm}\n", {}, "a.yaml:6: there is no parameter 'vm': declare it", id="undeclared"
        ),
        pytest.param(
            "parameters: {a: 1}\ntimeline: [{poll: web-0}]\n", {}, "a.yaml:5: parameter 'a' is not used", id="unused"
        ),
        pytest.param("timeline:\n- poll: ${vm\n", {}, "a.yaml:6: '${vm' has no closing brace", id="open"),
        pytest.param(
            "parameters: {a: []}\ntimeline: []\n", {}, "a.yaml:5: parameters.a: a parameter must be text", id="list"
        ),
        pytest.param("parameters: {a: '${b}'}\ntimeline: []\n", {}, "cannot contain another parameter", id="nested"),
        pytest.param(
            f"parameters: {{a: {'x' * 1001}}}\ntimeline: []\n", {}, "at most 1000 characters, not 1001", id="long"
        ),
        pytest.param(PARAMETERS + TIMELINE, {"vm": "x" * 1001}, "at most 1000 characters, not 1001", id="long given"),
        pytest.param(
            "parameters: {" + ", ".join(f"a{n}: 1" for n in range(101)) + "}\ntimeline: []\n",
            {},
            "a.yaml:5: parameters: dictionary should have at most 100 items",
            id="many",
        ),
        pytest.param(
            f"parameters: {{a: {'x' * 1000}}}\ntimeline:\n- note: {'${a}' * 1100}\n  poll: web-0\n",
            {},
            "a.yaml:7: the parameters expand to more than 1048576 characters",
            id="bomb",
        ),
    ],
)
def test_parameters_that_cannot_be_are_refused(content: str, given: dict[str, str], expected: str) -> None:
    assert expected in refused(HEAD + content, **given)


# Included timelines

INCLUDED = """\
title: Restarted
parameters: {vm: a, name: first}
inventory: {hosts: [{name: h}], vms: [{name: a, host: h}]}
timeline:
- restart: {vm: "${vm}", as: "${name}"}
- at: +1m
  cancel: ${name}
"""


def test_the_steps_of_included_timelines_come_in_their_place(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "restarted.yaml").write_text(INCLUDED)
    (tmp_path / "sub" / "twice.yaml").write_text(
        "title: Twice\ninventory: {}\ntimeline:\n- include: ../restarted.yaml\n  set: {vm: web-0}\n"
        "- include: ../restarted.yaml\n  set: {vm: web-1, name: second}\n"
    )
    top = tmp_path / "top.yaml"
    top.write_text(HEAD + "timeline:\n- poll: web-0\n- include: sub/twice.yaml\n- poll: web-1\n")
    scenario = load_scenario(str(top))
    assert [step.action_name for step in scenario.steps] == ["poll", "restart", "cancel", "restart", "cancel", "poll"]
    assert [step.operation_begun for step in scenario.steps if step.operation_begun] == ["first", "second"]
    assert scenario.steps[2].at == StepTime(timedelta(minutes=1), is_relative=True)
    assert scenario.lines == (6, 5, 6, 5, 6, 8)
    assert [Path(file).name for file in scenario.files] == ["", *["restarted.yaml"] * 4, ""]


def test_a_shipped_scenario_is_included_by_its_name() -> None:
    scenario = parsed(HEAD + "timeline:\n- include: short-freeze\n")
    assert [step.action_name for step in scenario.steps] == [
        step.action_name for step in load_scenario("short-freeze").steps
    ]
    assert set(scenario.files) == {"short-freeze"}


@pytest.mark.parametrize(
    ("step", "included", "expected"),
    [
        pytest.param(
            "include: short-freze", "", "top.yaml:6: include: there is no scenario 'short-freze': did you", id="name"
        ),
        pytest.param("include: inn.yaml", INCLUDED, "did you mean 'in.yaml'?", id="file"),
        pytest.param("include: /in.yaml", INCLUDED, "must be relative to the file", id="absolute"),
        pytest.param("include: top.yaml", "", "top.yaml:6: include: ", id="itself"),
        pytest.param("include: in.yaml", INCLUDED + "- include: in.yaml\n", "in.yaml:8: include: ", id="cycle"),
        pytest.param("include: in.yaml", INCLUDED, "in.yaml:5: there is no VM 'a' in the inventory", id="VM"),
        pytest.param(
            "include: in.yaml", INCLUDED.replace("+1m", "1m"), "in.yaml:6: at: a time in an included", id="moment"
        ),
        pytest.param(
            "include: in.yaml",
            INCLUDED.replace("cancel", "cancle"),
            "in.yaml:7: unknown key 'cancle': did you mean 'cancel'?",
            id="key",
        ),
        pytest.param(
            "{include: in.yaml, set: {nme: x}}", INCLUDED, "no parameter 'nme': did you mean 'name'?", id="set"
        ),
        pytest.param("{include: in.yaml, at: 5s}", INCLUDED, "may only have 'set' beside it", id="moment beside"),
        pytest.param("{poll: web-0, set: {vm: x}}", INCLUDED, "'set' needs 'include'", id="set beside"),
    ],
)
def test_what_cannot_be_included_is_refused_with_file_and_line(
    step: str, included: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "in.yaml").write_text(included)
    top = tmp_path / "top.yaml"
    top.write_text(HEAD + f"timeline:\n- {step}\n")
    with pytest.raises(ConfigError) as caught:
        load_scenario(str(top))
    assert expected in caught.value.message


def test_included_timelines_are_limited_in_depth_and_in_number(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}.yaml").write_text(HEAD + f"timeline:\n- poll: web-0\n- include: {number + 1}.yaml\n")
    with pytest.raises(
        ConfigError, match=r"5\.yaml:7: include: too many: at most 100 timelines, nested at most 5 deep"
    ):
        load_scenario(str(tmp_path / "0.yaml"))
    (tmp_path / "many.yaml").write_text(HEAD + "timeline:\n" + "- poll: web-0\n" * 300)
    (tmp_path / "top.yaml").write_text(HEAD + "timeline:\n" + "- include: many.yaml\n" * 4)
    with pytest.raises(
        ConfigError, match=r"many\.yaml:106: more than 1000 steps, including those of included timelines"
    ):
        load_scenario(str(tmp_path / "top.yaml"))


# Everything that is wrong, and what was meant


def test_a_check_finds_every_fault_of_a_form_or_of_what_steps_name(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(HEAD + "timeline:\n- pol: web-0\n- fault: sloww-body\n- schedule: {vms: web-0, type: Frieze}\n")
    form = [error.message for error in check_scenario(str(path))]
    assert any("a.yaml:6: unknown key 'pol': did you mean 'poll'?" in each for each in form)
    assert any("a.yaml:7" in each and "did you mean 'slow-body'?" in each for each in form)
    assert any("a.yaml:8" in each and "did you mean 'Freeze'?" in each for each in form)
    path.write_text(HEAD + "timeline:\n- poll: web0\n- restart: web-1\n- cancel: restrat\n- fail_host: host1\n")
    named = [error.message for error in check_scenario(str(path))]
    assert [each.rpartition(": ")[2] for each in named] == [
        "did you mean 'web-0'?",
        "did you mean 'restart'?",
        "did you mean 'host-1'?",
    ]
    path.write_text(HEAD + "timeline:\n- poll: web-0\nsettings: {anounce_delay: 5s}\n")
    assert "a.yaml:7" in check_scenario(str(path))[0].message
    assert "did you mean 'announce_delay'?" in check_scenario(str(path))[0].message
    path.write_text(HEAD.replace("hosts", "hostz") + "timeline:\n- poll: web-0\n")
    assert "a.yaml:3: unknown key 'hostz': did you mean 'hosts'?" in check_scenario(str(path))[0].message
    assert "did you mean 'short-freeze'?" in check_scenario("short-freez")[0].message
    assert check_scenario("short-freeze") == []
