from __future__ import annotations

from datetime import UTC, datetime, timedelta

from forewarn.notifications.delivery_log import DeliveryAttempt, DeliveryLog

NOW = datetime(2026, 11, 20, 8, tzinfo=UTC)


def attempt(number: int, *, is_accepted: bool = True) -> DeliveryAttempt:
    at, status = NOW + timedelta(seconds=number), 204 if is_accepted else 500
    error = "" if is_accepted else "the receiver answered 500"
    return DeliveryAttempt(
        at=at, id=f"{number}-A", kind="scheduled", is_accepted=is_accepted, status=status, error=error
    )


def test_the_last_twenty_attempts_of_each_subscription_are_kept_newest_first() -> None:
    log = DeliveryLog()
    for number in range(30):
        log.record_attempt("chat", attempt(number))
    log.record_attempt("web", attempt(99, is_accepted=False))
    assert [each.id for each in log.list_recent("chat")] == [f"{number}-A" for number in range(29, 9, -1)]
    assert [each.id for each in log.list_recent("web")] == ["99-A"]
    assert log.list_recent("none") == []


def test_outcomes_are_counted_and_only_accepted_attempts_are_deliveries() -> None:
    log = DeliveryLog()
    log.record_attempt("chat", attempt(1))
    log.record_attempt("chat", attempt(2, is_accepted=False))
    log.count_dead("chat")
    assert log.counts == {("chat", "delivered"): 1, ("chat", "failed"): 1, ("chat", "dead"): 1}
    assert log.last_delivered_at("chat") == NOW + timedelta(seconds=1)
    assert log.last_delivered_at("none") is None


def test_subscriptions_that_were_deleted_are_forgotten() -> None:
    log = DeliveryLog()
    for name in ("chat", "web"):
        log.record_attempt(name, attempt(1))
    log.keep_only({"web"})
    assert log.counts == {("web", "delivered"): 1}
    assert log.list_recent("chat") == []
    assert log.last_delivered_at("chat") is None
    assert log.last_delivered_at("web") is not None
