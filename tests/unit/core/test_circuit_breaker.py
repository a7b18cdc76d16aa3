"""How a receiver is treated that fails."""

from __future__ import annotations

from datetime import timedelta

from forewarn.core.circuit_breaker import CircuitBreaker
from forewarn.core.subscription import DeliveryBackoff
from tests.support.world import NOW, minutes

BACKOFF = DeliveryBackoff(pause_first=timedelta(seconds=4), pause_max=minutes(10))


def failing(times: int, asked: timedelta | None = None) -> CircuitBreaker:
    breaker = CircuitBreaker(backoff=BACKOFF)
    for _ in range(times):
        breaker.record_failure(NOW, 1.0, asked)
    return breaker


def test_a_few_failures_may_be_what_was_told() -> None:
    assert not failing(2).is_open
    assert failing(2).allows_request(NOW)


def test_one_that_is_down_rests_longer_each_time_and_never_for_more_than_a_minute() -> None:
    assert failing(3).is_open
    assert [failing(n).open_until for n in (3, 4, 5)] == [NOW + timedelta(seconds=s) for s in (4, 8, 16)]
    assert failing(50).open_until == NOW + minutes(1)
    assert not failing(3).allows_request(NOW + timedelta(seconds=3))
    assert failing(3).allows_request(NOW + timedelta(seconds=4))


def test_what_it_asks_for_is_kept_at_once_up_to_the_longest_pause() -> None:
    assert failing(1, minutes(3)).open_until == NOW + minutes(3)
    assert failing(1, minutes(600)).open_until == NOW + minutes(10)


def test_one_that_takes_something_is_up_again() -> None:
    breaker = failing(9, minutes(3))
    breaker.record_success()
    assert (breaker.is_open, breaker.allows_request(NOW)) == (False, True)
