"""When a delivery that failed is tried again, and which secrets sign."""

from __future__ import annotations

from datetime import timedelta

import pytest

from forewarn.core.subscription import (
    Delivery,
    DeliveryBackoff,
    DeliveryState,
    NotificationKind,
    Subscription,
    make_delivery_id,
    record_failed_attempt,
)
from tests.support.world import NOW, minutes

BACKOFF = DeliveryBackoff(pause_first=timedelta(seconds=4), pause_max=timedelta(seconds=60), age_max=minutes(30))
DELIVERY = Delivery(subscription_id="s", sequence=7, subject="E-1", kind=NotificationKind.SCHEDULED, at=NOW)


def pause_s(attempts: int, rng: float, asked: timedelta | None = None) -> float:
    delivery = DELIVERY
    for _ in range(attempts):
        delivery = record_failed_attempt(delivery, NOW, "answered 500", BACKOFF, rng, asked)
    assert delivery.next_at is not None
    return (delivery.next_at - NOW).total_seconds()


def test_the_pause_doubles_up_to_the_longest_and_half_of_it_is_left_to_luck() -> None:
    assert [pause_s(n, 1) for n in (1, 2, 3, 4, 5, 40)] == [4, 8, 16, 32, 60, 60]
    assert [pause_s(n, 0) for n in (1, 2, 40)] == [2, 4, 30]


def test_a_receiver_may_ask_for_a_longer_pause_but_not_for_any() -> None:
    assert pause_s(1, 1, timedelta(seconds=30)) == 30
    assert pause_s(3, 1, timedelta(seconds=1)) == 16
    assert pause_s(1, 1, timedelta(days=9)) == 60


def test_what_fails_when_it_is_old_is_given_up() -> None:
    just_before = record_failed_attempt(DELIVERY, NOW + minutes(30) - timedelta(seconds=1), "no", BACKOFF, 1)
    assert (just_before.state, just_before.attempts, just_before.last_error) == (DeliveryState.WAITING, 1, "no")
    dead = record_failed_attempt(just_before, NOW + minutes(30), "answered 503", BACKOFF, 1)
    assert (dead.state, dead.next_at, dead.attempts, dead.last_error) == (DeliveryState.DEAD, None, 2, "answered 503")


def test_the_id_is_made_of_what_never_changes() -> None:
    assert DELIVERY.id == make_delivery_id(7, "E-1") == "7-E-1"


@pytest.mark.parametrize(("after", "expected"), [(0, ("new", "old")), (59, ("new", "old")), (60, ("new",))])
def test_a_former_secret_signs_until_it_is_over(after: int, expected: tuple[str, ...]) -> None:
    subscription = Subscription(
        id="s",
        name="s",
        url="",
        secret="new",
        former_secret="old",
        former_until=NOW + minutes(1),
        created_at=NOW,
        created_by="operator:ann",
    )
    assert subscription.get_signing_secrets(NOW + timedelta(seconds=after)) == expected
    assert "new" not in repr(subscription)
    assert "old" not in repr(subscription)
