"""What the tab key offers at the end of a command line; what the service knows stands in the integration tests."""

from __future__ import annotations

import pytest
import typer.main

from forewarn.cli.completion import SCRIPTS, Shell, print_candidates
from forewarn.cli.completion_candidates import find_candidates
from forewarn.cli.main import _NOUNS, _build_narrow_app, app, run_command_line
from forewarn.core.causes import CAUSES
from forewarn.core.fault import FAULTS
from forewarn.testing.scenario_loader import shipped_scenarios

ROOT = typer.main.get_command(app)
NOUNS = list(_NOUNS)


def offered(*words: str) -> list[str]:
    offer = find_candidates(ROOT, words)
    return [word for word, _ in offer.words] if offer.kind == "words" else [offer.kind]


def test_nothing_typed_offers_every_command_with_its_summary() -> None:
    offer = find_candidates(ROOT, [""])
    assert [word for word, _ in offer.words] == NOUNS
    assert all(about for _, about in offer.words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["mai"], ["maintenance"]),
        (["vm", "re"], ["restart", "redeploy", "reimage"]),
        (["vm", "list", "--js"], ["--json"]),
        (["vm", "list", "--json", "--js"], []),
        (["vm", "list", "-"], ["--json", "--debug", "--control-url", "--token-file", "--help"]),
        (["maintenance", "schedule", "--type", "re"], ["Reboot", "Redeploy"]),
        (["maintenance", "schedule", "--type=re"], ["--type=Reboot", "--type=Redeploy"]),
        (["maintenance", "schedule", "--type", "=", "re"], ["Reboot", "Redeploy"]),
        (["maintenance", "schedule", "--type", "="], ["Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"]),
        (["maintenance", "schedule", "--vm", "db", "--not"], ["--notice", "--not-before"]),
        (["serve", "--clock", ""], ["real", "virtual"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["inventory", "apply", ""], ["files"]),
        (["serve", "--state-dir", ""], ["folders"]),
        (["try", "--", "./my"], ["files"]),
        (["try", "--", "--js"], ["files"]),
        (["scenario", "show", "./mine"], ["files"]),
        (["--he"], ["--help"]),
        (["nonsense", ""], []),
        (["vm", "nonsense", ""], []),
        (["version", "more", ""], []),
        (["clock", "advance", ""], []),
    ],
    ids=" ".join,
)
def test_what_may_stand_there_is_offered(words: list[str], expected: list[str]) -> None:
    assert offered(*words) == expected


def test_what_comes_with_forewarn_is_offered_without_a_service() -> None:
    assert offered("try", "--scenario", "") == shipped_scenarios()
    assert offered("maintenance", "schedule", "--cause", "") == [cause.name for cause in CAUSES.values()]
    assert offered("fault", "inject", "") == [kind.name for kind in FAULTS.values()]


@pytest.mark.parametrize("noun", NOUNS)
def test_a_line_is_completed_the_same_when_only_its_noun_is_made(noun: str) -> None:
    narrow = typer.main.get_command(_build_narrow_app([noun, ""]))
    assert find_candidates(narrow, [noun, "-"]) == find_candidates(ROOT, [noun, "-"])
    assert find_candidates(narrow, [noun, ""]).kind == find_candidates(ROOT, [noun, ""]).kind


def test_an_answer_is_a_line_for_each_word(capsys: pytest.CaptureFixture[str]) -> None:
    print_candidates(ROOT, ["vm", "li"])
    assert capsys.readouterr().out == "words\nlist\tList every VM, and whether its scope has asked for events.\n"


def test_what_goes_wrong_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    print_candidates(None, ["vm", ""])
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


@pytest.mark.parametrize("shell", Shell)
def test_the_script_of_a_shell_is_printed_for_the_asking(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["completion", shell]) == 0
    assert capsys.readouterr().out == SCRIPTS[shell]


def test_a_command_of_two_words_is_offered_after_the_first_of_them() -> None:
    assert [word for word, _ in find_candidates(ROOT, ["audit-log", ""]).words] == ["verify", "head"]
    assert [word for word, _ in find_candidates(ROOT, ["audit-log", "v"]).words] == ["verify"]
    assert "--follow" in [word for word, _ in find_candidates(ROOT, ["audit-log", "--f"]).words]
    assert [word for word, _ in find_candidates(ROOT, ["audit-log", "verify", "--data"]).words] == ["--database-url"]
