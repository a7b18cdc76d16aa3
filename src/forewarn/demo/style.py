"""Colours of actors, states and key words."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import IO

from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.theme import Theme

from forewarn.demo.lanes import ASCII, UNICODE, Glyphs

__all__ = ["THEME", "WIDTH_MAX", "DemoConsole", "ProtocolHighlighter", "choose_glyphs", "make_console"]

WIDTH_MAX = 100

_PREPARING, _APPROVED, _STARTED = "yellow", "green", "red"

THEME = Theme(
    {
        "quiet": "bright_black",
        "title": "bold",
        "act": "bold",
        "time": "bright_black",
        "command": "bold",
        "speaker.operator": "bold",
        "speaker.platform": "bold",
        "speaker.WestNO_0": "bold cyan",
        "speaker.WestNO_1": "bold blue",
        "speaker.db": "bold magenta",
        "lane.quiet": "bright_black",
        "lane.preparing": _PREPARING,
        "lane.approved": _APPROVED,
        "lane.started": _STARTED,
        "mark.quiet": "default",
        "mark.preparing": f"bold {_PREPARING}",
        "mark.approved": f"bold {_APPROVED}",
        "mark.started": f"bold {_STARTED}",
        "mark.fails": f"bold {_STARTED}",
        "word.web0": "cyan",
        "word.web1": "blue",
        "word.db": "magenta",
        "word.scheduled": _PREPARING,
        "word.approves": _APPROVED,
        "word.started": _STARTED,
    },
)


class ProtocolHighlighter(RegexHighlighter):
    """Highlights VM names and protocol words wherever they occur."""

    base_style = "word."
    highlights = [  # noqa: RUF012 - the base class declares it so
        r"(?P<web0>\bWestNO_0\b)",
        r"(?P<web1>\bWestNO_1\b)",
        r"(?P<db>\bdb\b)",
        r"(?P<scheduled>\bScheduled\b)",
        r"(?P<approves>\bapprove[sd]?\b)",
        r"(?P<started>\b(?:Started|starts|impact|fails)\b)",
    ]


class DemoConsole(Console):
    """A console that leaves a broken pipe to its caller."""

    def on_broken_pipe(self) -> None:
        """Raise the error again, so that the demo cleans up."""
        self.quiet = True
        raise BrokenPipeError


def make_console(environment: Mapping[str, str] = os.environ, file: IO[str] | None = None) -> DemoConsole:
    """Return a console as wide as the terminal, up to `WIDTH_MAX`; without escape codes if colours are unwanted."""
    has_colours = not environment.get("NO_COLOR")
    console = DemoConsole(
        file=file or sys.stdout,
        theme=THEME,
        color_system="auto" if has_colours else None,
        highlight=False,
        markup=False,
        emoji=False,
        _environ=environment,
    )
    console.width = min(console.width, WIDTH_MAX)
    return console


def choose_glyphs(console: Console) -> Glyphs:
    """Return the glyphs that the console can display."""
    return UNICODE if console.encoding.lower().startswith("utf") else ASCII
