from __future__ import annotations

from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.agent.window import WeeklyWindow

MONDAY = datetime(2030, 1, 7)  # noqa: DTZ001 - a moment on a clock on the wall
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def at(day: str, clock: str) -> datetime:
    hour, minute = map(int, clock.split(":"))
    return MONDAY + timedelta(days=DAYS.index(day), hours=hour, minutes=minute)


@pytest.mark.parametrize(
    ("text", "day", "clock", "holds"),
    [
        ("08:00-17:00", "Mon", "07:59", False),
        ("08:00-17:00", "Mon", "08:00", True),
        ("08:00-17:00", "Sun", "16:59", True),
        ("08:00-17:00", "Mon", "17:00", False),
        ("22:00-06:00", "Wed", "21:59", False),
        ("22:00-06:00", "Wed", "22:00", True),
        ("22:00-06:00", "Wed", "05:59", True),
        ("22:00-06:00", "Wed", "06:00", False),
        ("Mon-Fri 22:00-06:00", "Fri", "22:00", True),
        ("Mon-Fri 22:00-06:00", "Sat", "05:59", True),  # the night of Friday
        ("Mon-Fri 22:00-06:00", "Sat", "22:00", False),
        ("Mon-Fri 22:00-06:00", "Mon", "05:59", False),  # the night of Sunday
        ("Sat,Sun 00:00-24:00", "Fri", "23:59", False),
        ("Sat,Sun 00:00-24:00", "Sat", "00:00", True),
        ("Sat,Sun 00:00-24:00", "Sun", "23:59", True),
        ("Sat,Sun 00:00-24:00", "Mon", "00:00", False),
        ("Mon 00:00-00:00", "Mon", "12:00", True),
        ("Mon 00:00-00:00", "Tue", "00:00", False),
        ("Mon 06:00-06:00", "Tue", "05:59", True),
        ("Mon 06:00-06:00", "Tue", "06:00", False),
        ("Fri 22:00-24:00", "Fri", "23:59", True),
        ("Fri 22:00-24:00", "Sat", "00:00", False),
        ("Sat-Mon 08:00-09:00", "Sun", "08:30", True),  # past the end of the week
        ("Sat-Mon 08:00-09:00", "Mon", "08:30", True),
        ("Sat-Mon 08:00-09:00", "Fri", "08:30", False),
        ("Mon,Wed-Thu 08:00-09:00", "Thu", "08:30", True),
        ("Mon,Wed-Thu 08:00-09:00", "Tue", "08:30", False),
        ("Tue-Tue 08:00-09:00", "Tue", "08:30", True),
        ("Tue-Tue 08:00-09:00", "Wed", "08:30", False),
    ],
)
def test_a_moment_lies_in_a_window_or_not(text: str, day: str, clock: str, holds: bool) -> None:
    assert WeeklyWindow(text).contains_time(at(day, clock)) is holds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Mon",
        "08:00",
        "8:00-9:00",
        "08:00 - 09:00",
        "24:00-06:00",
        "08:00-24:01",
        "08:60-09:00",
        "25:00-26:00",
        "mon 08:00-09:00",
        "Mon-Wed-Fri 08:00-09:00",
        "Mon, Tue 08:00-09:00",
        "Mon08:00-09:00",
        "Mon-Fri",
        "\u0660\u0668:\u0660\u0660-\u0660\u0669:\u0660\u0660",  # digits of another script
    ],
)
def test_what_is_no_window_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time window: expected for example 'Mon-Fri 22:00-06:00'"):
        WeeklyWindow(text)


def test_windows_are_equal_when_they_are_written_alike() -> None:
    assert WeeklyWindow("22:00-06:00") == WeeklyWindow("22:00-06:00")
    assert len({WeeklyWindow("22:00-06:00"), WeeklyWindow("22:00-06:00"), WeeklyWindow("22:00-07:00")}) == 2
    assert WeeklyWindow("22:00-06:00") != "22:00-06:00"
    assert repr(WeeklyWindow("22:00-06:00")) == "Window('22:00-06:00')"


def test_the_clock_on_the_wall_counts_also_when_it_is_put_back() -> None:
    oslo = ZoneInfo("Europe/Oslo")
    window = WeeklyWindow("02:00-03:00")
    twice = [datetime(2030, 10, 27, 2, 30, tzinfo=oslo, fold=fold) for fold in (0, 1)]
    assert twice[0].utcoffset() != twice[1].utcoffset()
    assert [window.contains_time(moment) for moment in twice] == [True, True]


clocks = st.times().map(lambda clock: clock.replace(second=0, microsecond=0))


@given(begin=clocks, end=clocks, minutes=st.integers(0, 7 * 24 * 60 - 1))
def test_a_window_and_the_rest_of_the_day_share_the_week(begin: time, end: time, minutes: int) -> None:
    moment = MONDAY + timedelta(minutes=minutes)
    one, other = WeeklyWindow(f"{begin:%H:%M}-{end:%H:%M}"), WeeklyWindow(f"{end:%H:%M}-{begin:%H:%M}")
    assert one.contains_time(moment) + other.contains_time(moment) == (2 if begin == end else 1)


@given(begin=clocks, end=clocks, minutes=st.integers(0, 7 * 24 * 60 - 1))
def test_every_moment_of_a_window_belongs_to_one_day_of_it(begin: time, end: time, minutes: int) -> None:
    moment = MONDAY + timedelta(minutes=minutes)
    text = f"{begin:%H:%M}-{end:%H:%M}"
    assert sum(WeeklyWindow(f"{day} {text}").contains_time(moment) for day in DAYS) == WeeklyWindow(text).contains_time(
        moment
    )
