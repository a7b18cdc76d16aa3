"""Subscriptions to notifications, and deliveries that did not succeed at once.

A subscription is a cursor into the audit log, which is the outbox. A delivery is stored only while it is retried, or
when it was given up.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from forewarn.core.access import Principal, Role

__all__ = [
    "Delivery",
    "DeliveryBackoff",
    "DeliveryState",
    "NotificationKind",
    "Subscription",
    "SubscriptionState",
    "make_delivery_id",
    "record_failed_attempt",
]


class NotificationKind(StrEnum):
    """Kind of notification."""

    SCHEDULED = "scheduled"
    DEFERRED = "deferred"
    EXTENDED = "extended"
    APPROVED = "approved"
    STARTED = "started"
    COMPLETED = "completed"
    CANCELED = "canceled"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"
    UNSEEN = "unseen"
    LATE = "late"
    ROLLOUT_PAUSED = "rollout-paused"
    ROLLOUT_FAILED = "rollout-failed"


class SubscriptionState(StrEnum):
    """State of a subscription."""

    ACTIVE = "active"
    PAUSED = "paused"


class DeliveryState(StrEnum):
    """State of a delivery whose first attempt failed: it waits for a retry, or it was given up (dead)."""

    WAITING = "waiting"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Subscription of a receiver to notifications.

    Attributes:
        name: Unique name.
        url: URL to which notifications are posted.
        secret: Signing secret, in the format of Standard Webhooks.
        former_secret: Previous secret, also used for signing until `former_until`.
        scopes: Scopes whose events it covers. With `vms`: either. If both are empty, it covers everything.
        vms: Standalone VMs whose events it covers.
        kinds: Kinds of notifications that it covers; empty for all.
        reason: Reason why it is paused; None if the operator gave none.
        is_given_up: True if Forewarn paused it.
        cursor: Sequence in the audit log up to which everything was delivered, is being retried, or was given up.
        failing_since: Time of the first failure since a delivery last succeeded; None if none has failed since.
    """

    id: str
    name: str
    url: str
    secret: str = field(repr=False)
    former_secret: str | None = field(default=None, repr=False)
    former_until: datetime | None = None
    scopes: tuple[str, ...] = ()
    vms: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    state: SubscriptionState = SubscriptionState.ACTIVE
    reason: str | None = None
    is_given_up: bool = False
    cursor: int = 0
    created_at: datetime
    created_by: str
    failing_since: datetime | None = None

    @property
    def is_restricted(self) -> bool:
        """True if it covers only some tenants."""
        return bool(self.scopes or self.vms)

    @property
    def principal(self) -> Principal:
        """Principal whose view it gets: a tenant that owns those scopes and VMs, or a reader of everything."""
        return Principal(
            actor=f"subscription:{self.name}",
            role=Role.TENANT if self.is_restricted else Role.READ_ONLY,
            scopes=frozenset(self.scopes),
            vms=frozenset(self.vms),
        )

    def get_signing_secrets(self, now: datetime) -> tuple[str, ...]:
        """Return the secrets to sign with, the newest first."""
        has_former = self.former_secret is not None and self.former_until is not None and now < self.former_until
        # Signed with both, so that a receiver can change its secret without rejecting a notification.
        return (self.secret, self.former_secret) if has_former and self.former_secret else (self.secret,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One notification for one subscription that did not succeed at once.

    Attributes:
        sequence: Sequence of the audit log entry that it reports.
        subject: Subject of the notification: the id of an event, maintenance or rollout.
        at: Time of the reported change.
        attempts: Number of attempts so far.
        next_at: Time of the next retry; None if there is no automatic retry.
        last_error: Result of the last attempt, in one line.
    """

    subscription_id: str
    sequence: int
    subject: str
    kind: NotificationKind
    at: datetime
    attempts: int = 0
    next_at: datetime | None = None
    state: DeliveryState = DeliveryState.WAITING
    last_error: str = ""

    @property
    def key(self) -> tuple[int, str]:
        """Unique key within the subscription."""
        return (self.sequence, self.subject)

    @property
    def id(self) -> str:
        """``id`` of the notification."""
        return make_delivery_id(self.sequence, self.subject)


def make_delivery_id(sequence: int, subject: str) -> str:
    """Return the notification id, which is the same for every attempt and on every replica."""
    return f"{sequence}-{subject}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryBackoff:
    """Retry policy for failed deliveries.

    Attributes:
        pause_first: Approximate pause after the first failure; doubles each time.
        pause_max: Approximate maximum pause, even if the receiver asks for more.
        age_max: Age of the reported change after which a failing delivery is given up.
    """

    pause_first: timedelta = timedelta(seconds=5)
    pause_max: timedelta = timedelta(hours=1)
    age_max: timedelta = timedelta(hours=24)

    def compute_pause(self, failures: int, jitter: float, retry_after: timedelta | None = None) -> timedelta:
        """Return the pause after that many failures; `jitter` and `retry_after` as in `record_failed_attempt`."""
        # Capped, because the product would overflow the timedelta after many failures.
        doublings: int = min(max(failures, 1) - 1, 30)
        whole = min(self.pause_first * (1 << doublings), self.pause_max)
        # Half of the pause is random, so that retries after an outage do not arrive all at once.
        pause = whole / 2 + whole / 2 * jitter
        return pause if retry_after is None else max(pause, min(retry_after, self.pause_max))


def record_failed_attempt(  # noqa: PLR0913 - facts of one try
    delivery: Delivery,
    now: datetime,
    error: str,
    backoff: DeliveryBackoff,
    jitter: float,
    retry_after: timedelta | None = None,
) -> Delivery:
    """Return the delivery after one more failed attempt: waiting, or dead.

    `jitter`, from 0 to 1, spreads retries: it decides half of the pause. `retry_after` is the pause that the receiver
    asked for; None if it did not.
    """
    attempts = delivery.attempts + 1
    if now - delivery.at >= backoff.age_max:
        return replace(delivery, attempts=attempts, next_at=None, state=DeliveryState.DEAD, last_error=error)
    next_at = now + backoff.compute_pause(attempts, jitter, retry_after)
    return replace(delivery, attempts=attempts, next_at=next_at, last_error=error)
