"""The JSON of subscriptions in the control API."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from forewarn.core.subscription import (
    Delivery,
    DeliveryState,
    NotificationKind,
    Subscription,
    SubscriptionState,
)
from forewarn.wire.control import Moment, Name, Reason

__all__ = [
    "DeliveryOut",
    "PauseIn",
    "RedeliverIn",
    "RedeliveredOut",
    "ResumeIn",
    "RotateIn",
    "SubscriptionIn",
    "SubscriptionOut",
    "TestOut",
]

_NAMES_MAX = 1000
_DeliveryId = Annotated[str, Field(pattern=r"^[0-9]{1,18}-[^\x00]{1,128}$")]


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Out(BaseModel):
    model_config = ConfigDict(frozen=True)


class SubscriptionIn(_In):
    """A subscription to notifications of future audit log entries."""

    name: Annotated[str, Field(max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Of your choice.")]
    url: Annotated[str, Field(max_length=2000, description="Where notifications are posted to.")]
    scopes: list[Name] = Field(
        default_factory=list, max_length=_NAMES_MAX, description="Only of events of these scopes, or of these VMs."
    )
    vms: list[Name] = Field(
        default_factory=list, max_length=_NAMES_MAX, description="Only of events of these VMs, which stand alone."
    )
    kinds: list[NotificationKind] = Field(
        default_factory=list, max_length=len(NotificationKind), description="Only of these; none: of all."
    )


class PauseIn(_In):
    """Reason for a pause."""

    reason: Reason | None = None


class ResumeIn(_In):
    """Options for resuming a paused subscription."""

    skip: bool = Field(default=False, description="Leave out what has happened until now.")


class RotateIn(_In):
    """Options for replacing the secret of a subscription."""

    at_once: bool = Field(default=False, description="From now on: somebody else knows it.")


class RedeliverIn(_In):
    """Selection of dead deliveries to try again."""

    ids: Annotated[list[_DeliveryId], Field(max_length=1000)] | None = Field(
        None, description="Ids of deliveries; null: all that are dead, at most 1,000."
    )

    def keys(self) -> list[tuple[int, str]] | None:
        """Convert the ids to keys of the core."""
        if self.ids is None:
            return None
        parts = [id.partition("-") for id in self.ids]
        return [(int(sequence), subject) for sequence, _, subject in parts]


class SubscriptionOut(_Out):
    """A subscription. Its secret is shown once, when it is made."""

    id: str
    name: str
    url: str = Field(description="For who may only read: without its path and query.")
    scopes: list[str]
    vms: list[str]
    kinds: list[str]
    state: SubscriptionState
    reason: str | None = Field(description="Why it is paused.")
    given_up: bool = Field(description="Whether it was paused because its receiver wants or takes nothing any more.")
    cursor: int = Field(description="Sequence in the audit log up to which all was handed over, or waits, or is dead.")
    waiting: int = Field(description="Deliveries that are tried again.")
    dead: int = Field(description="Deliveries that were given up.")
    failing_since: Moment | None
    former_secret_until: Moment | None = Field(description="Until when the secret before signs too.")
    created_at: Moment
    created_by: str
    secret: str | None = None

    @classmethod
    def of(
        cls, subscription: Subscription, *, waiting: int = 0, dead: int = 0, is_secret_shown: bool = False
    ) -> SubscriptionOut:
        """Build from the model."""
        s = subscription
        return cls(
            id=s.id,
            name=s.name,
            url=s.url,
            scopes=list(s.scopes),
            vms=list(s.vms),
            kinds=list(s.kinds),
            state=s.state,
            reason=s.reason,
            given_up=s.is_given_up,
            cursor=s.cursor,
            waiting=waiting,
            dead=dead,
            failing_since=s.failing_since,
            former_secret_until=s.former_until,
            created_at=s.created_at,
            created_by=s.created_by,
            secret=s.secret if is_secret_shown else None,
        )


class DeliveryOut(_Out):
    """A delivery that did not get through at once."""

    id: str = Field(description="The `id` of the notification.")
    sequence: int
    subject: str
    kind: NotificationKind
    at: Moment = Field(description="When what it tells of happened.")
    state: DeliveryState
    attempts: int
    next_at: Moment | None
    last_error: str

    @classmethod
    def of(cls, delivery: Delivery) -> DeliveryOut:
        """Build from the model."""
        d = delivery
        return cls(
            id=d.id,
            sequence=d.sequence,
            subject=d.subject,
            kind=d.kind,
            at=d.at,
            state=d.state,
            attempts=d.attempts,
            next_at=d.next_at,
            last_error=d.last_error,
        )


class RedeliveredOut(_Out):
    """Number of deliveries that are tried again."""

    count: int


class TestOut(_Out):
    """The receiver's answer to a ping."""

    delivered: bool
    status: int | None = Field(description="HTTP status; null: there was no answer.")
    error: str
    took_s: float
