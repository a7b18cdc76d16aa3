"""`forewarn scenario check`, `schema`, and `--set`, as people run them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forewarn.cli.main import run_command_line
from forewarn.testing.scenario.scenario_schema import scenario_schema

PAUSE = """\
title: A pause
parameters: {vm: web-0, notice: 15m}
inventory: {hosts: [{name: host-1}], vms: [{name: "${vm}", host: host-1}]}
timeline:
- poll: ${vm}
- schedule: {as: pause, vms: "${vm}", type: Freeze, notice: "${notice}"}
- expect: {event: pause, status: Scheduled}
"""


@pytest.fixture
def pause(tmp_path: Path) -> str:
    path = tmp_path / "pause.yaml"
    path.write_text(PAUSE)
    return str(path)


def test_a_check_of_good_files_says_ok(pause: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["scenario", "check", pause, "short-freeze"]) == 0
    assert capfd.readouterr().out == f"{pause}: ok\nshort-freeze: ok\n"


def test_a_check_says_every_fault_of_every_file_and_fails(
    pause: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(PAUSE + "- pol: web-0\n- restart: {vm: web-0, notce: 5m}\n")
    assert run_command_line(["scenario", "check", str(wrong), pause, "nowhere.yaml", "--json"]) == 1
    first, second, third = json.loads(capfd.readouterr().out)
    assert first["ok"] is False
    assert f"{wrong}:8: unknown key 'pol': did you mean 'poll'?" in first["faults"]
    assert f"{wrong}:9: unknown key 'notce': did you mean 'notice'?" in first["faults"]
    assert second == {"file": pause, "ok": True, "faults": []}
    assert "there is no scenario or file" in third["faults"][0]


def test_the_schema_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["scenario", "schema"]) == 0
    assert json.loads(capfd.readouterr().out) == scenario_schema()


def test_a_check_does_not_complain_of_what_only_follows(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A list whose every item is wrong is not too short; one without items is."""
    head = "title: A\ninventory: {hosts: [{name: h}], vms: [{name: web-0, host: h}]}\n"
    wrong, empty = tmp_path / "wrong.yaml", tmp_path / "empty.yaml"
    wrong.write_text(f"{head}timeline: [{{pol: web-0}}]\n")
    empty.write_text(f"{head}timeline: []\n")
    assert run_command_line(["scenario", "check", str(wrong), str(empty), "--json"]) == 1
    first, second = json.loads(capfd.readouterr().out)
    assert [fault.partition(": ")[2] for fault in first["faults"]] == ["unknown key 'pol': did you mean 'poll'?"]
    assert second["faults"] == [f"{empty}:3: timeline: at least 1 expected, found 0"]


def test_parameters_are_set_for_one_run(pause: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["scenario", "play", pause, "--set", "notice=30s", "--set", "vm=db-0"]) == 0
    assert "db-0 polls" in capfd.readouterr().out
    assert run_command_line(["scenario", "show", pause, "--set", "notice=30s", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["steps"][1]["schedule"]["notice"] == "30s"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["notise=30s"], "the scenario has no parameter 'notise': did you mean 'notice'?"),
        (["notice"], "'notice' must be NAME=VALUE"),
        (["notice=1s", "notice=2s"], "with each name once"),
        (["notice=soon"], "'soon' is not a span of time"),
    ],
)
@pytest.mark.parametrize("noun", ["scenario", "try"])
def test_parameters_that_cannot_be_set_are_refused(
    noun: str, given: list[str], words: str, pause: str, capfd: pytest.CaptureFixture[str]
) -> None:
    options = [part for text in given for part in ("--set", text)]
    arguments = {
        "scenario": ["scenario", "play", pause, *options],
        "try": ["try", *options, "--scenario", pause, "--", "true"],
    }
    assert run_command_line(arguments[noun]) in {1, 2}
    errors = capfd.readouterr().err
    assert words in errors
    assert errors.count("\n") == 1


def test_a_failed_step_of_an_included_timeline_is_named_with_its_file(
    pause: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    top = tmp_path / "top.yaml"
    inner = tmp_path / "inner.yaml"
    inner.write_text(PAUSE.replace("status: Scheduled", "status: Started"))
    top.write_text(
        "title: Top\ninventory: {hosts: [{name: host-1}], vms: [{name: web-0, host: host-1}]}\n"
        "timeline:\n- include: inner.yaml\n"
    )
    assert run_command_line(["scenario", "play", str(top)]) == 1
    output, errors = capfd.readouterr()
    assert f"{inner}, line 7: " in output
    assert f"the first in {inner}, line 7: " in errors
