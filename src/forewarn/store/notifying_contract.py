"""The duties of a store for notifications: alert checks, subscriptions, deliveries. Part of `contract`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Protocol

from forewarn.core.alert_schedule import AlertCheck
from forewarn.core.model import Maintenance
from forewarn.core.subscription import Delivery, DeliveryState, Subscription

__all__ = ["NotifyingReader", "NotifyingTransaction"]


class NotifyingReader(Protocol):
    """Reading."""

    def find_maintenances(self, ids: Iterable[str]) -> dict[str, Maintenance]:
        """Return those of the maintenances that exist, by id."""

    def next_alert_check_at(self) -> datetime | None:
        """Return the moment of the earliest check."""

    def list_due_alert_checks(self, now: datetime, limit: int) -> list[AlertCheck]:
        """Return checks that are due by `now`, in order of their moment, then of their maintenance."""

    def list_subscriptions(self) -> list[Subscription]:
        """Return all subscriptions, oldest first."""

    def get_subscription(self, subscription_id: str) -> Subscription | None:
        """Return the subscription with that id; None if there is none."""

    def list_deliveries(
        self, subscription_id: str, state: DeliveryState, *, after: tuple[int, str] = (0, ""), limit: int = 100
    ) -> list[Delivery]:
        """Return deliveries of a subscription in that state with keys after `after`, in the order of their keys."""

    def find_deliveries(self, subscription_id: str, keys: Iterable[tuple[int, str]]) -> list[Delivery]:
        """Return those of the deliveries of a subscription that exist, in the order of their keys."""

    def count_deliveries(self) -> Mapping[tuple[str, DeliveryState], int]:
        """Return the number of deliveries by subscription and state; zero counts are left out."""


class NotifyingTransaction(NotifyingReader, Protocol):
    """Writing. Alert checks are saved with the changes that cause them."""

    def save_alert_checks(self, checks: Mapping[str, AlertCheck | None]) -> None:
        """Store the next check of each maintenance; None removes it."""

    def save_subscription(self, subscription: Subscription) -> None:
        """Store a new or changed subscription.

        Raises:
            StoreUnavailable: Another one has its name.
        """

    def delete_subscription(self, subscription_id: str) -> None:
        """Forget a subscription and its deliveries."""

    def save_deliveries(self, deliveries: Iterable[Delivery]) -> None:
        """Store new or changed deliveries."""

    def delete_deliveries(self, subscription_id: str, keys: Iterable[tuple[int, str]]) -> None:
        """Forget deliveries that got through."""
