"""Large changes: PostgreSQL ends a transaction that computes for long between two statements."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from forewarn.core.inventory import Inventory
from forewarn.core.model import Host, NotificationProfile, PowerState, Scope, ScopeKind, VirtualMachine
from forewarn.core.policy import Policy
from forewarn.store import Store, tables
from forewarn.store.rows import stream_rows
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
        # PostgreSQL gets all rows of a statement as one JSON array.
        is_array = isinstance(rows, tuple) and len(rows) == 1 and str(rows[0]).startswith("[")
        sent.append(len(json.loads(rows[0])) if is_array else len(rows) if isinstance(rows, list) else 1)

    inventory = Inventory(hosts=(HOST,), vms=tuple(vm(f"vm-{number}") for number in range(1200)))
    with store.write() as tx:
        sa.event.listen(tx._connection, "before_cursor_execute", note)
        tx.replace_inventory(inventory, None, Inventory())
    with store.read() as reader:
        assert len(reader.get_inventory().vms) == 1200
    store.close()
    assert max(sent) <= ROWS_AT_ONCE
    assert sum(sent) >= 1200


def test_every_vm_of_a_whole_inventory_is_read_as_it_is_read_alone(store: Store) -> None:
    """The whole inventory is decoded column by column, and equal values only once."""
    policies = (Policy(), Policy(user_operations_max=2))
    vms = tuple(
        VirtualMachine(
            name=f"vm-{number:04}",
            host=HOST.name,
            scope="set" if number % 3 else None,
            addresses=() if number % 5 else (f"10.0.{number >> 8}.{number & 255}", f"fd00::{number:x}"),
            size=f"size-{number}",
            tags=(("number", str(number % 7)),) if number % 2 else (),
            terminate_notification=NotificationProfile(not_before_timeout=timedelta(minutes=5 + number % 9)),
            power_state=PowerState.RUNNING if number % 4 else PowerState.DEALLOCATED,
            policy=policies[number % 2],
        )
        for number in range(2500)
    )
    scope = Scope(name="set", kind=ScopeKind.AVAILABILITY_SET)
    with store.write() as tx:
        tx.replace_inventory(Inventory(hosts=(HOST,), scopes=(scope,), vms=vms), None, Inventory())
    with store.read() as reader:
        assert sorted(reader.get_inventory({}).vms, key=lambda each: each.name) == list(vms)
        assert reader.list_vms() == list(vms)


@pytest.mark.slow
@pytest.mark.parametrize("shared_database", ["postgresql"], indirect=True)
def test_postgresql_sends_many_rows_in_pieces(shared_database: Database) -> None:
    """Otherwise all rows would be in memory at once, which the allocator then keeps."""
    store = shared_database.open()
    assert isinstance(store, SqlStore)
    with store.write() as tx:
        vms = tuple(vm(f"vm-{number}") for number in range(2500))
        tx.replace_inventory(Inventory(hosts=(HOST,), vms=vms), None, Inventory())
    with store.read() as reader:
        pieces = stream_rows(reader._connection, VirtualMachine, tables.vm)
        assert len(next(pieces)) == 1000
        is_open = "SELECT count(*) FROM pg_cursors WHERE statement LIKE '%vm.name%'"
        assert reader._connection.exec_driver_sql(is_open.replace("%", "%%")).scalar_one() == 1
        assert sum(map(len, pieces)) == 1500
    store.close()


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
