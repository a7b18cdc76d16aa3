"""What a store owes to those who are told of what happens: looks, subscriptions, deliveries. Part of `contract`."""

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
        """Those maintenances, as far as they are there."""
        ...

    def next_look_at(self) -> datetime | None:
        """The earliest moment of a look."""
        ...

    def looks(self, now: datetime, limit: int) -> list[Look]:
        """Looks that are due by `now`, in order of their moment, then of their maintenance."""
        ...

    def subscriptions(self) -> list[Subscription]:
        """All of them, oldest first."""
        ...

    def subscription(self, subscription_id: str) -> Subscription | None:
        """The one of that id."""
        ...

    def deliveries(
        self, subscription_id: str, state: DeliveryState, *, after: tuple[int, str] = (0, ""), limit: int = 100
    ) -> list[Delivery]:
        """Deliveries of a subscription in that state whose keys come after that one, in the order of their keys."""
        ...

    def deliveries_by_key(self, subscription_id: str, keys: Iterable[tuple[int, str]]) -> list[Delivery]:
        """Those deliveries of a subscription, as far as they are there, in the order of their keys."""
        ...

    def delivery_counts(self) -> Mapping[tuple[str, DeliveryState], int]:
        """How many deliveries there are, by subscription and state; what has none is left out."""
        ...


class NotifyingTransaction(NotifyingReader, Protocol):
    """Writing. Looks are saved with the changes that they follow from."""

    def keep_looks(self, looks: Mapping[str, Look | None]) -> None:
        """Keep the look of each of those maintenances; None: there is none any more."""
        ...

    def keep_subscription(self, subscription: Subscription) -> None:
        """Keep a new subscription, or one that was changed.

        Raises:
            StoreUnavailable: Another one has its name.
        """
        ...

    def forget_subscription(self, subscription_id: str) -> None:
        """Forget it, and its deliveries."""
        ...

    def keep_deliveries(self, deliveries: Iterable[Delivery]) -> None:
        """Keep new deliveries, or changed ones."""
        ...

    def forget_deliveries(self, subscription_id: str, keys: Iterable[tuple[int, str]]) -> None:
        """Forget deliveries that got through."""
        ...
