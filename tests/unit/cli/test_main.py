"""The commands as a whole: their help, and how errors come out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from forewarn import __version__
from forewarn.cli.main import NOUNS, format_error, make_app, run_command_line
from forewarn.errors import NotFound

VERBS = {
    "serve": "",
    "endpoint": "",
    "agent": "run check status approve retry recover install uninstall",
    "demo": "",
    "database": "copy show",
    "inventory": "apply diff from-libvirt follow-libvirt show",
    "vm": "list show history restart redeploy reimage evict delete update-model",
    "status": "",
    "doctor": "",
    "scope": "list show",
    "policy": "show",
    "host": "list show fail recover create-token tokens revoke-token predict-failure",
    "token": "create list revoke whoami",
    "maintenance": "schedule list show approve cancel start retry wait complete impact defer extend",
    "rollout": "start list show pause resume abort",
    "event": "list approve",
    "audit-log": "",
    "audit-log verify": "",
    "audit-log head": "",
    "dashboard": "",
    "subscription": "create list show delete pause resume rotate-secret test deliveries redeliver",
    "clock": "show confirm advance",
    "try": "",
    "scenario": "list show play check schema from-transcript",
    "fault": "kinds list inject clear",
    "requests": "",
    "record": "",
    "replay": "",
    "conformance": "",
    "limit": "list",
    "config": "show",
    "openapi": "",
    "completion": "",
    "version": "",
}
"""The verbs of each noun; none for a command that stands alone."""
EXPECTED = {f"{noun} {verb}".strip() for noun, verbs in VERBS.items() for verb in verbs.split() or [""]}
LOCAL = {
    "serve",
    "endpoint",
    *(f"agent {verb}" for verb in VERBS["agent"].split()),
    *(f"scenario {verb}" for verb in VERBS["scenario"].split()),
    *(f"database {verb}" for verb in VERBS["database"].split()),
    "inventory from-libvirt",
    "fault kinds",
    "try",
    "record",
    "replay",
    "conformance",
    "demo",
    "config show",
    "openapi",
    "completion",
    "version",
}


def _walk(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - Typer's own
    children = getattr(command, "commands", {})
    if not children or command.invoke_without_command:
        yield " ".join(words), command
    for name, child in children.items():
        yield from _walk(child, (*words, name))


COMMANDS = dict(_walk(typer.main.get_command(make_app())))


def _options(name: str) -> set[str]:
    return {option for parameter in COMMANDS[name].params for option in parameter.opts}


def test_every_command_of_the_design_is_there() -> None:
    assert set(COMMANDS) == EXPECTED


def test_all_nouns_are_listed_in_their_order() -> None:
    root: Any = typer.main.get_command(make_app())
    assert root.list_commands(typer.Context(root)) == list(NOUNS)


@pytest.mark.parametrize("noun", NOUNS)
def test_a_noun_comes_with_the_commands_of_its_module_only(noun: str) -> None:
    of_module = {name for name, module in NOUNS.items() if module == NOUNS[noun]}
    root: Any = typer.main.get_command(make_app([noun]))
    assert set(root.commands) == of_module


def test_a_command_imports_no_other_ones_module() -> None:
    program = "import sys; from forewarn.cli.main import run_command_line; run_command_line(['version']); "
    program += "print(*(name for name in sys.modules if name.startswith('forewarn.cli.')))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert "forewarn.cli.version" in done.stdout
    assert "forewarn.cli.vm" not in done.stdout


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_command_has_a_summary_and_an_example_that_begins_with_it(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    assert command.help.splitlines()[0].rstrip().endswith(".")
    assert f"forewarn {name}" in command.epilog


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_paragraph_of_help_is_wrapped_by_the_terminal_alone(name: str) -> None:
    paragraphs = COMMANDS[name].help.split("\n\n")
    assert [text for text in paragraphs for line in text.split("\n")[1:] if not line.startswith((" ", "- "))] == []


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_option_of_a_command_says_what_it_is(name: str) -> None:
    assert [p.name for p in COMMANDS[name].params if not p.help] == []


@pytest.mark.parametrize("name", sorted(EXPECTED - LOCAL))
def test_a_command_that_asks_the_service_can_be_told_where_it_is(name: str) -> None:
    assert _options(name) >= {"--control-url", "--token-file", "--json", "--debug"}


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["vm", "--help"], ["vm", "restart", "-h"]])
def test_help_is_printed_for_the_asking(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(arguments) == (0 if arguments else 2)
    assert "Usage: forewarn" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["vm", "lst"], "no such command 'lst'. Did you mean 'list'?"),
        (["vm", "list", "--jsn"], "no such option: --jsn"),
        (["vm", "show"], "missing argument 'NAME'"),
        (["maintenance", "start", "k3"], "missing option '--reason'"),
        (["maintenance", "schedule", "--type", "Freeze"], "name hosts or VMs, or select hosts by their labels"),
        (["maintenance", "schedule", "--vm", "db"], "give a type, for example --type Freeze"),
        (["maintenance", "schedule", "--vm", "db", "--host", "h", "--type", "Freeze"], "not several of them"),
        (["maintenance", "schedule", "--vm", "db", "--type", "Sleep"], "'Sleep' is not one of 'freeze'"),
        (["maintenance", "schedule", "--vm", "db", "--type", "Freeze", "--force"], "requires --reason"),
        (["vm", "restart", "db", "--notice", "soon"], "expected for example 90s, 15m, 24h or 7d"),
        (["serve", "--set", "notice_mxa=7d"], "did you mean notice_max?"),
        (["serve", "--set", "notice_max"], "must be NAME=VALUE"),
        (["serve", "--set", "notice_max=long"], "setting notice_max: 'long' is not a span of time"),
        (["serve", "--set", "connections_max=0"], "setting connections_max"),
        (["serve", "--clock", "sundial"], "--clock: Input should be 'real' or 'virtual'"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("forewarn: ")
    assert said in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(("text", "said"), [(None, "no such file"), ("= 1", "line 1"), ("speed = 9", "setting speed")])
def test_a_settings_file_that_cannot_be_used_is_one_line_and_status_1(
    text: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "forewarn.toml"
    if text is not None:
        path.write_text(text)
    assert run_command_line(["serve", "--config", str(path)]) == 1
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_an_error_is_one_line_whatever_it_quotes() -> None:
    assert format_error(NotFound("vm 'a\x1b[2J\nb' does not exist")) == "vm 'a\\x1b[2J b' does not exist"
    assert format_error(OSError(28, "No space left on device")) == "cannot write the output: No space left on device"
    assert format_error(FileNotFoundError(2, "No such file", "x.pem")) == "x.pem: No such file"


def test_a_control_url_that_is_none_fails_without_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["vm", "list", "--control-url", "nowhere"]) == 1
    assert (
        capsys.readouterr().err
        == "forewarn: invalid control URL 'nowhere': expected for example http://127.0.0.1:8170\n"
    )


def test_debug_shows_the_trace_before_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["vm", "list", "--control-url", "nowhere", "--debug"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-1].startswith("forewarn: invalid control URL")


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["version"]) == 0
    assert capsys.readouterr().out == f"forewarn {__version__}\n"


@pytest.mark.parametrize("option", [["--json"], ["--control-url", "http://127.0.0.1:1"]])
def test_an_option_before_a_subcommand_that_would_not_see_it_is_refused(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["audit-log", *option, "verify"]) == 2
    assert f"{option[0]}: write it after 'verify'" in capsys.readouterr().err
