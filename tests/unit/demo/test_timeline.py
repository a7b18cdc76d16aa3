from __future__ import annotations

import io
from datetime import timedelta

import pytest

from forewarn.clock import VirtualClock
from forewarn.demo.acts import FAILURE, MIGRATION
from forewarn.demo.lanes import LaneState, Mark
from forewarn.demo.sentences import describe_sighting
from forewarn.demo.style import make_console
from forewarn.demo.timeline import Timeline, TimelineLine, draw_heading, format_elapsed
from forewarn.demo.vms import CAST, LANES, PLATFORM
from tests.unit.demo.builders import T0, after, sighting


class Page:
    """A timeline, and what it printed."""

    def __init__(self, width: int = 80, encoding: str = "utf-8") -> None:
        self._bytes = io.BytesIO()
        self._file = io.TextIOWrapper(self._bytes, encoding=encoding, write_through=True)
        self.console = make_console({"COLUMNS": str(width)}, self._file)
        self.timeline = Timeline(self.console, VirtualClock(T0), T0)

    @property
    def rows(self) -> list[str]:
        return self._bytes.getvalue().decode(self._file.encoding).splitlines()


def line(seconds: float, text: str, lane: str = "db", state: LaneState = LaneState.QUIET) -> TimelineLine:
    return TimelineLine(at=after(seconds), lane=lane, state=state, text=text)


def test_lines_are_printed_in_the_order_of_their_time() -> None:
    page = Page()
    for seconds, text in ((3, "third"), (1, "first"), (2, "second")):
        page.timeline.queue_line(line(seconds, text))
    page.timeline.flush()
    assert [row.split()[-1] for row in page.rows] == ["first", "second", "third"]


def test_lines_of_the_same_moment_keep_the_order_in_which_they_were_told() -> None:
    page = Page()
    for text in ("a", "b", "c"):
        page.timeline.queue_line(line(1, text))
    page.timeline.flush()
    assert [row.split()[-1] for row in page.rows] == ["a", "b", "c"]


def test_what_is_too_fresh_is_held_back() -> None:
    page = Page()
    page.timeline.queue_line(line(2, "fresh"))
    page.timeline.queue_line(line(1, "ripe"))
    page.timeline.flush(after(1.5))
    assert [row.split()[-1] for row in page.rows] == ["ripe"]


def test_a_line_has_time_lanes_name_and_sentence() -> None:
    page = Page()
    page.timeline.queue_line(line(1.23, "is ready", "WestNO_1", LaneState.APPROVED))
    page.timeline.flush()
    assert page.rows == [" 1.2 s  ·  ·  ●  ·  WestNO_1 is ready"]


def test_a_speaker_may_have_another_name_than_the_lane() -> None:
    page = Page()
    told = TimelineLine(at=T0, lane=PLATFORM, state=LaneState.QUIET, text="x", speaker="operator", mark=Mark.FAILS)
    page.timeline.queue_line(told)
    page.timeline.flush()
    assert page.rows == [" 0.0 s  ✗  ·  ·  ·  operator x"]


def test_further_rows_of_a_line_show_the_state_it_led_to() -> None:
    page = Page()
    page.timeline.queue_line(line(0, "sees\n  detail", "WestNO_0", LaneState.PREPARING))
    page.timeline.flush()
    assert page.rows == [" 0.0 s  ·  ●  ·  ·  WestNO_0 sees", "        ·  ┆  ·  ·             detail"]


def test_a_state_lasts_until_the_next() -> None:
    page = Page()
    page.timeline.queue_line(line(0, "sees", "WestNO_0", LaneState.STARTED))
    page.timeline.queue_line(line(1, "acts"))
    page.timeline.flush()
    assert page.rows[1] == " 1.0 s  ·  ┃  ·  ●  db       acts"


@pytest.mark.parametrize("width", [60, 80, 100, 250])
def test_no_row_is_wider_than_the_terminal_or_a_hundred_columns(width: int) -> None:
    page = Page(width)
    page.timeline.print_introduction(
        dict.fromkeys(LANES, "what there is to say about it, at some length, and then some more")
    )
    for act in (MIGRATION, FAILURE):
        page.timeline.begin_act(act.title, act.promise)
        for sentence in (act.opening, *act.sentences.values()):
            page.timeline.queue_line(line(0, sentence, PLATFORM))
        page.timeline.flush()
    assert max(len(row) for row in page.rows) <= min(width, 100)


@pytest.mark.parametrize("vm", CAST, ids=lambda vm: vm.name)
def test_at_80_columns_every_sentence_of_a_vm_stays_in_its_row(vm: object) -> None:
    cast_vm = next(v for v in CAST if v is vm)
    page = Page(80)
    seen = [
        sighting(cast_vm, 0, 1),
        *(sighting(cast_vm, n, n, status) for n, status in ((2, "Scheduled"), (3, "Started"))),
    ]
    seen.append(sighting(cast_vm, 4, 4))
    texts = [describe_sighting(now, before) for before, now in zip([None, *seen], seen, strict=False)]
    for text in texts:
        page.timeline.queue_line(line(0, text, cast_vm.name))
    page.timeline.flush()
    assert len(page.rows) == sum(text.count("\n") + 1 for text in texts)


def test_no_row_ends_in_blanks() -> None:
    page = Page()
    page.timeline.print_introduction(dict.fromkeys(LANES, "about"))
    page.timeline.begin_act(MIGRATION.title, MIGRATION.promise)
    page.timeline.queue_line(line(0, "x\n\ny"))
    page.timeline.flush()
    assert [row for row in page.rows if row != row.rstrip()] == []


def test_a_terminal_without_unicode_gets_ascii() -> None:
    page = Page(encoding="ascii")
    page.timeline.print_introduction(dict.fromkeys(LANES, "about"))
    page.timeline.begin_act("Act", "It happens.")
    page.timeline.queue_line(line(0, "x"))
    page.timeline.flush()
    assert " 0.0 s  .  .  .  o  db       x" in page.rows


def test_a_heading_spans_the_width() -> None:
    page = Page()
    heading = draw_heading(page.console, "Act 1")
    assert heading.plain.startswith("── Act 1 ──")
    assert heading.cell_len == 80


@pytest.mark.parametrize(("seconds", "shown"), [(0, " 0.0 s"), (-0.2, " 0.0 s"), (3.21, " 3.2 s"), (12.5, "12.5 s")])
def test_elapsed_time_lines_up(seconds: float, shown: str) -> None:
    assert format_elapsed(timedelta(seconds=seconds)) == shown
