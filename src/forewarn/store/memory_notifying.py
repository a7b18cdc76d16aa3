"""Looks, subscriptions and deliveries in dictionaries; see `forewarn.store.notifying_contract` for the duties."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import islice, takewhile

from forewarn.core.alert_schedule import AlertCheck
from forewarn.core.subscription import Delivery, DeliveryState
from forewarn.store.memory_tables import ALL, Tables

__all__ = ["MemoryNotifyingReader"]


class MemoryNotifyingReader:
    """Reads in dictionaries."""

    _tables: Tables

    def next_alert_check_at(self) -> datetime | None:
        return next((at for at, _ in self._tables.alert_checks_by_at.get_group(ALL)), None)

    def list_due_alert_checks(self, now: datetime, limit: int) -> list[AlertCheck]:
        due = takewhile(lambda place: place[0] <= now, self._tables.alert_checks_by_at.get_group(ALL))
        return [self._tables.alert_checks.rows[key] for _, key in islice(due, limit)]

    def list_deliveries(
        self, subscription_id: str, state: DeliveryState, *, after: tuple[int, str] = (0, ""), limit: int = 100
    ) -> list[Delivery]:
        index = self._tables.deliveries_by_state.get_group((subscription_id, state))
        first = bisect_right(index, after)
        rows = self._tables.deliveries.rows
        return [rows[(subscription_id, *key)] for key in index[first : first + limit]]

    def find_deliveries(self, subscription_id: str, keys: Iterable[tuple[int, str]]) -> list[Delivery]:
        rows = self._tables.deliveries.rows
        named = ((subscription_id, *key) for key in sorted(set(keys)))
        return [rows[name] for name in named if name in rows]

    def count_deliveries(self) -> Mapping[tuple[str, DeliveryState], int]:
        return Counter((d.subscription_id, d.state) for d in self._tables.deliveries.rows.values())
