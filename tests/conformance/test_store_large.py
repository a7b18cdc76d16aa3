"""Large changes: PostgreSQL ends a transaction that computes for long between two statements."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from forewarn.core.inventory import Inventory
from forewarn.core.model import Host
from forewarn.store.sql import SqlStore
from tests.support.databases import Database
from tests.unit.core.builders import vm

HOST = Host(name="host-1")
ROWS_AT_ONCE = 500


def test_rows_are_sent_in_pieces(shared_database: Database) -> None:
    store = shared_database.open()
    assert isinstance(store, SqlStore)
    sent: list[int] = []

    def note(_connection: object, _cursor: object, _statement: str, rows: Any, *_rest: object) -> None:  # noqa: ANN401
        sent.append(len(rows) if isinstance(rows, list) else 1)

    inventory = Inventory(hosts=(HOST,), vms=tuple(vm(f"vm-{number}") for number in range(1200)))
    with store.write() as tx:
        sa.event.listen(tx._connection, "before_cursor_execute", note)
        tx.replace_inventory(inventory, None, Inventory())
    with store.read() as reader:
        assert len(reader.get_inventory().vms) == 1200
    store.close()
    assert max(sent) <= ROWS_AT_ONCE
    assert sum(sent) >= 1200


@pytest.mark.slow
@pytest.mark.parametrize("shared_database", ["postgresql"], indirect=True)
@pytest.mark.parametrize(("count", "is_allowed"), [(10, False), (10_001, True)])
def test_a_large_inventory_may_take_long_between_two_statements(
    count: int, is_allowed: bool, shared_database: Database
) -> None:
    store = shared_database.open(halted_ms=20_000)
    assert isinstance(store, SqlStore)
    inventory = Inventory(hosts=(HOST,), vms=tuple(vm(f"vm-{number}") for number in range(count)))
    with store.write() as tx:
        tx.replace_inventory(inventory, None, Inventory())
        query = "SELECT setting::int FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'"
        allowed_ms = tx._connection.exec_driver_sql(query).scalar_one()
    store.close()
    assert allowed_ms == (60_000 if is_allowed else 20_000)
