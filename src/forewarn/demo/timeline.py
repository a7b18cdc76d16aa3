"""The timeline: who did what when, in the order in which it happened.

Lines reach it over several connections, so one that tells of a cause may come after that of its effect. Each is held
back for a moment, and printed in the order of its time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from rich.console import Console
from rich.text import Text

from forewarn.clock import Clock
from forewarn.demo.cast import LANES
from forewarn.demo.lanes import Lanes, LaneState, Mark
from forewarn.demo.style import Words, glyphs_of

__all__ = ["Line", "Timeline", "draw_heading", "format_elapsed"]

_HELD = timedelta(milliseconds=350)
_PAUSE_S = 0.05
_NAME_WIDTH = 9
_TIME_WIDTH = 8
_words = Words()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What one actor did.

    Attributes:
        lane: Where the mark stands.
        state: Of that lane from now on.
        text: A short sentence; further lines of it after line feeds.
        speaker: The name in front of the sentence; None for that of the lane.
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
        console: Where to.
        clock: For holding lines back.
        began_at: The moment that counts as 0 s.
    """

    def __init__(self, console: Console, clock: Clock, began_at: datetime) -> None:
        self._console = console
        self._clock = clock
        self._began_at = began_at
        self._lanes = Lanes(LANES, glyphs_of(console))
        self._held: list[Line] = []

    def tell(self, line: Line) -> None:
        """Print that line soon."""
        self._held.append(line)

    async def run(self) -> None:
        """Print lines as their time comes, until cancelled."""
        while True:
            await asyncio.sleep(_PAUSE_S)
            self.print_until(self._clock.now() - _HELD)

    def flush(self) -> None:
        """Print all that is held back."""
        self.print_until(None)

    def print_until(self, moment: datetime | None) -> None:
        """Print what happened up to that moment, in order; None for all."""
        ripe = sorted((line for line in self._held if moment is None or line.at <= moment), key=lambda line: line.at)
        for line in ripe:
            self._held.remove(line)
            for row in self.draw(line):
                self._print(row)

    def draw(self, line: Line) -> list[Text]:
        """The rows of one line, as wide as the console at most."""
        self._lanes.enter(line.lane, line.state)
        speaker = line.speaker or line.lane
        first = Text().append(format_elapsed(line.at - self._began_at).ljust(_TIME_WIDTH), "time")
        first += self._lanes.draw(line.lane, line.mark)
        first += Text(speaker.ljust(_NAME_WIDTH), style=f"speaker.{speaker}")
        further = Text(" " * _TIME_WIDTH) + self._lanes.draw() + Text(" " * _NAME_WIDTH)
        sentences = self._wrap(line.text, self._console.width - first.cell_len)
        return [(first if not index else further) + sentence for index, sentence in enumerate(sentences)]

    def _wrap(self, text: str, width: int) -> list[Text]:
        rows = []
        for part in text.split("\n"):
            indent = len(part) - len(part.lstrip())
            for row in _words(part.lstrip()).wrap(self._console, max(width - indent, 16)):
                row.rstrip()
                rows.append(Text(" " * indent) + row)
        return rows

    # What stands around the lines

    def introduce(self, actors: Mapping[str, str]) -> None:
        """Print what the shapes of a lane mean, then where each lane begins and whose it is."""
        self._print(self._lanes.draw_legend())
        self._print(Text())
        indent = Text().append("time".ljust(_TIME_WIDTH), "time")
        for (head, below), (name, about) in zip(self._lanes.draw_heads(), actors.items(), strict=True):
            first = indent + head + Text(name.ljust(_NAME_WIDTH), style=f"speaker.{name}")
            indent = Text(" " * _TIME_WIDTH)
            further = indent + below + Text(" " * _NAME_WIDTH)
            for index, row in enumerate(Text(about, "quiet").wrap(self._console, self._console.width - first.cell_len)):
                self._print((further if index else first) + row)

    def begin_act(self, title: str, sentence: str) -> None:
        """Print the heading of an act."""
        self.flush()
        self._print(Text())
        self._print(draw_heading(self._console, title))
        for row in _words(sentence).wrap(self._console, self._console.width):
            self._print(row)
        self._print(Text())

    def _print(self, row: Text) -> None:
        row.rstrip()
        self._console.print(row, soft_wrap=True)


def draw_heading(console: Console, title: str) -> Text:
    """A rule over the whole width, with a title in it."""
    rule = "-" if console.options.ascii_only else "─"
    return Text(f"{rule * 2} {title} ", "act") + Text(rule * (console.width - len(title) - 4), "quiet")


def format_elapsed(elapsed: timedelta) -> str:
    """Seconds since the start: `` 3.2 s``."""
    return f"{max(elapsed.total_seconds(), 0):4.1f} s"
