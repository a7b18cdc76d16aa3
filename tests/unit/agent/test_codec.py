from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.agent.codec import Duration, InvalidValue, convert, decode_json, encode_json
from forewarn.agent.window import WeeklyWindow


class Sample(msgspec.Struct):
    span: Duration
    window: WeeklyWindow


@pytest.mark.parametrize(
    ("written", "span"),
    [
        ("90s", timedelta(seconds=90)),
        ("15m", timedelta(minutes=15)),
        ("250ms", timedelta(milliseconds=250)),
        ("0s", timedelta(0)),
        (90, timedelta(seconds=90)),
        (1.5, timedelta(seconds=1.5)),
    ],
)
def test_a_span_is_a_text_or_a_number_of_seconds(written: object, span: timedelta) -> None:
    assert convert(written, Duration) == span


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("soon", "'soon' is not a span of time: expected for example 90s, 15m, 24h or 7d"),
        ("-5s", "'-5s' is negative"),
        (-0.5, "-0.5 is negative"),
        (True, "expected a duration, for example 90s, 15m, 24h or 7d"),
        ([1], "expected a duration, for example 90s, 15m, 24h or 7d"),
        (date(2030, 1, 1), "expected a duration, for example 90s, 15m, 24h or 7d"),
        (float("nan"), "'nan' is not a span of time: expected for example 90s, 15m, 24h or 7d"),
    ],
)
def test_what_is_no_span_is_refused(written: object, message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        convert(written, Duration)
    assert str(caught.value) == message


def test_a_window_is_a_text() -> None:
    assert convert({"span": 1, "window": "22:00-06:00"}, Sample).window == WeeklyWindow("22:00-06:00")
    with pytest.raises(msgspec.ValidationError, match="expected a time window"):
        convert({"span": 1, "window": 22}, Sample)


@given(st.integers(0, 10**12))
def test_what_is_encoded_reads_back(microseconds: int) -> None:
    sample = Sample(Duration(microseconds=microseconds), WeeklyWindow("Mon 22:00-06:00"))
    assert decode_json(encode_json(sample), Sample) == sample


@given(st.integers(-(10**40), 10**40))
def test_whole_numbers_of_any_size_are_kept(number: int) -> None:
    """An endpoint may send any."""
    assert decode_json(encode_json({"n": number}), dict[str, Any]) == {"n": number}


def test_what_has_no_form_of_text_is_refused() -> None:
    with pytest.raises(NotImplementedError):
        encode_json(object())


def test_a_mistake_tells_where_it_stands() -> None:
    assert InvalidValue("too long", "prepare", 1).keys == ("prepare", 1)
    assert str(InvalidValue("too long", "prepare", 1)) == "too long"
