from __future__ import annotations

import io

import pytest

from forewarn.demo.lanes import LaneState, Mark
from forewarn.demo.style import THEME, DemoConsole, ProtocolHighlighter, make_console
from forewarn.demo.vms import LANES

TERMINAL = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}


class Unread(io.StringIO):
    """A pipe whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def printed(environment: dict[str, str]) -> str:
    file = io.StringIO()
    make_console(environment, file).print(ProtocolHighlighter()("WestNO_0 approves"))
    return file.getvalue()


def test_a_terminal_gets_colours() -> None:
    assert "\x1b[36mWestNO_0\x1b[0m" in printed(TERMINAL)


@pytest.mark.parametrize("environment", [{}, TERMINAL | {"NO_COLOR": "1"}], ids=["no terminal", "NO_COLOR"])
def test_elsewhere_there_is_no_escape_code(environment: dict[str, str]) -> None:
    assert printed(environment) == "WestNO_0 approves\n"


def test_an_empty_no_color_is_none() -> None:
    assert "\x1b" in printed(TERMINAL | {"NO_COLOR": ""})


def test_every_style_that_is_asked_for_is_defined() -> None:
    asked = {f"lane.{state}" for state in LaneState} | {f"mark.{state}" for state in LaneState}
    asked |= {f"speaker.{name}" for name in LANES} | {"speaker.operator", f"mark.{Mark.FAILS}"}
    assert asked <= THEME.styles.keys()


def test_a_reader_that_has_gone_raises_once_and_then_no_more() -> None:
    console: DemoConsole = make_console({}, Unread())
    with pytest.raises(BrokenPipeError):
        console.print("x")
    console.print("y")
