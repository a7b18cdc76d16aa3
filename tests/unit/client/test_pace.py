"""How often a client asks: what is refused, and how long it waits after failures."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.client.pace import Pace

NAMES = [field.name for field in fields(Pace)]


def test_the_defaults_are_what_the_protocol_recommends() -> None:
    """R97, R104: once per second, more than two minutes for the first answer, retries for 70 s."""
    pace = Pace()
    assert pace.poll_interval_s == 1
    assert pace.first_timeout_s > 120
    assert pace.retry_for_s == 70
    assert 0 < pace.hold_s <= 300


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_a_time_that_cannot_pass_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name} is {value}: expected a finite time of "):
        Pace(**{name: value})


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"wait_s", "retry_for_s"}))
def test_an_interval_of_nothing_is_refused(name: str) -> None:
    """R97: whoever asks without a pause keeps an endpoint and a processor busy."""
    with pytest.raises(ValueError, match=rf"^{name} is 0: expected a finite time of more than 0 s$"):
        Pace(**{name: 0})


def test_a_request_is_held_for_five_minutes_at_most() -> None:
    """X1."""
    assert Pace(wait_s=300).hold_s == 300
    with pytest.raises(ValueError, match=r"^wait_s is 300.5: expected at most 300 s$"):
        Pace(wait_s=300.5)


@pytest.mark.parametrize(("wait_s", "hold_s"), [(0, 0), (0.2, 1), (1, 1), (1.5, 2)])
def test_a_request_is_held_for_whole_seconds(wait_s: float, hold_s: int) -> None:
    """X1: rounded up, since "wait=0" would not be held at all."""
    assert Pace(wait_s=wait_s).hold_s == hold_s


def test_the_time_out_doubles_up_to_that_of_the_first_answer() -> None:
    """R67, R104: short, to notice soon that the other side is gone; long, for one that begins anew."""
    assert [Pace().timeout_after(n) for n in range(6)] == [10, 20, 40, 80, 130, 130]
    assert Pace().timeout_after(10**9) == 130
    assert Pace(timeout_s=200).timeout_after(3) == 200


def test_the_pause_doubles_up_to_the_longest() -> None:
    """R104."""
    pace = Pace(retry_min_s=0.5, retry_max_s=8)
    assert [pace.retry_after(n, {}, 1.0) for n in range(1, 7)] == [0.5, 1, 2, 4, 8, 8]
    assert [pace.retry_after(n, {}, 0.0) for n in (1, 5)] == [0.25, 4]
    assert pace.retry_after(10**9, {}, 1.0) == 8


@pytest.mark.parametrize(
    ("header", "pause_s"),
    [
        *[("2", 2), (" 2 ", 2), ("0", 0.5), ("3600", 8), ("99999999", 1)],
        *[("-2", 1), ("1.5", 1), ("", 1), ("Mon, 19 Sep 2016 18:29:47 GMT", 1), ("²", 1)],
    ],
)
def test_a_retry_after_in_seconds_is_honoured_within_the_limits(header: str, pause_s: float) -> None:
    """R104: and one of another form is as good as none."""
    assert Pace(retry_min_s=0.5, retry_max_s=8).retry_after(2, {"retry-after": header}, 1.0) == pause_s


@given(
    failures=st.integers(min_value=1),
    header=st.text(),
    chance=st.floats(0, 1),
    retry_min_s=st.floats(0.001, 100),
    retry_max_s=st.floats(0.001, 100),
)
def test_there_is_always_a_pause_and_never_a_long_one(
    failures: int, header: str, chance: float, retry_min_s: float, retry_max_s: float
) -> None:
    """R104."""
    pace = Pace(retry_min_s=retry_min_s, retry_max_s=retry_max_s)
    pause_s = pace.retry_after(failures, {"retry-after": header}, chance)
    assert retry_min_s / 2 <= pause_s <= max(retry_min_s, retry_max_s)
