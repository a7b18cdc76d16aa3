"""How a receiver is treated that fails."""

from __future__ import annotations

from datetime import timedelta

from forewarn.core.patience import Patience
from forewarn.core.subscription import Backoff
from tests.support.world import NOW, minutes

BACKOFF = Backoff(first=timedelta(seconds=4), longest=minutes(10))


def failing(times: int, asked: timedelta | None = None) -> Patience:
    patience = Patience(backoff=BACKOFF)
    for _ in range(times):
        patience.note_failed(NOW, 1.0, asked)
    return patience


def test_a_few_failures_may_be_what_was_told() -> None:
    assert not failing(2).is_down
    assert failing(2).may_ask(NOW)


def test_one_that_is_down_rests_longer_each_time_and_never_for_more_than_a_minute() -> None:
    assert failing(3).is_down
    assert [failing(n).rests_until for n in (3, 4, 5)] == [NOW + timedelta(seconds=s) for s in (4, 8, 16)]
    assert failing(50).rests_until == NOW + minutes(1)
    assert not failing(3).may_ask(NOW + timedelta(seconds=3))
    assert failing(3).may_ask(NOW + timedelta(seconds=4))


def test_what_it_asks_for_is_kept_at_once_up_to_the_longest_pause() -> None:
    assert failing(1, minutes(3)).rests_until == NOW + minutes(3)
    assert failing(1, minutes(600)).rests_until == NOW + minutes(10)


def test_one_that_takes_something_is_up_again() -> None:
    patience = failing(9, minutes(3))
    patience.note_taken()
    assert (patience.is_down, patience.may_ask(NOW)) == (False, True)
