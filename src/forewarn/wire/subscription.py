"""The JSON of subscriptions in the control API."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from forewarn.core.subscription import DeliveryState, NotificationKind, Subscription, SubscriptionState
from forewarn.wire.json_types import Moment, Name, Reason, RequestModel, ResponseModel

__all__ = [
    "DeliveryOut",
    "PingResultOut",
    "RedeliveryIn",
    "RedeliveryOut",
    "SecretRotationIn",
    "SubscriptionIn",
    "SubscriptionOut",
    "SubscriptionPauseIn",
    "SubscriptionResumeIn",
]

_NAMES_MAX = 1000
_DeliveryId = Annotated[str, Field(pattern=r"^[0-9]{1,18}-[^\x00]{1,128}$")]


class SubscriptionIn(RequestModel):
    """A subscription to notifications of future audit log entries."""

    name: Annotated[
        str, Field(max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Name of the subscription.")
    ]
    url: Annotated[str, Field(max_length=2000, description="URL that notifications are posted to.")]
    scopes: list[Name] = Field(
        default_factory=list,
        max_length=_NAMES_MAX,
        description="Send only notifications about these scopes, and about the VMs in `vms`. Both lists empty: all.",
    )
    vms: list[Name] = Field(
        default_factory=list,
        max_length=_NAMES_MAX,
        description="Send only notifications about these standalone VMs, and about `scopes`. Both lists empty: all.",
    )
    kinds: list[NotificationKind] = Field(
        default_factory=list, max_length=len(NotificationKind), description="Send only these kinds. Empty: all."
    )


class SubscriptionPauseIn(RequestModel):
    """Reason for a pause."""

    reason: Reason | None = None


class SubscriptionResumeIn(RequestModel):
    """Options for resuming a paused subscription."""

    skip: bool = Field(default=False, description="Skip everything that has happened up to now.")


class SecretRotationIn(RequestModel):
    """Options for replacing the secret of a subscription."""

    at_once: bool = Field(
        default=False, description="Stop signing with the former secret immediately, for example after a leak."
    )


class RedeliveryIn(RequestModel):
    """Selection of dead deliveries to retry."""

    ids: Annotated[list[_DeliveryId], Field(max_length=1000)] | None = Field(
        None, description="Ids of deliveries. Null: all dead deliveries, at most 1,000 in one call."
    )

    def to_keys(self) -> list[tuple[int, str]] | None:
        """Convert the ids to keys of the core."""
        if self.ids is None:
            return None
        parts = [id.partition("-") for id in self.ids]
        return [(int(sequence), subject) for sequence, _, subject in parts]


class SubscriptionOut(ResponseModel):
    """A subscription. Its secret is shown only when the secret is created or replaced."""

    id: str
    name: str
    url: str = Field(description="URL of the receiver; without path and query for callers who may only read.")
    scopes: list[str]
    vms: list[str]
    kinds: list[str]
    state: SubscriptionState
    reason: str | None = Field(description="Reason why the subscription is paused.")
    given_up: bool = Field(
        description="True if Forewarn paused it because the receiver answered 410, or too many deliveries are dead."
    )
    cursor: int = Field(
        description="Sequence number of an audit log entry. Every entry up to it has been handled: it was delivered, "
        "waits for a retry, or is dead."
    )
    waiting: int = Field(description="Number of deliveries that are being retried.")
    dead: int = Field(description="Number of deliveries that were given up.")
    failing_since: Moment | None
    former_secret_until: Moment | None = Field(description="Time until which the former secret signs too.")
    created_at: Moment
    created_by: str
    secret: str | None = None

    @classmethod
    def from_model(
        cls, subscription: Subscription, *, waiting: int = 0, dead: int = 0, is_secret_shown: bool = False
    ) -> SubscriptionOut:
        """Build from the model."""
        return cls.copy_from(
            subscription,
            given_up=subscription.is_given_up,
            waiting=waiting,
            dead=dead,
            former_secret_until=subscription.former_until,
            secret=subscription.secret if is_secret_shown else None,
        )


class DeliveryOut(ResponseModel):
    """A delivery whose first attempt failed."""

    id: str = Field(description="The `id` of the notification.")
    sequence: int
    subject: str
    kind: NotificationKind
    at: Moment = Field(description="Time of the change that the notification reports.")
    state: DeliveryState
    attempts: int
    next_at: Moment | None
    last_error: str


class RedeliveryOut(ResponseModel):
    """Number of deliveries that are being retried."""

    count: int


class PingResultOut(ResponseModel):
    """The receiver's answer to a ping."""

    delivered: bool
    status: int | None = Field(description="HTTP status. Null: no answer.")
    error: str
    took_s: float
