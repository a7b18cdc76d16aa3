"""`forewarn agent check` says what would fail at the first event: commands that cannot be run, rules without a turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.spans import GUARD_S

CLI = (sys.executable, "-m", "forewarn")


def check(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    config = folder / "agent.toml"
    config.write_text(text.replace("{folder}", str(folder)))
    environment = os.environ | {"NO_COLOR": "1", "COLUMNS": "200", "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    return subprocess.run(
        [*CLI, "agent", "check", "--config", str(config), *options],
        check=False,
        capture_output=True,
        text=True,
        timeout=GUARD_S,
        env=environment,
    )


def a_file(path: Path, text: str, mode: int = 0o755) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("/nowhere/drain", "/nowhere/drain does not exist"),
        ("{folder}/plain", "{folder}/plain is not executable"),
        ("{folder}", "{folder} is a folder"),
        ("no-such-program", "'no-such-program' is not on the PATH"),
        ("plain-too", "{folder}/bin/plain-too is not executable"),
        ("{folder}/bin/headless", "{folder}/bin/headless has no #! line that names its interpreter"),
        ("{folder}/bin/lost", "the interpreter of {folder}/bin/lost, /nowhere/sh, does not exist"),
        ("{folder}/bin/empty", "the #! line of {folder}/bin/empty names no interpreter"),
    ],
)
def test_a_command_that_cannot_be_run_fails_with_its_place(tmp_path: Path, program: str, why: str) -> None:
    a_file(tmp_path / "plain", "#!/bin/sh\n", 0o644)
    a_file(tmp_path / "bin" / "plain-too", "#!/bin/sh\n", 0o644)
    a_file(tmp_path / "bin" / "headless", "echo drained\n")
    a_file(tmp_path / "bin" / "lost", "#!/nowhere/sh -e\n")
    a_file(tmp_path / "bin" / "empty", "#!\n")
    text = f'[[rule]]\nname = "db"\nprepare = [\n  ["true"],\n  ["{program}", "--now"],\n]\n'
    done = check(tmp_path, text)
    why = why.replace("{folder}", str(tmp_path))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == f"forewarn: {tmp_path}/agent.toml: db, prepare: {why}\n"
    told = check(tmp_path, text, "--json")
    assert told.returncode == 1
    assert json.loads(told.stdout)["errors"] == [f"{tmp_path}/agent.toml: db, prepare: {why}"]


def test_every_command_of_every_step_is_looked_at(tmp_path: Path) -> None:
    steps = ("prepare", "before_approval", "started", "recover", "canceled", "alert")
    text = "[[rule]]\n" + "".join(f'{step} = [{{ command = ["/nowhere/{step}"] }}]\n' for step in steps)
    done = check(tmp_path, text)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"forewarn: {tmp_path}/agent.toml: rule 1, {step}: /nowhere/{step} does not exist" for step in steps
    ]


def test_commands_that_can_be_run_are_no_fault(tmp_path: Path) -> None:
    a_file(tmp_path / "bin" / "drain", "#!/bin/sh\n")
    a_file(tmp_path / "bin" / "readable-by-nobody", "#!/bin/sh\n", 0o111)
    commands = [["drain"], [f"{tmp_path}/bin/drain", "--now"], [sys.executable, "-V"], ["readable-by-nobody"]]
    others = ['{ shell = "/nowhere/x" }', '{ webhook = "http://127.0.0.1:1/" }']
    toml = ", ".join([*map(json.dumps, commands), *others])
    done = check(tmp_path, f"[[rule]]\nprepare = [{toml}]\n")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_rule_that_can_never_match_is_said_with_its_place_and_the_reason(tmp_path: Path) -> None:
    done = check(
        tmp_path,
        """
[[rule]]
name = "mine"

[[rule]]
name = "freezes"
types = ["Freeze"]

[[rule]]
name = "between"
affects = "others"
min_duration = 1.2
max_duration = 1.8
""",
    )
    assert done.returncode == 0
    config = f"{tmp_path}/agent.toml"
    no_second = "no whole number of seconds lies between min_duration and max_duration"
    assert done.stderr.splitlines() == [
        f"warning: {config}: 'freezes' can never match: the earlier rule 'mine' matches every event that it would",
        f"warning: {config}: 'between' can never match: {no_second}",
    ]
