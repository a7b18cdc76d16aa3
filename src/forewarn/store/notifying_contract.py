"""The duties of a store for notifications: looks, subscriptions, deliveries. Part of `contract`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Protocol

from forewarn.core.look import Look
from forewarn.core.model import Maintenance
from forewarn.core.subscription import Delivery, DeliveryState, Subscription

__all__ = ["NotifyingReader", "NotifyingTransaction"]


class NotifyingReader(Protocol):
    """Reading."""

    def maintenances_by_id(self, ids: Iterable[str]) -> dict[str, Maintenance]:
        """Return those of the maintenances that exist, by id."""
        ...

    def next_look_at(self) -> datetime | None:
        """Return the moment of the earliest look."""
        ...

    def looks(self, now: datetime, limit: int) -> list[Look]:
        """Return looks that are due by `now`, in order of their moment, then of their maintenance."""
        ...

    def subscriptions(self) -> list[Subscription]:
        """Return all subscriptions, oldest first."""
        ...

    def subscription(self, subscription_id: str) -> Subscription | None:
        """Return the subscription with that id; None if there is none."""
        ...

    def deliveries(
        self, subscription_id: str, state: DeliveryState, *, after: tuple[int, str] = (0, ""), limit: int = 100
    ) -> list[Delivery]:
        """Return deliveries of a subscription in that state with keys after `after`, in the order of their keys."""
        ...

    def deliveries_by_key(self, subscription_id: str, keys: Iterable[tuple[int, str]]) -> list[Delivery]:
        """Return those of the deliveries of a subscription that exist, in the order of their keys."""
        ...

    def delivery_counts(self) -> Mapping[tuple[str, DeliveryState], int]:
        """Return the number of deliveries by subscription and state; zero counts are left out."""
        ...


class NotifyingTransaction(NotifyingReader, Protocol):
    """Writing. Looks are saved with the changes that cause them."""

    def keep_looks(self, looks: Mapping[str, Look | None]) -> None:
        """Store the look of each of those maintenances; None: remove it."""
        ...

    def keep_subscription(self, subscription: Subscription) -> None:
        """Store a new or changed subscription.

        Raises:
            StoreUnavailable: Another one has its name.
        """
        ...

    def forget_subscription(self, subscription_id: str) -> None:
        """Forget a subscription and its deliveries."""
        ...

    def keep_deliveries(self, deliveries: Iterable[Delivery]) -> None:
        """Store new or changed deliveries."""
        ...

    def forget_deliveries(self, subscription_id: str, keys: Iterable[tuple[int, str]]) -> None:
        """Forget deliveries that got through."""
        ...
