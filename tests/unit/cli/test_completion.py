"""What the tab key offers that needs no service; what the service knows stands in the integration tests."""

from __future__ import annotations

from typing import Any

import pytest
import typer.main

from forewarn.cli.completion import Shell
from forewarn.cli.main import make_app, run_command_line
from forewarn.core.causes import CAUSES
from forewarn.core.fault import FAULTS
from forewarn.testing.scenario.scenario_loader import shipped_scenarios

ROOT: Any = typer.main.get_command(make_app())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", ROOT.list_commands(None)),
        ("mai", ["maintenance"]),
        ("vm re", ["restart", "redeploy", "reimage"]),
        ("vm list --js", ["--json"]),
        ("maintenance schedule --type re", ["Reboot", "Redeploy"]),
        ("maintenance schedule --cause ", list(CAUSES)),
        ("serve --clock ", ["real", "virtual"]),
        ("fault inject ", list(FAULTS)),
        ("fault inject --method ", ["GET", "POST"]),
        ("try --scenario ", shipped_scenarios()),
        ("audit-log ", ["verify", "head"]),
        ("audit-log --f", ["--follow"]),
        ("audit-log verify --data", ["--database-url"]),
        ("completion ", ["bash", "zsh", "fish"]),
        ("inventory apply ", []),
    ],
)
def test_what_may_stand_there_is_offered(
    line: str, expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["forewarn", *line.split(" ")]
    monkeypatch.setenv("_FOREWARN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "\n".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    assert run_command_line([]) == 0
    captured = capsys.readouterr()
    assert captured.out.split() == expected
    assert captured.err == ""


@pytest.mark.parametrize("shell", Shell)
def test_the_script_of_a_shell_is_printed_for_the_asking(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["completion", shell]) == 0
    assert f"_FOREWARN_COMPLETE=complete_{shell}" in capsys.readouterr().out


def test_there_is_one_door_to_completion(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["--help"]) == 0
    assert "-completion" not in capsys.readouterr().out
