"""Tables that fit look as Rich prints them."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.cli import output as printed
from forewarn.cli.output import Column, Output
from forewarn.cli.plain_table import can_style, format_row, measure_columns

COLUMNS = [Column("name"), Column("state", is_state=True), Column("addresses", is_whole=False)]
CELLS = st.one_of(st.none(), st.text(max_size=8), st.sampled_from(["started", "Queued", "10.0.0.1, 10.0.0.2"]))
ROWS = st.lists(st.fixed_dictionaries({"name": CELLS, "state": CELLS, "addresses": CELLS}), min_size=1, max_size=4)


class _Terminal:
    """A terminal that keeps what is written."""

    encoding = "utf-8"

    def __init__(self, *, is_terminal: bool) -> None:
        self._is_terminal = is_terminal
        self.text = ""

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def print_rows(rows: list[dict[str, Any]], *, is_terminal: bool, is_plain: bool, width: int = 80) -> str:
    with pytest.MonkeyPatch.context() as patch:
        terminal = _Terminal(is_terminal=is_terminal)
        patch.setattr("sys.stdout", terminal)
        patch.setenv("TERM", "xterm-256color")
        patch.delenv("NO_COLOR", raising=False)
        patch.delenv("COLUMNS", raising=False)
        if is_terminal:
            patch.setenv("COLUMNS", str(width))
        if not is_plain:
            patch.setattr(printed, "measure_columns", lambda *_: None)
        Output().print_table(rows, COLUMNS)
    return terminal.text


def strip(text: str) -> list[str]:
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in text.splitlines()]


@given(ROWS)
def test_redirected_it_is_what_rich_prints(rows: list[dict[str, Any]]) -> None:
    assert print_rows(rows, is_terminal=False, is_plain=True) == print_rows(rows, is_terminal=False, is_plain=False)


@given(ROWS, st.integers(20, 90))
def test_on_a_terminal_it_has_the_text_that_rich_prints(rows: list[dict[str, Any]], width: int) -> None:
    plain = print_rows(rows, is_terminal=True, is_plain=True, width=width)
    assert strip(plain) == strip(print_rows(rows, is_terminal=True, is_plain=False, width=width))


def test_on_a_terminal_it_has_the_styles_that_rich_prints() -> None:
    rows = [{"name": "a", "state": state, "addresses": "-"} for state in ("queued", "Started", "failed", "unknown")]
    plain, rich = (print_rows(rows, is_terminal=True, is_plain=is_plain) for is_plain in (True, False))
    styled = re.compile(r"\x1b\[[0-9;]+m(\w+) *\x1b\[0m")
    assert {word for word in styled.findall(plain) if word.islower()} == {"queued", "failed"}
    assert [word for word in styled.findall(plain) if word != "unknown"] == [
        word for word in styled.findall(rich) if word != "unknown"
    ]
    assert "\x1b[1;31mStarted\x1b[0m" in plain


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False), ({}, False), ({"TERM": "xterm", "NO_COLOR": "1"}, False)],
)
def test_only_a_terminal_with_colours_is_styled(environment: dict[str, str], expected: bool) -> None:
    assert can_style(environment) is (expected and os.name == "posix")


def test_what_does_not_fit_or_may_be_wide_is_left_to_rich() -> None:
    assert measure_columns([["NAME", "B"], ["a", "bb"]], 8) == [4, 2]
    assert measure_columns([["NAME", "B"], ["a", "bb"]], 7) is None
    assert measure_columns([["NAME"], ["größe"]], None) is None
    assert format_row(["a", "bb"], ["", "bold"], [4, 2]) == "a     \x1b[1mbb\x1b[0m"
