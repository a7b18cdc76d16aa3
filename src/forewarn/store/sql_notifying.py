"""Looks, subscriptions and deliveries in SQL; see `forewarn.store.notifying_contract` for the duties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any

import sqlalchemy as sa

from forewarn.core.alert_schedule import AlertCheck
from forewarn.core.subscription import Delivery, DeliveryState
from forewarn.store import tables as t
from forewarn.store.rows import from_rows, split_into_pieces

__all__ = ["SqlNotifyingReader"]


class SqlNotifyingReader:
    """Reads on one connection."""

    _connection: sa.Connection

    def next_alert_check_at(self) -> datetime | None:
        column = t.look.c.at
        return self._connection.execute(sa.select(column).order_by(column).limit(1)).scalar()

    def list_due_alert_checks(self, now: datetime, limit: int) -> list[AlertCheck]:
        columns = t.look.c
        query = sa.select(t.look).where(columns.at <= now).order_by(columns.at, columns.maintenance_id).limit(limit)
        return from_rows(AlertCheck, self._connection.execute(query))

    def list_deliveries(
        self, subscription_id: str, state: DeliveryState, *, after: tuple[int, str] = (0, ""), limit: int = 100
    ) -> list[Delivery]:
        columns = t.delivery.c
        is_sqlite = self._connection.dialect.name == "sqlite"
        # In the order of code points, as SQLite sorts.
        subject: sa.ColumnElement[Any] = columns.subject if is_sqlite else sa.collate(columns.subject, "C")
        is_later = sa.or_(columns.sequence > after[0], sa.and_(columns.sequence == after[0], subject > after[1]))
        query = sa.select(t.delivery).where(columns.subscription_id == subscription_id, columns.state == state)
        query = query.where(is_later).order_by(columns.sequence, subject).limit(limit)
        return from_rows(Delivery, self._connection.execute(query))

    def find_deliveries(self, subscription_id: str, keys: Iterable[tuple[int, str]]) -> list[Delivery]:
        columns, found = t.delivery.c, []
        for piece in split_into_pieces(sorted(set(keys))):
            is_named = sa.tuple_(columns.sequence, columns.subject).in_(piece)
            query = sa.select(t.delivery).where(columns.subscription_id == subscription_id, is_named)
            found += from_rows(Delivery, self._connection.execute(query))
        return sorted(found, key=attrgetter("key"))

    def count_deliveries(self) -> Mapping[tuple[str, DeliveryState], int]:
        columns = t.delivery.c
        query = sa.select(columns.subscription_id, columns.state, sa.func.count())
        rows = self._connection.execute(query.group_by(columns.subscription_id, columns.state))
        return {(subscription_id, state): count for subscription_id, state, count in rows}
