"""Who is told of what happens: subscriptions, and deliveries that did not get through at once.

A subscription is a cursor into the ledger, which is the outbox. A delivery is kept only while it is tried again, or
when it was given up.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from forewarn.core.access import Principal, Role

__all__ = [
    "Backoff",
    "Delivery",
    "DeliveryState",
    "NotificationKind",
    "Subscription",
    "SubscriptionState",
    "delivery_id",
    "failed",
]


class NotificationKind(StrEnum):
    """What a subscription can be told of."""

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
    """Whether anything is sent."""

    ACTIVE = "active"
    PAUSED = "paused"


class DeliveryState(StrEnum):
    """What becomes of a delivery that did not get through at once."""

    WAITING = "waiting"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Somebody who wants to be told.

    Attributes:
        name: Unique; what people call it.
        url: Where notifications are posted to.
        secret: What they are signed with, as Standard Webhooks writes it.
        former_secret: The one before, with which they are signed too until `former_until`.
        scopes: Only of events of these scopes. With `vms`: of either. Both empty: of everything.
        vms: Only of events of these VMs, which stand alone.
        kinds: Only of these kinds; empty: of all.
        reason: Why it is paused; None where an operator gave none.
        is_given_up: Whether Forewarn itself has paused it.
        cursor: Sequence in the ledger up to which all was handed over, is being retried, or was given up.
        failing_since: When the last delivery failed that was not followed by one that succeeded.
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
        """Whether it is told of some tenants only."""
        return bool(self.scopes or self.vms)

    @property
    def principal(self) -> Principal:
        """Whom it stands for: a tenant that owns those scopes and VMs, or somebody who may see everything."""
        return Principal(
            actor=f"subscription:{self.name}",
            role=Role.TENANT if self.is_restricted else Role.READ_ONLY,
            scopes=frozenset(self.scopes),
            vms=frozenset(self.vms),
        )

    def secrets(self, now: datetime) -> tuple[str, ...]:
        """The secrets to sign with, the newest first."""
        has_former = self.former_secret is not None and self.former_until is not None and now < self.former_until
        return (self.secret, self.former_secret) if has_former and self.former_secret else (self.secret,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One notification for one subscription that did not get through at once.

    Attributes:
        sequence: Of the ledger entry that it tells of.
        subject: Of the notification: an event's id, a maintenance's or a rollout's.
        at: When what it tells of happened.
        attempts: How often it was tried.
        next_at: When it is tried again; None: not by itself.
        last_error: What became of the last try, in one line.
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
        """What tells it from others of its subscription."""
        return (self.sequence, self.subject)

    @property
    def id(self) -> str:
        """As the notification's own ``id`` says it."""
        return delivery_id(self.sequence, self.subject)


def delivery_id(sequence: int, subject: str) -> str:
    """The same at every try, on every replica."""
    return f"{sequence}-{subject}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How soon a failed delivery is tried again, and how long at all.

    Attributes:
        first: About so long after the first failure; doubles each time.
        longest: Never longer than about this, also where the receiver asks for more.
        age_max: Of what it tells of; what fails then is given up.
    """

    first: timedelta = timedelta(seconds=5)
    longest: timedelta = timedelta(hours=1)
    age_max: timedelta = timedelta(hours=24)

    def pause(self, failures: int, jitter: float, retry_after: timedelta | None = None) -> timedelta:
        """How long to wait after so many failures; `jitter` and `retry_after` as in `failed`."""
        doublings: int = min(max(failures, 1) - 1, 30)
        whole = min(self.first * (1 << doublings), self.longest)
        pause = whole / 2 + whole / 2 * jitter
        return pause if retry_after is None else max(pause, min(retry_after, self.longest))


def failed(  # noqa: PLR0913 - facts of one try
    delivery: Delivery, now: datetime, error: str, backoff: Backoff, jitter: float, retry_after: timedelta | None = None
) -> Delivery:
    """The delivery after one more try that failed: it waits, or it is dead.

    Args:
        delivery: As it was before.
        now: When it failed.
        error: How.
        backoff: The terms.
        jitter: 0 to 1; spreads the tries of many, half of the pause being left to it.
        retry_after: How long the receiver wants to be left alone; None: it did not say.
    """
    attempts = delivery.attempts + 1
    if now - delivery.at >= backoff.age_max:
        return replace(delivery, attempts=attempts, next_at=None, state=DeliveryState.DEAD, last_error=error)
    next_at = now + backoff.pause(attempts, jitter, retry_after)
    return replace(delivery, attempts=attempts, next_at=next_at, last_error=error)
