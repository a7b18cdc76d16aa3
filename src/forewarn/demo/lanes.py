"""The lanes of the timeline: a line downwards for each actor, whose shape and colour tell how it fares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from rich.text import Text

__all__ = ["ASCII", "UNICODE", "Glyphs", "LaneState", "Lanes", "Mark"]

_GAP = "  "


class LaneState(StrEnum):
    """How an actor fares; the value is the name of its style."""

    QUIET = "quiet"
    PREPARING = "preparing"
    APPROVED = "approved"
    STARTED = "started"


class Mark(StrEnum):
    """What stands in the lane of the actor whose line it is."""

    ACTS = "acts"
    APPROVES = "approves"
    FAILS = "fails"


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """The characters to draw with, each one column wide.

    Attributes:
        corner: Where a lane begins.
        beam: From there to the actor's name.
        rising: A lane that began further up.
    """

    states: Mapping[LaneState, str]
    marks: Mapping[Mark, str]
    corner: str
    beam: str
    rising: str


UNICODE = Glyphs(
    states={LaneState.QUIET: "·", LaneState.PREPARING: "┆", LaneState.APPROVED: "│", LaneState.STARTED: "┃"},
    marks={Mark.ACTS: "●", Mark.APPROVES: "✓", Mark.FAILS: "✗"},
    corner="╭",
    beam="─",
    rising="│",
)
ASCII = Glyphs(
    states={LaneState.QUIET: ".", LaneState.PREPARING: ":", LaneState.APPROVED: "|", LaneState.STARTED: "#"},
    marks={Mark.ACTS: "o", Mark.APPROVES: "v", Mark.FAILS: "x"},
    corner=".",
    beam="-",
    rising="|",
)
"""For a terminal that knows no more."""


class Lanes:
    """The lanes side by side, and the state of each.

    Args:
        names: From the left.
        glyphs: What to draw with.
    """

    def __init__(self, names: Iterable[str], glyphs: Glyphs) -> None:
        self._states = dict.fromkeys(names, LaneState.QUIET)
        self._glyphs = glyphs

    @property
    def width(self) -> int:
        """Columns that `draw` takes."""
        return len(self._states) * (1 + len(_GAP))

    def enter(self, name: str, state: LaneState) -> None:
        """Let an actor be in that state from now on."""
        self._states[name] = state

    def draw(self, actor: str | None = None, mark: Mark = Mark.ACTS) -> Text:
        """One row, with a mark where `actor` acts; None for nobody."""
        row = Text()
        for name, state in self._states.items():
            if name == actor:
                row.append(self._glyphs.marks[mark], "mark.fails" if mark is Mark.FAILS else f"mark.{state}")
            else:
                row.append(self._glyphs.states[state], f"lane.{state}")
            row.append(_GAP)
        return row

    def draw_heads(self) -> list[tuple[Text, Text]]:
        """For each lane the row that leads to its name, and the row below it for what does not fit beside the name."""
        heads = []
        for index in range(len(self._states)):
            risen = f"{self._glyphs.rising}{_GAP}" * index
            beam = self._glyphs.beam * (self.width - len(risen) - 2)
            below = f"{risen}{self._glyphs.rising}"
            heads.append(
                (Text(f"{risen}{self._glyphs.corner}{beam} ", "quiet"), Text(below.ljust(self.width), "quiet"))
            )
        return heads

    def draw_legend(self) -> Text:
        """What each shape of a lane means."""
        meanings = {
            LaneState.QUIET: "nothing announced",
            LaneState.PREPARING: "announced",
            LaneState.APPROVED: "approved",
            LaneState.STARTED: "started",
        }
        legend = Text()
        for state, meaning in meanings.items():
            legend.append(self._glyphs.states[state], style=f"lane.{state}")
            legend.append(f" {meaning}   ", style="quiet")
        legend.rstrip()
        return legend
