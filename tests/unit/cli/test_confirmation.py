"""What cannot be taken back asks first, and is refused where no one can be asked."""

from __future__ import annotations

import io
import sys

import pytest
import typer

from forewarn.cli.confirmation import NotConfirmed, confirm
from forewarn.cli.main import run_command_line
from forewarn.cli.output import Output

NOWHERE = ["--control-url", "http://127.0.0.1:9"]
FINAL = [
    ["vm", "delete", "web-0"],
    ["vm", "evict", "web-0"],
    ["vm", "reimage", "web-0"],
    ["host", "fail", "host-1"],
    ["host", "revoke-token", "host-1", "k3"],
    ["rollout", "abort", "k3"],
    ["subscription", "delete", "chat"],
    ["token", "revoke", "k3"],
]


class Terminal(io.StringIO):
    """A person who types, or reads."""

    def isatty(self) -> bool:
        return True


def typing(monkeypatch: pytest.MonkeyPatch, text: str) -> Terminal:
    shown = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(text))
    monkeypatch.setattr(sys, "stderr", shown)
    return shown


@pytest.mark.parametrize("words", FINAL, ids=" ".join)
def test_without_a_terminal_and_without_yes_it_is_refused_before_anything_is_sent(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert run_command_line([*words, *NOWHERE]) == 2
    said = capsys.readouterr().err
    assert said.startswith("forewarn: this cannot be undone, and there is no terminal to ask on: pass --yes")
    assert said.count("\n") == 1


@pytest.mark.parametrize("words", FINAL, ids=" ".join)
def test_with_yes_it_is_sent(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert run_command_line([*words, "--yes", *NOWHERE]) == 3
    assert "cannot reach http://127.0.0.1:9" in capsys.readouterr().err


def test_on_a_terminal_it_says_what_will_happen_and_goes_on_after_a_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = typing(monkeypatch, "y\n")
    confirm(Output(), lambda: "VM web-0 is deleted.", yes=False)
    assert "VM web-0 is deleted." in shown.getvalue()


@pytest.mark.parametrize("answer", ["n\n", "\n"])
def test_anything_else_does_nothing_and_fails(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    shown = typing(monkeypatch, answer)
    with pytest.raises(typer.Exit) as caught:
        confirm(Output(), lambda: "VM web-0 is deleted.", yes=False)
    assert caught.value.exit_code == 1
    assert "nothing was changed" in shown.getvalue()


def test_the_end_of_the_input_is_no_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    typing(monkeypatch, "")
    with pytest.raises(typer.Abort):
        confirm(Output(), lambda: "VM web-0 is deleted.", yes=False)


def test_nothing_is_looked_up_where_it_was_confirmed_or_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> str:
        raise AssertionError

    confirm(Output(), fails, yes=True)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(NotConfirmed):
        confirm(Output(), fails, yes=False)


def test_each_line_is_shown_on_a_line_and_none_can_hide_another(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = typing(monkeypatch, "y\n")
    confirm(Output(), lambda: ["2 VMs:", "  a", "  b\nc"], yes=False)
    assert shown.getvalue().splitlines()[:3] == ["2 VMs:", "  a", r"  b\nc"]
