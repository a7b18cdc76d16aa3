"""Spans of time as people write them, read and shown."""

from __future__ import annotations

from datetime import timedelta

import hypothesis.strategies as st
import pytest
from hypothesis import given

from forewarn.util.duration import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("24h", 86400), ("7d", 604800), ("250ms", 0.25), ("1.5m", 90), ("42", 42), (" 5s ", 5)],
)
def test_a_span_is_read_with_its_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(("value", "seconds"), [(90, 90), (0.5, 0.5), (0, 0), (timedelta(1), 86400)])
def test_a_number_is_so_many_seconds(value: object, seconds: float) -> None:
    assert parse_duration(value) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "value", ["", "5 m", "1h30m", "PT5M", "m", "1_000", "nan", "inf", "٣s", True, None, [], float("nan"), float("inf")]
)
def test_what_is_no_span_is_refused_with_examples(value: object) -> None:
    with pytest.raises(ValueError, match="is not a span of time: expected for example 90s, 15m, 24h or 7d"):
        parse_duration(value)


@pytest.mark.parametrize("value", ["36526d", "999999999999d", "-999999999999d", 10**11])
def test_a_span_is_a_hundred_years_at_most(value: object) -> None:
    with pytest.raises(ValueError, match="more than a hundred years"):
        parse_duration(value)


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(days=7), "7d"),
        (timedelta(hours=25), "25h"),
        (timedelta(minutes=15), "15m"),
        (timedelta(seconds=90), "90s"),
        (timedelta(0), "0s"),
        (timedelta(milliseconds=250), "0.25s"),
        (timedelta(days=20, seconds=1), "1728001s"),
        (timedelta(microseconds=1), "0.000001s"),
        (timedelta(minutes=-5), "-5m"),
        (timedelta(seconds=-1.5), "-1.5s"),
    ],
)
def test_a_span_is_shown_in_its_largest_whole_unit(span: timedelta, text: str) -> None:
    assert format_duration(span) == text


@given(st.timedeltas(timedelta(days=-30_000), timedelta(days=30_000)))
def test_a_span_that_is_shown_reads_back_as_the_same(span: timedelta) -> None:
    assert parse_duration(format_duration(span)) == span
