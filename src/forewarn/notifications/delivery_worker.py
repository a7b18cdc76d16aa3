"""Delivery of notifications for one subscription.

A worker reads the audit log from its subscription's cursor and posts the notifications for it, some concurrently, but
those of one event in sequence. A notification that fails a few times in a row is stored and retried later, and later
ones of the same event queue behind it; the rest goes on. After several failures in a row the circuit breaker opens: the
receiver is left alone for a while, then probed until a request succeeds. The cursor moves after the answers. So nothing
is lost, and a request under way when a process dies is repeated under the same id.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Protocol

import structlog

from forewarn.clock import wait_until_or_event
from forewarn.core.circuit_breaker import CircuitBreaker
from forewarn.core.subscription import (
    Delivery,
    DeliveryBackoff,
    DeliveryState,
    Subscription,
    SubscriptionState,
    record_failed_attempt,
)
from forewarn.engine.engine import Engine
from forewarn.engine.subscriptions import DeliveryResults
from forewarn.errors import ForewarnError
from forewarn.notifications.delivery_log import DeliveryAttempt, DeliveryLog
from forewarn.notifications.message_headers import build_headers
from forewarn.notifications.outbox import Outbox, find_first_of_each, read_outbox
from forewarn.util.failpoint import FailPoint, reach_failpoint

if TYPE_CHECKING:
    from forewarn.net.outbound import PostOutcome
    from forewarn.wire.notification import Notification

__all__ = ["DeliveryPolicy", "DeliveryWorker", "ReceiverClient"]

_log = structlog.get_logger("forewarn.notifications.delivery_worker")

# A receiver that fails for a second costs no row: only what fails three times in quick succession is stored (ADR 18).
_QUICK_PAUSES_S = (0.2, 1.0)
"""Pauses between the first attempts, in seconds."""

_PROBES = 2
"""Failed probes after which an open breaker rests again: one of a new notification, one of an old one."""

_STORE_RETRY = timedelta(seconds=1)

# Bounds what a restart, or the next leader, has to read again.
_UNKEPT_MAX = 1000
"""Number of irrelevant audit log entries after which the cursor is stored even without a delivery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPolicy:
    """Policy for deliveries: source, backoff and limits.

    Attributes:
        source: Value of ``source`` in every notification.
        backoff: Backoff between attempts.
        requests_max: Maximum number of concurrent requests to one receiver.
        waiting_max: Maximum number of deliveries of one subscription that wait for a retry.
    """

    source: str = "/forewarn"
    backoff: DeliveryBackoff = field(default_factory=DeliveryBackoff)
    requests_max: int = 4
    waiting_max: int = 100


class ReceiverClient(Protocol):
    """Client that posts to one receiver."""

    def post(self, url: str, body: bytes, headers: dict[str, str], now: datetime) -> Awaitable[PostOutcome]:
        """Post once; the answer holds the result, errors included."""

    def close(self) -> Awaitable[None]:
        """Close the connections."""


class _DeliveryRound:
    """Results of one round of deliveries."""

    def __init__(self, outbox: Outbox, *, was_down: bool) -> None:
        self.outbox = outbox
        self.was_down = was_down
        self.failures = 0
        self.delivered: set[tuple[int, str]] = set()
        self.stored: dict[tuple[int, str], Delivery] = {}
        self.pause_reason: str | None = None
        self.known = {delivery.key: delivery for delivery in outbox.waiting}

    def is_settled(self, key: tuple[int, str]) -> bool:
        """Return whether the notification is done for this round."""
        return key in self.delivered or key in self.stored

    @property
    def waiting(self) -> list[Delivery]:
        """Deliveries that wait for a retry after this round."""
        kept = {key: d for key, d in self.known.items() if key not in self.delivered} | self.stored
        return [d for d in kept.values() if d.state is DeliveryState.WAITING]


