from __future__ import annotations

import pytest
from rich.cells import cell_len

from forewarn.demo.lanes import ASCII, UNICODE, Glyphs, Lanes, LaneState, Mark


def test_each_lane_shows_its_state() -> None:
    lanes = Lanes(("a", "b", "c", "d"), UNICODE)
    lanes.set_state("b", LaneState.PREPARING)
    lanes.set_state("c", LaneState.APPROVED)
    lanes.set_state("d", LaneState.STARTED)
    assert lanes.draw_row().plain.split() == ["·", "┆", "│", "┃"]


@pytest.mark.parametrize(("mark", "glyph"), [(Mark.ACTS, "●"), (Mark.APPROVES, "✓"), (Mark.FAILS, "✗")])
def test_who_acts_gets_a_mark(mark: Mark, glyph: str) -> None:
    assert Lanes(("a", "b"), UNICODE).draw_row("b", mark).plain.split() == ["·", glyph]


def test_a_row_is_as_wide_as_the_lanes() -> None:
    lanes = Lanes(("a", "b", "c"), UNICODE)
    assert lanes.draw_row("a").cell_len == lanes.width


def test_heads_lead_from_each_lane_to_the_same_column() -> None:
    lanes = Lanes(("a", "b"), UNICODE)
    heads = lanes.draw_heads()
    assert [head.plain for head, _ in heads] == ["╭──── ", "│  ╭─ "]
    assert [below.plain for _, below in heads] == ["│     ", "│  │  "]


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_every_glyph_is_one_column_wide_and_its_own(glyphs: Glyphs) -> None:
    drawn = [*glyphs.states.values(), *glyphs.marks.values()]
    assert all(cell_len(glyph) == 1 for glyph in drawn)
    assert len(set(drawn)) == len(LaneState) + len(Mark)


def test_the_plain_set_is_ascii() -> None:
    assert "".join([*ASCII.states.values(), *ASCII.marks.values(), ASCII.corner, ASCII.beam, ASCII.rising]).isascii()


def test_the_legend_names_every_state() -> None:
    legend = Lanes(("a",), UNICODE).draw_legend().plain
    assert legend == "· nothing announced   ┆ announced   │ approved   ┃ started"
