from __future__ import annotations

import io
from datetime import timedelta

import pytest

from forewarn.demo.act_record import ActRecord, DemoFailed
from forewarn.demo.style import make_console
from forewarn.demo.summary import WaitingTimes, format_span, measure_recovery, print_summary
from tests.unit.demo.builders import DB, WEST_0, WEST_1, migration


def printed(width: int) -> list[str]:
    file = io.StringIO()
    print_summary(make_console({"COLUMNS": str(width)}, file), migration(), migration())
    return file.getvalue().splitlines()


def test_who_approved_last_waited_for_nobody() -> None:
    waits = WaitingTimes(migration())
    assert waits.last_vm == DB
    assert waits.measure_wait(DB) == timedelta(0)


def test_the_others_waited_from_their_approval_to_the_last() -> None:
    waits = WaitingTimes(migration())
    assert waits.measure_wait(WEST_0) == timedelta(seconds=3.5)
    assert waits.measure_wait(WEST_1) == timedelta(seconds=1.2)


def test_the_start_is_measured_from_the_last_approval() -> None:
    assert WaitingTimes(migration()).measure_start() == timedelta(milliseconds=20)


def test_recovery_is_measured_from_the_completion() -> None:
    assert measure_recovery(migration(), WEST_1) == timedelta(seconds=0.8)


def test_a_moment_that_never_came_is_a_fault() -> None:
    with pytest.raises(DemoFailed, match="a time is missing from the record"):
        WaitingTimes(ActRecord())


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [(-3, "0 ms"), (0, "0 ms"), (12.4, "12 ms"), (99.9, "100 ms"), (100, "0.1 s"), (3456, "3.5 s")],
)
def test_spans_are_shown_briefly(milliseconds: float, shown: str) -> None:
    assert format_span(timedelta(milliseconds=milliseconds)) == shown


@pytest.mark.parametrize("width", [80, 100])
def test_the_summary_fits_the_terminal_and_ends_no_row_in_blanks(width: int) -> None:
    rows = printed(width)
    assert max(len(row) for row in rows) <= width
    assert [row for row in rows if row != row.rstrip()] == []


def test_the_summary_says_who_waited_for_whom_and_what_to_try() -> None:
    text = " ".join(" ".join(printed(100)).split())
    assert (
        "Nothing started before db approved, as the last VM. Waited for it: WestNO_0 3.5 s and WestNO_1 1.2 s." in text
    )
    assert "From the last approval to the start: 20 ms, as db saw it." in text
    assert "WestNO_0 polls once a second 0.5 s 3.5 s 0.5 s 0.5 s" in text
    assert "db long poll 4.0 s was last 5 ms 5 ms" in text
    assert "forewarn maintenance schedule --host host-1 --type Freeze" in text
