"""Moments outside of quiet hours: over midnight, over changed clocks, for several tenants."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import hypothesis.strategies as st
import pytest
from hypothesis import given

from forewarn.core.policy import QuietHours, TimeZone
from forewarn.core.quiet_hours import find_free_start
from tests.support.quiet import ALL_DAYS, WEEKDAYS, is_quiet, quiet_hours, utc

OFFICE = quiet_hours(WEEKDAYS, "08:00", "18:00")
NIGHT = quiet_hours(ALL_DAYS, "22:00", "06:00")
FAR = timedelta(days=90)

zones = st.sampled_from(
    ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia"]
)
clocks = st.builds(time, st.integers(0, 23), st.sampled_from([0, 1, 15, 30, 59]))
quiets = st.builds(
    lambda days, begin, end, zone: QuietHours(
        days=tuple(sorted(days)), begin=begin, end=end, zone=TimeZone(name=zone, rules=ZoneInfo(zone))
    ),
    st.sets(st.integers(0, 6), min_size=1),
    clocks,
    clocks,
    zones,
)
moments = st.datetimes(datetime(2026, 1, 1), datetime(2028, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001 - hypothesis wants them so


@pytest.mark.parametrize(
    ("quiet", "at", "expected"),
    [
        (OFFICE, "2026-11-23 06:59", "2026-11-23 06:59"),
        (OFFICE, "2026-11-23 07:00", "2026-11-23 17:00"),
        (OFFICE, "2026-11-23 16:59:59", "2026-11-23 17:00"),
        (OFFICE, "2026-11-23 17:00", "2026-11-23 17:00"),
        (OFFICE, "2026-11-21 12:00", "2026-11-21 12:00"),
        (NIGHT, "2026-11-21 21:00", "2026-11-22 05:00"),
        (NIGHT, "2026-11-22 04:00", "2026-11-22 05:00"),
        (NIGHT, "2026-11-22 05:00", "2026-11-22 05:00"),
        (quiet_hours("sat", "00:00", "00:00"), "2026-11-21 12:00", "2026-11-21 23:00"),
        (quiet_hours("sat", "12:00", "12:00"), "2026-11-22 10:00", "2026-11-22 11:00"),
        # Clocks are set forward on 2026-03-29 at 01:00 UTC, and back on 2026-10-25 at 01:00 UTC.
        (NIGHT, "2026-03-28 22:00", "2026-03-29 04:00"),
        (NIGHT, "2026-10-24 21:00", "2026-10-25 05:00"),
        (quiet_hours("sun", "01:30", "02:30"), "2026-03-29 00:45", "2026-03-29 01:30"),
        (quiet_hours("sun", "02:15", "02:45"), "2026-10-25 00:30", "2026-10-25 01:45"),
        (quiet_hours("sun", "02:15", "02:45"), "2026-10-25 01:20", "2026-10-25 01:45"),
    ],
)
def test_what_would_lie_in_quiet_hours_comes_after_them(quiet: QuietHours, at: str, expected: str) -> None:
    assert find_free_start([quiet], utc(at), utc(at) + FAR) == utc(expected)


def test_what_takes_long_is_over_before_the_next_quiet_hours_begin() -> None:
    at = utc("2026-11-23 06:30")
    assert find_free_start([OFFICE], at, at + FAR, timedelta(minutes=30)) == at
    assert find_free_start([OFFICE], at, at + FAR, timedelta(minutes=31)) == utc("2026-11-23 17:00")
    assert find_free_start([OFFICE], at, at + FAR, timedelta(hours=15)) == utc("2026-11-27 17:00"), "only at a weekend"
    assert find_free_start([OFFICE], at, at + FAR, timedelta(days=3650)) is None


def test_several_tenants_are_all_left_in_peace_where_there_is_such_a_moment() -> None:
    """The offices of two continents leave the evening of Berlin, which is the night of Tokyo."""
    tokyo = quiet_hours(WEEKDAYS, "09:00", "18:00", "Asia/Tokyo")
    at = utc("2026-11-23 02:00")
    assert find_free_start([OFFICE, tokyo], at, at + FAR) == utc("2026-11-23 17:00")
    assert (
        find_free_start(
            [quiet_hours(ALL_DAYS, "06:00", "18:00"), quiet_hours(ALL_DAYS, "18:00", "06:00")], at, at + FAR
        )
        is None
    )


def test_there_is_none_where_the_limit_comes_first() -> None:
    at = utc("2026-11-23 07:00")
    assert find_free_start([OFFICE], at, utc("2026-11-23 16:59:59")) is None
    assert find_free_start([OFFICE], at, utc("2026-11-23 17:00")) == utc("2026-11-23 17:00")
    assert find_free_start([], at, at - FAR) == at, "what is calm already needs no limit"


@given(quiet=st.lists(quiets, max_size=3), at=moments, lasts_min=st.sampled_from([0, 0, 1, 90]))
def test_the_moment_that_is_found_is_quiet_by_no_clock_on_a_wall(
    quiet: list[QuietHours], at: datetime, lasts_min: int
) -> None:
    lasts = timedelta(minutes=lasts_min)
    found = find_free_start(quiet, at, at + timedelta(days=14), lasts)
    if found is None:
        return
    assert at <= found <= at + timedelta(days=14)
    for part in range(4):
        moment = found + lasts * part / 4
        assert not any(is_quiet(each, moment) for each in quiet)
    assert find_free_start(quiet, found, found, lasts) == found, "asked again it says the same"


@given(quiet=quiets, at=moments)
def test_no_calm_moment_is_passed_over_but_for_hours_that_come_twice_or_never(quiet: QuietHours, at: datetime) -> None:
    until = at + timedelta(days=8)
    found = find_free_start([quiet], at, until) or until
    skipped = timedelta(0)
    moment = at
    while moment < found:
        skipped += timedelta(0) if is_quiet(quiet, moment) else timedelta(minutes=5)
        moment += timedelta(minutes=5)
    assert skipped <= timedelta(hours=1)