class DeliveryWorker:
    """Delivers for one subscription while this replica is the leader.

    Args:
        engine: Engine that reads the audit log and records results.
        delivery_policy: Policy for deliveries.
        subscription: Subscription to deliver for.
        client: Client for its receiver.
        log: Records each attempt and its outcome.

    Attributes:
        oldest_at: Time of the oldest occurrence not yet delivered; None if everything was.
    """

    def __init__(
        self,
        engine: Engine,
        delivery_policy: DeliveryPolicy,
        subscription: Subscription,
        client: ReceiverClient,
        log: DeliveryLog,
    ) -> None:
        self.id, self.name = subscription.id, subscription.name
        self.oldest_at: datetime | None = None
        self._engine, self._clock, self._delivery_policy = engine, engine.committer.clock, delivery_policy
        self._client = client
        self._delivery_log = log
        self._woken = asyncio.Event()
        # May run ahead of the stored cursor, which moves only when there is something to record.
        self._position = subscription.cursor
        self._sent: set[tuple[int, str]] = set()
        self._breaker = CircuitBreaker(backoff=delivery_policy.backoff)
        self._rng = random.Random()  # noqa: S311 - jitter, no secret

    def wake(self) -> None:
        """Read the audit log again: something was written."""
        self._woken.set()

    def retry_now(self) -> None:
        """Try now, even if the breaker is open: an operator has changed a subscription."""
        # The failures stay counted, so the next round is a probe and not a burst.
        self._breaker.open_until = None
        self._woken.set()

    async def run(self) -> None:
        """Deliver until the subscription is deleted or paused, this replica is no longer the leader, or cancelled."""
        try:
            while True:
                # Before the read, so that an entry written during the round starts another one.
                self._woken.clear()
                try:
                    outbox = await self._read_outbox()
                    if outbox is None or outbox.subscription.state is not SubscriptionState.ACTIVE:
                        return
                    until, is_active = await self._run_round(outbox)
                    if not is_active:
                        return
                except ForewarnError as error:
                    # `_sent` remembers what was delivered, so it is not sent again once the store works.
                    # A lost lease ends up here, too; the next round notices it and returns.
                    _log.warning("cannot record deliveries; retrying", error=error.message)
                    until = self._clock.now() + _STORE_RETRY
                except Exception:  # noqa: BLE001 - a worker must survive a bug; the log has the trace
                    _log.exception("a round of deliveries failed; retrying", subscription=self.name)
                    until = self._clock.now() + _STORE_RETRY
                await self._wait_for_work(until)
        finally:
            await self._client.close()

    async def _wait_for_work(self, until: datetime | None) -> None:
        # Yield even with more to do, so that one busy subscription does not starve the event loop.
        if until is not None and until <= self._clock.now():
            await asyncio.sleep(0)
            return
        if until is None:
            await self._woken.wait()
            return
        await wait_until_or_event(self._clock, until, self._woken)

    # One round

    async def _read_outbox(self) -> Outbox | None:
        now = self._clock.now()
        read = partial(
            read_outbox,
            subscription_id=self.id,
            now=now,
            after=self._position,
            waiting_max=self._delivery_policy.waiting_max,
            is_open=self._breaker.is_open,
            allows_request=self._breaker.allows_request(now),
        )
        return await self._engine.read(read)

    async def _run_round(self, outbox: Outbox) -> tuple[datetime | None, bool]:
        """Deliver what can be delivered now; return the time of the next round, and whether to go on."""
        if not self._engine.leadership.is_held:
            # The new leader has a worker for this subscription, which continues at the stored cursor.
            return None, False
        done = _DeliveryRound(outbox, was_down=self._breaker.is_open)
        # Retention has deleted the entries of these deliveries. There is nothing left to send, so they are dropped.
        done.delivered.update(outbox.unknown)
        queues = self._build_queues(outbox)
        unsent = [n.entry.at for queue in queues for n in queue[:1] if n.key not in self._sent]
        self.oldest_at = min([d.at for d in outbox.waiting] + unsent, default=None)
        # One request at a time probes a receiver that is considered down.
        workers = 1 if self._breaker.is_open else min(self._delivery_policy.requests_max, len(queues))
        await asyncio.gather(*(self._drain_queues(queues, done) for _ in range(workers)))
        return await self._record_round(done)

    def _build_queues(self, outbox: Outbox) -> deque[list[Notification]]:
        """Return a queue for each subject, without subjects whose earlier delivery still waits for its retry."""
        blocked = {delivery.subject for delivery in outbox.waiting} - outbox.due
        queues: dict[str, list[Notification]] = {}
        for notification in outbox.notifications:
            if notification.subject not in blocked:
                queues.setdefault(notification.subject, []).append(notification)
        if self._breaker.is_open:
            # New ones first: the receiver may never accept the waiting ones.
            return deque(sorted(queues.values(), key=lambda queue: queue[0].subject in outbox.due))
        return deque(queues.values())

    async def _drain_queues(self, queues: deque[list[Notification]], done: _DeliveryRound) -> None:
        while queues and self._may_continue(done):
            # A queue is one subject: after a failure its rest waits, so that an event's notifications keep their order.
            for notification in queues.popleft():
                if notification.key in self._sent:
                    done.delivered.add(notification.key)
                elif not self._may_continue(done) or not await self._post_notification(notification, done):
                    break

    def _may_continue(self, done: _DeliveryRound) -> bool:
        # Checked before each request: a replica that was suspended must not send a whole round beside the new leader.
        if done.pause_reason is not None or not self._engine.leadership.is_held:
            return False
        return not self._breaker.is_open or done.failures < _PROBES

    async def _post_notification(self, notification: Notification, done: _DeliveryRound) -> bool:
        """Post one; return whether the next one of its subject may follow."""
        subscription = done.outbox.subscription
        known = done.known.get(notification.key)
        # Quick retries only while nothing fails: a receiver that is down should get one request, not three.
        answer = await self._post_with_retries(
            notification, subscription, is_first=known is None and not self._breaker.failures
        )
        if answer.is_gone:
            # Standard Webhooks: with 410 a receiver asks for no further notifications.
            done.pause_reason = "the receiver answered 410 Gone"
            return False
        if answer.is_accepted:
            reach_failpoint(FailPoint.NOTIFIED)
            self._breaker.record_success()
            # Remembered until the cursor has passed it: if the result cannot be stored, it is not sent again.
            self._sent.add(notification.key)
            done.delivered.add(notification.key)
            return True
        done.failures += 1
        now = self._clock.now()
        self._breaker.record_failure(now, self._rng.random(), answer.retry_after)
        delivery = known or _make_delivery(subscription, notification)
        kept = record_failed_attempt(
            delivery, now, answer.error, self._delivery_policy.backoff, self._rng.random(), answer.retry_after
        )
        done.stored[kept.key] = kept
        if kept.state is DeliveryState.DEAD:
            self._delivery_log.count_dead(self.name)
            _log.warning("a delivery is dead", subscription=self.name, id=kept.id, error=kept.last_error)
        # Later ones of the subject queue behind a delivery that waits, but not behind one that is given up.
        return kept.state is DeliveryState.DEAD

    async def _post_with_retries(
        self, notification: Notification, subscription: Subscription, *, is_first: bool
    ) -> PostOutcome:
        """Post a notification; on its first delivery, with quick retries."""
        from forewarn.wire.notification import encode_notification  # noqa: PLC0415 - unused by most services

        body = encode_notification(notification, self._delivery_policy.source)
        # These pauses are real time, on which nothing may depend with a virtual clock.
        pauses = [*(_QUICK_PAUSES_S if is_first and not self._clock.is_virtual else ()), None]
        for pause_s in pauses:
            now = self._clock.now()
            # Signed again for each attempt: receivers refuse a signature that is minutes old.
            headers = build_headers(subscription, notification.id, body, now)
            answer = await self._client.post(subscription.url, body, headers, now)
            # A receiver that is gone refuses all notifications, not this one.
            if not answer.is_gone:
                self._record_attempt(notification, answer, now)
            if answer.is_accepted or answer.is_gone:
                return answer
            # A receiver that has named a pause gets no quick retry.
            if pause_s is None or answer.retry_after is not None:
                return answer
            await asyncio.sleep(pause_s * (0.5 + self._rng.random()))
        raise AssertionError  # the last try returns

    def _record_attempt(self, notification: Notification, answer: PostOutcome, now: datetime) -> None:
        attempt = DeliveryAttempt(
            at=now,
            id=notification.id,
            kind=notification.kind,
            is_accepted=answer.is_accepted,
            status=answer.status,
            error=answer.error,
        )
        self._delivery_log.record_attempt(self.name, attempt)

    # Results

    async def _record_round(self, done: _DeliveryRound) -> tuple[datetime | None, bool]:
        # First, since it adds to `done.stored`, on which the position and the next round depend.
        self._queue_behind_waiting(done)
        subscription, waiting, position = done.outbox.subscription, done.waiting, self._find_settled_position(done)
        since = subscription.failing_since
        failing_since = (since or self._clock.now()) if waiting or self._breaker.failures else None
        needs = bool(done.delivered or done.stored or done.pause_reason)
        needs |= failing_since != since or position - subscription.cursor > _UNKEPT_MAX
        is_active = True
        # Most entries do not concern a given subscription; without this, each would cost every subscription a write.
        if needs:
            outcome = DeliveryResults(
                cursor=position,
                # Only deliveries that had failed before have a row to delete.
                delivered=tuple(sorted(done.delivered & done.known.keys())),
                stored=tuple(done.stored.values()),
                failing_since=failing_since,
                pause_reason=done.pause_reason,
            )
            is_active = await self._engine.subscriptions.record_deliveries(self.id, outcome)
        # Only now: if recording fails, the next round reads the same entries again.
        self._position = position
        self._sent = {key for key in self._sent if key[0] > position}
        has_all = not done.outbox.entries or position == done.outbox.entries[-1].sequence
        if not waiting and has_all:
            self.oldest_at = None
        return self._find_next_round_at(waiting, has_more=done.outbox.has_more or not has_all), is_active

    def _find_next_round_at(self, waiting: list[Delivery], *, has_more: bool) -> datetime | None:
        now, open_until = self._clock.now(), self._breaker.open_until
        # Before `has_more`: while the circuit is open, the next round could send nothing.
        if open_until is not None and open_until > now:
            return open_until
        if has_more:
            return now
        return min((d.next_at or now for d in find_first_of_each(waiting).values()), default=None)

    def _queue_behind_waiting(self, done: _DeliveryRound) -> None:
        """Queue notifications behind a waiting delivery of their subject, to be retried with it."""
        # Stored, though not tried yet: the cursor can then pass them, and the rest goes on.
        firsts = find_first_of_each(done.waiting)
        for notification in done.outbox.notifications:
            first = firsts.get(notification.subject)
            is_open = not done.is_settled(notification.key) and notification.key not in done.known
            if first is not None and is_open:
                behind = replace(
                    _make_delivery(done.outbox.subscription, notification),
                    next_at=first.next_at,
                    last_error="waiting for an earlier delivery",
                )
                done.stored[behind.key] = behind
        if done.was_down and not self._breaker.is_open:
            # The receiver works again: retry at once what waited for it.
            now = self._clock.now()
            for delivery in done.outbox.waiting:
                if not done.is_settled(delivery.key):
                    done.stored[delivery.key] = replace(delivery, next_at=now)

    def _find_settled_position(self, done: _DeliveryRound) -> int:
        """Return the last audit log entry up to which everything is delivered or stored."""
        position = max(self._position, done.outbox.subscription.cursor)
        keys = (n.key for n in done.outbox.notifications)
        # The cursor stops before the first entry with something unsettled. Later ones that were delivered are
        # remembered in `_sent`.
        # Deliveries stored by an earlier round hold up nothing.
        left = {key[0] for key in keys if not done.is_settled(key) and key not in done.known}
        for entry in done.outbox.entries:
            if entry.sequence in left:
                break
            position = entry.sequence
        return position


def _make_delivery(subscription: Subscription, notification: Notification) -> Delivery:
    return Delivery(
        subscription_id=subscription.id,
        sequence=notification.entry.sequence,
        subject=notification.subject,
        kind=notification.kind,
        at=notification.entry.at,
    )
