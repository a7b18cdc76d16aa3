"""The timeline: the actors' lines, in the order of their times.

Lines arrive over several connections, so an effect may arrive before its cause. Each line is held back for a moment,
then printed in the order of its time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from rich.console import Console
from rich.text import Text

from forewarn.clock import Clock
from forewarn.demo.lanes import Lanes, LaneState, Mark
from forewarn.demo.style import ProtocolHighlighter, choose_glyphs
from forewarn.demo.vms import LANES

__all__ = ["Timeline", "TimelineLine", "draw_heading", "format_elapsed"]

# Long enough for the slowest connection to deliver its line, short enough to look live.
_HELD = timedelta(milliseconds=350)
_PAUSE_S = 0.05
_NAME_WIDTH = 9
_TIME_WIDTH = 8
_words = ProtocolHighlighter()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineLine:
    """One line: an action of one actor.

    Attributes:
        lane: Lane that gets the mark.
        state: State of that lane from now on.
        text: Short sentence; further rows after line feeds.
        speaker: Name in front of the sentence; None for the name of the lane.
    """

    at: datetime
    lane: str
    state: LaneState
    text: str
    mark: Mark = Mark.ACTS
    speaker: str | None = None


class Timeline:
    """Prints lines.

    Args:
        console: Console to print on.
        clock: Clock that determines how long lines are held back.
        began_at: Time that counts as 0 s.
    """

    def __init__(self, console: Console, clock: Clock, began_at: datetime) -> None:
        self._console = console
        self._clock = clock
        self._began_at = began_at
        self._lanes = Lanes(LANES, choose_glyphs(console))
        self._held: list[TimelineLine] = []

    def queue_line(self, line: TimelineLine) -> None:
        """Queue a line, which is printed after a short delay."""
        self._held.append(line)

    async def run(self) -> None:
        """Print lines when they are due, until cancelled."""
        while True:
            await asyncio.sleep(_PAUSE_S)
            self.flush(self._clock.now() - _HELD)

    def flush(self, until: datetime | None = None) -> None:
        """Print the lines that are held back up to that time, in order; None for all."""
        ripe = sorted((line for line in self._held if until is None or line.at <= until), key=lambda line: line.at)
        for line in ripe:
            self._held.remove(line)
            for row in self.draw_line(line):
                self._print_row(row)

    def draw_line(self, line: TimelineLine) -> list[Text]:
        """Return the rows of one line, at most as wide as the console."""
        self._lanes.set_state(line.lane, line.state)
        speaker = line.speaker or line.lane
        first = Text().append(format_elapsed(line.at - self._began_at).ljust(_TIME_WIDTH), "time")
        first += self._lanes.draw_row(line.lane, line.mark)
        first += Text(speaker.ljust(_NAME_WIDTH), style=f"speaker.{speaker}")
        further = Text(" " * _TIME_WIDTH) + self._lanes.draw_row() + Text(" " * _NAME_WIDTH)
        sentences = self._wrap_text(line.text, self._console.width - first.cell_len)
        return [(first if not index else further) + sentence for index, sentence in enumerate(sentences)]

    def _wrap_text(self, text: str, width: int) -> list[Text]:
        rows = []
        for part in text.split("\n"):
            indent = len(part) - len(part.lstrip())
            for row in _words(part.lstrip()).wrap(self._console, max(width - indent, 16)):
                row.rstrip()
                rows.append(Text(" " * indent) + row)
        return rows

    # Around the lines

    def print_introduction(self, actors: Mapping[str, str]) -> None:
        """Print the legend, then the start and the name of each lane."""
        self._print_row(self._lanes.draw_legend())
        self._print_row(Text())
        indent = Text().append("time".ljust(_TIME_WIDTH), "time")
        for (head, below), (name, about) in zip(self._lanes.draw_heads(), actors.items(), strict=True):
            first = indent + head + Text(name.ljust(_NAME_WIDTH), style=f"speaker.{name}")
            indent = Text(" " * _TIME_WIDTH)
            further = indent + below + Text(" " * _NAME_WIDTH)
            for index, row in enumerate(Text(about, "quiet").wrap(self._console, self._console.width - first.cell_len)):
                self._print_row((further if index else first) + row)

    def begin_act(self, title: str, sentence: str) -> None:
        """Print the heading of an act."""
        self.flush()
        self._print_row(Text())
        self._print_row(draw_heading(self._console, title))
        for row in _words(sentence).wrap(self._console, self._console.width):
            self._print_row(row)
        self._print_row(Text())

    def _print_row(self, row: Text) -> None:
        row.rstrip()
        self._console.print(row, soft_wrap=True)


def draw_heading(console: Console, title: str) -> Text:
    """Return a rule over the whole width that contains a title."""
    rule = "-" if console.options.ascii_only else "─"
    return Text(f"{rule * 2} {title} ", "act") + Text(rule * (console.width - len(title) - 4), "quiet")


def format_elapsed(elapsed: timedelta) -> str:
    """Format seconds since the start: `` 3.2 s``."""
    return f"{max(elapsed.total_seconds(), 0):4.1f} s"
