"""Looks, subscriptions and deliveries in SQL; see `forewarn.store.notifying_contract` for the duties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from forewarn.core.alert_schedule import AlertCheck
from forewarn.core.subscription import Delivery, DeliveryState, Subscription
from forewarn.store import tables as t
from forewarn.store.rows import from_rows, split_into_pieces, to_row

__all__ = ["SqlNotifyingReader", "SqlNotifyingTransaction"]


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

    def list_subscriptions(self) -> list[Subscription]:
        found = from_rows(Subscription, self._connection.execute(sa.select(t.subscription)))
        return sorted(found, key=attrgetter("created_at", "id"))

    def get_subscription(self, subscription_id: str) -> Subscription | None:
        query = sa.select(t.subscription).where(t.subscription.c.id == subscription_id)
        return next(iter(from_rows(Subscription, self._connection.execute(query))), None)

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


class SqlNotifyingTransaction(SqlNotifyingReader):
    """Reads and writes on one connection."""

    def save_alert_checks(self, looks: Mapping[str, AlertCheck | None]) -> None:
        for piece in split_into_pieces(sorted(key for key, look in looks.items() if look is None)):
            self._connection.execute(sa.delete(t.look).where(t.look.c.maintenance_id.in_(piece)))
        self._upsert(t.look, [to_row(look) for look in looks.values() if look is not None])

    def save_subscription(self, subscription: Subscription) -> None:
        self._upsert(t.subscription, [to_row(subscription)])

    def delete_subscription(self, subscription_id: str) -> None:
        self._connection.execute(sa.delete(t.delivery).where(t.delivery.c.subscription_id == subscription_id))
        self._connection.execute(sa.delete(t.subscription).where(t.subscription.c.id == subscription_id))

    def save_deliveries(self, deliveries: Iterable[Delivery]) -> None:
        self._upsert(t.delivery, [to_row(delivery) for delivery in deliveries])

    def delete_deliveries(self, subscription_id: str, keys: Iterable[tuple[int, str]]) -> None:
        rows = [{"the_sequence": sequence, "the_subject": subject} for sequence, subject in keys]
        if rows:
            columns = t.delivery.c
            query = sa.delete(t.delivery).where(
                columns.subscription_id == subscription_id,
                columns.sequence == sa.bindparam("the_sequence"),
                columns.subject == sa.bindparam("the_subject"),
            )
            self._connection.execute(query, rows)

    def _upsert(self, table: sa.Table, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        keys = [column.name for column in table.primary_key]
        # Both databases have the same syntax for this, but SQLAlchemy offers it only in their dialects.
        dialect = sqlite if self._connection.dialect.name == "sqlite" else postgresql
        insert = dialect.insert(table)
        others = {name: insert.excluded[name] for name in rows[0] if name not in keys}
        self._connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=others), rows)
