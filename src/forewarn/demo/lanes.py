"""The lanes of the timeline: one vertical line per actor; its shape and colour show the actor's state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from rich.text import Text

__all__ = ["ASCII", "UNICODE", "Glyphs", "LaneState", "Lanes", "Mark"]

_GAP = "  "


class LaneState(StrEnum):
    """State of an actor; the value is the name of its style."""

    QUIET = "quiet"
    PREPARING = "preparing"
    APPROVED = "approved"
    STARTED = "started"


class Mark(StrEnum):
    """Symbol in the lane of the actor that a line is about."""

    ACTS = "acts"
    APPROVES = "approves"
    FAILS = "fails"


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """Characters to draw with, each one column wide.

    Attributes:
        corner: Start of a lane.
        beam: Line from the corner to the actor's name.
        rising: Lane that began further up.
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
"""Glyphs for terminals that support ASCII only."""


class Lanes:
    """The lanes side by side, and the state of each.

    Args:
        names: Names of the lanes, from the left.
        glyphs: Characters to draw with.
    """

    def __init__(self, names: Iterable[str], glyphs: Glyphs) -> None:
        self._states = dict.fromkeys(names, LaneState.QUIET)
        self._glyphs = glyphs

    @property
    def width(self) -> int:
        """Number of columns that `draw_row` fills."""
        return len(self._states) * (1 + len(_GAP))

    def set_state(self, name: str, state: LaneState) -> None:
        """Set the state of an actor from now on."""
        self._states[name] = state

    def draw_row(self, actor: str | None = None, mark: Mark = Mark.ACTS) -> Text:
        """Return one row, with a mark in the lane of `actor`; None for no mark."""
        row = Text()
        for name, state in self._states.items():
            if name == actor:
                row.append(self._glyphs.marks[mark], "mark.fails" if mark is Mark.FAILS else f"mark.{state}")
            else:
                row.append(self._glyphs.states[state], f"lane.{state}")
            row.append(_GAP)
        return row

    def draw_heads(self) -> list[tuple[Text, Text]]:
        """Return, for each lane, the row that leads to its name and the row below it for text that does not fit."""
        heads = []
        for index in range(len(self._states)):
            # Each name is one row below the one before it, so the lanes to the left of it have already begun.
            risen = f"{self._glyphs.rising}{_GAP}" * index
            beam = self._glyphs.beam * (self.width - len(risen) - 2)
            below = f"{risen}{self._glyphs.rising}"
            heads.append(
                (Text(f"{risen}{self._glyphs.corner}{beam} ", "quiet"), Text(below.ljust(self.width), "quiet"))
            )
        return heads

    def draw_legend(self) -> Text:
        """Return the legend: the meaning of each lane shape."""
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
