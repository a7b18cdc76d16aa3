"""Looks, subscriptions and deliveries in dictionaries; see `forewarn.store.notifying_contract` for the duties."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import islice, takewhile
from operator import attrgetter

from forewarn.core.look import Look
from forewarn.core.subscription import Delivery, DeliveryState, Subscription
from forewarn.store.memory_tables import ALL, Tables

__all__ = ["MemoryNotifyingReader", "MemoryNotifyingTransaction"]


class MemoryNotifyingReader:
    """Reads in dictionaries."""

    _tables: Tables

    def next_look_at(self) -> datetime | None:
        return next((at for at, _ in self._tables.looks_by_at.group(ALL)), None)

    def looks(self, now: datetime, limit: int) -> list[Look]:
        due = takewhile(lambda place: place[0] <= now, self._tables.looks_by_at.group(ALL))
        return [self._tables.looks.rows[key] for _, key in islice(due, limit)]

    def subscriptions(self) -> list[Subscription]:
        return sorted(self._tables.subscriptions.rows.values(), key=attrgetter("created_at", "id"))

    def subscription(self, subscription_id: str) -> Subscription | None:
        return self._tables.subscriptions.rows.get(subscription_id)

    def deliveries(
        self, subscription_id: str, state: DeliveryState, *, after: tuple[int, str] = (0, ""), limit: int = 100
    ) -> list[Delivery]:
        index = self._tables.deliveries_of.group((subscription_id, state))
        first = bisect_right(index, after)
        rows = self._tables.deliveries.rows
        return [rows[(subscription_id, *key)] for key in index[first : first + limit]]

    def deliveries_by_key(self, subscription_id: str, keys: Iterable[tuple[int, str]]) -> list[Delivery]:
        rows = self._tables.deliveries.rows
        named = ((subscription_id, *key) for key in sorted(set(keys)))
        return [rows[name] for name in named if name in rows]

    def delivery_counts(self) -> Mapping[tuple[str, DeliveryState], int]:
        return Counter((d.subscription_id, d.state) for d in self._tables.deliveries.rows.values())


class MemoryNotifyingTransaction(MemoryNotifyingReader):
    """Reads and writes in dictionaries."""

    def keep_looks(self, looks: Mapping[str, Look | None]) -> None:
        for key, look in looks.items():
            self._tables.looks.put(key, look)

    def keep_subscription(self, subscription: Subscription) -> None:
        table = self._tables.subscriptions
        if any(each.name == subscription.name and each.id != subscription.id for each in table.rows.values()):
            table.refuse(subscription.id)
        table.put(subscription.id, subscription)

    def forget_subscription(self, subscription_id: str) -> None:
        for key in [key for key in self._tables.deliveries.rows if key[0] == subscription_id]:
            self._tables.deliveries.put(key, None)
        self._tables.subscriptions.put(subscription_id, None)

    def keep_deliveries(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self._tables.deliveries.put((delivery.subscription_id, *delivery.key), delivery)

    def forget_deliveries(self, subscription_id: str, keys: Iterable[tuple[int, str]]) -> None:
        for key in keys:
            self._tables.deliveries.put((subscription_id, *key), None)
