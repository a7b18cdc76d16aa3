"""Scenario files that are wrong: each is refused with its line, and with what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from forewarn.errors import ConfigError, NotFound
from forewarn.testing.scenario.scenario_loader import load_scenario, shipped_scenarios
from tests.support.parsed_scenario import parse_scenario

HEAD = """\
title: A test
inventory:
  hosts: [{name: host-1}]
  vms: [{name: web-0, host: host-1}, {name: web-1, host: host-1}]
"""


def refused(content: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_scenario(content if isinstance(content, bytes) else content.encode(), "wrong", "wrong.yaml")
    return caught.value.message


def of(timeline: str) -> str:
    return HEAD + "timeline:\n" + timeline


@pytest.mark.parametrize(
    ("timeline", "expected"),
    [
        pytest.param("- poll: web-7\n", "wrong.yaml:6: there is no VM 'web-7' in the inventory", id="VM"),
        pytest.param("- fail_host: host-7\n", "wrong.yaml:6: there is no host 'host-7' in the inventory", id="host"),
        pytest.param("- pole: web-0\n", "wrong.yaml:6: unknown key 'pole'", id="unknown key"),
        pytest.param(
            "- poll: web-0\n- schedule: {vms: web-0, type: Freeze, howlong: 5}\n",
            "wrong.yaml:7: unknown key 'howlong'",
            id="unknown key within",
        ),
        pytest.param(
            "- at: 5s\n",
            "wrong.yaml:6: timeline: a step needs exactly one action, not 0: one of poll, approve,",
            id="nothing",
        ),
        pytest.param("- {poll: web-0, restart: web-0}\n", "needs exactly one action, not 2", id="two things"),
        pytest.param("- {at: 5s, after: started x, poll: web-0}\n", "cannot have both at and after", id="two times"),
        pytest.param(
            "- {at: soon, poll: web-0}\n", "'soon' is not a span of time: expected for example 90s", id="span"
        ),
        pytest.param("- {at: -5s, poll: web-0}\n", "wrong.yaml:6: timeline.at: a time cannot be negative", id="before"),
        pytest.param(
            "- {at: 60s, poll: web-0}\n- {at: 30s, poll: web-0}\n",
            "wrong.yaml:7: at: this is before the previous step, which begins at 60 s at the earliest",
            id="order",
        ),
        pytest.param(
            "- {at: 60s, poll: web-0}\n- {at: +30s, poll: web-0}\n- {at: 80s, poll: web-0}\n",
            "wrong.yaml:8: at: this is before the previous step, which begins at 90 s at the earliest",
            id="order of both kinds",
        ),
        pytest.param("- {after: started web, poll: web-0}\n", "no earlier step begins an operation 'web'", id="after"),
        pytest.param("- {after: eaten web, poll: web-0}\n", "'eaten web' is not a trigger", id="what"),
        pytest.param("- cancel: web\n", "no earlier step begins an operation 'web'", id="cancel"),
        pytest.param(
            "- restart: web-0\n- restart: web-1\n",
            "wrong.yaml:7: an earlier step begins an operation 'restart': choose another name, as in 'as: restart-2'",
            id="twice",
        ),
        pytest.param("- schedule: {vms: web-0}\n", "schedule: expected a type or a cause", id="type"),
        pytest.param("- schedule: {type: Freeze}\n", "schedule: expected either vms or hosts", id="where"),
        pytest.param(
            "- schedule: {vms: web-0, type: Melt}\n", "wrong.yaml:6: timeline.schedule.type: input should be", id="melt"
        ),
        pytest.param("- fault: sloth\n", "there is no fault 'sloth': expected one of 404, 410", id="fault"),
        pytest.param("- fault: {kind: 500, delay: 5s}\n", "fault 500 has no delay", id="fault without time"),
        pytest.param(
            "- expect: {within: 5s}\n", "nothing to check: expected status, approved", id="expectation of nothing"
        ),
        pytest.param(
            "- expect: {status: Started}\n", "expected 'event', the operation to check", id="expectation about nothing"
        ),
        pytest.param(
            "- restart: web-0\n- expect: {event: restart, status: Eaten}\n",
            "wrong.yaml:7: timeline.expect.status: input should be 'Scheduled', 'Started', 'gone' or 'absent'",
            id="status",
        ),
    ],
)
def test_a_step_that_cannot_be_is_refused(timeline: str, expected: str) -> None:
    assert expected in refused(of(timeline))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param("", "wrong.yaml:1: input should be", id="nothing"),
        pytest.param("title: A\n", "wrong.yaml:1: 'inventory' is missing", id="missing"),
        pytest.param("title: A\ntitle: B\n", "wrong.yaml:2: duplicate key 'title'", id="twice"),
        pytest.param("title: [\n", "wrong.yaml:2: not valid YAML", id="no YAML"),
        pytest.param(
            "a: &a [x]\nb: *a\n", "wrong.yaml:1: anchors and aliases are not allowed in a scenario", id="anchor"
        ),
        pytest.param("{[a]: b}", "wrong.yaml:1: expected a name before the colon", id="key"),
        pytest.param("a: !!python/object:os.system x\n", "cannot be read as", id="object"),
        pytest.param("a: " + "[" * 40 + "]" * 40, "nested too deeply: at most 12 levels are allowed", id="deep"),
        pytest.param(b"\xff\xfe\x00", "not valid YAML", id="bytes"),
        pytest.param(
            of("- poll: web-0\n") + "handler: db\n", "wrong.yaml:7: handler: there is no VM 'db'", id="handler"
        ),
        pytest.param(
            of("- poll: web-0\n") + "settings:\n  state_dir: /etc\n",
            "wrong.yaml:8: a scenario has no setting 'state_dir'",
            id="setting",
        ),
        pytest.param(
            of("- poll: web-0\n") + "settings:\n  first_answer_delay: 3h\n",
            "wrong.yaml:8: setting first_answer_delay",
            id="value of a setting",
        ),
        pytest.param(
            "title: A\ninventory: {vms: [{name: a, host: b}]}\ntimeline: [{poll: a}]\n",
            "wrong.yaml:2: inventory: ",
            id="inventory",
        ),
        pytest.param("title: A\ninventory: {}\ntimeline: [{poll: a}]\n", "wrong.yaml:2: inventory: ", id="no VM"),
    ],
)
def test_a_file_that_cannot_be_is_refused(content: str | bytes, expected: str) -> None:
    assert expected in refused(content)


def test_a_bomb_is_refused_before_it_is_put_together() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert "anchors and aliases are not allowed in a scenario" in refused("\n".join(lines))


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(100 << 20)
    with pytest.raises(ConfigError, match=r"a scenario may have at most 1048576 bytes, not 104857600"):
        load_scenario(str(path))
    assert "exceed the limit of 1048576" in refused(b" " * (2 << 20))


def test_a_scenario_that_is_not_there_is_not_found() -> None:
    with pytest.raises(NotFound, match="see 'forewarn scenario list'"):
        load_scenario("nowhere")


@pytest.mark.parametrize("name", shipped_scenarios())
def test_every_scenario_that_comes_with_forewarn_can_be_loaded(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.description
    assert any(step.expect is not None for step in scenario.steps)
    assert len(scenario.lines) == len(scenario.steps)
