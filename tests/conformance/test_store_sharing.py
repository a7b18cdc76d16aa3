"""What a database that replicas share owes: one time, a lease, word of changes. See `forewarn.store.contract`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
import sqlalchemy as sa

from forewarn.core.inventory import Inventory
from forewarn.errors import StoreUnavailable
from forewarn.store import MemoryStore, SqlStore
from forewarn.store.contract import SharedStore
from tests.support.databases import Database, PostgreSql
from tests.support.spans import GUARD_S

SPAN = timedelta(seconds=30)
NO_SPAN = timedelta(0)


@pytest.fixture
def database(server: PostgreSql) -> Iterator[Database]:
    with server.database() as made:
        yield made


@pytest.fixture
def store(database: Database) -> Iterator[SqlStore]:
    store = database.open()
    yield store
    store.close()


@pytest.fixture
def shared(store: SqlStore) -> SharedStore:
    assert store.shared is not None
    return store.shared


def test_sqlite_and_dictionaries_are_shared_by_nobody() -> None:
    assert MemoryStore().shared is None
    store = SqlStore("sqlite://")
    assert store.shared is None
    store.close()


@pytest.mark.slow
def test_a_lease_is_held_by_one_until_it_is_over(shared: SharedStore) -> None:
    with shared.write() as tx:
        assert tx.get_lease("a") is None
        mine = tx.acquire_lease("a", "one", SPAN)
        assert (mine.holder, mine.term, mine.is_over) == ("one", 1, False)
    with shared.write() as tx:
        assert tx.acquire_lease("a", "two", SPAN).holder == "one"
        again = tx.acquire_lease("a", "one", SPAN)
        assert (again.term, again.expires_at > mine.expires_at) == (1, True)
        assert tx.acquire_lease("b", "two", SPAN).holder == "two"


@pytest.mark.slow
@pytest.mark.parametrize("is_given_back", [True, False])
def test_a_lease_that_is_over_is_taken_with_another_term(shared: SharedStore, *, is_given_back: bool) -> None:
    with shared.write() as tx:
        tx.acquire_lease("a", "one", SPAN if is_given_back else NO_SPAN)
    with shared.write() as tx:
        if is_given_back:
            tx.release_lease("a", "two")
            assert tx.acquire_lease("a", "two", SPAN).holder == "one"
            tx.release_lease("a", "one")
        taken = tx.acquire_lease("a", "two", SPAN)
        assert (taken.holder, taken.term) == ("two", 2)
        tx.release_lease("a", "two")
        assert tx.acquire_lease("a", "two", SPAN).term == 3  # it may have been somebody else's meanwhile


@pytest.mark.slow
def test_a_lease_is_renewed_while_somebody_else_writes(database: Database, shared: SharedStore) -> None:
    """Invariant 12: a large transaction does not cost the leader its lease."""
    with shared.write() as tx:
        term = tx.acquire_lease("a", "one", SPAN).term
    other = database.open()
    with other.write() as large:
        large.replace_inventory(Inventory(), "large")
        renewed = shared.renew_lease("a", "one", term, 2 * SPAN)
        assert renewed is not None
        assert renewed.expires_at == renewed.now + 2 * SPAN
    with shared.write() as tx:
        lease = tx.get_lease("a")
    assert lease is not None
    assert (lease.holder, lease.term, lease.expires_at) == ("one", term, renewed.expires_at)
    other.close()


@pytest.mark.slow
def test_a_lease_that_is_over_or_of_somebody_else_is_not_renewed(shared: SharedStore) -> None:
    with shared.write() as tx:
        tx.acquire_lease("over", "one", NO_SPAN)
        tx.acquire_lease("other", "one", SPAN)
    assert shared.renew_lease("over", "one", 1, SPAN) is None
    assert shared.renew_lease("other", "two", 1, SPAN) is None
    assert shared.renew_lease("other", "one", 2, SPAN) is None
    assert shared.renew_lease("none", "one", 1, SPAN) is None


@pytest.mark.slow
def test_a_transaction_that_failed_has_taken_nothing(shared: SharedStore) -> None:
    with pytest.raises(ZeroDivisionError):
        take_and_fail(shared)
    with shared.write() as tx:
        assert tx.get_lease("a") is None


def take_and_fail(shared: SharedStore) -> None:
    with shared.write() as tx:
        tx.acquire_lease("a", "one", SPAN)
        raise ZeroDivisionError


@pytest.mark.slow
def test_a_transaction_has_one_time_and_later_ones_have_later_ones(store: SqlStore) -> None:
    with store.write() as tx:
        first = tx.now()
        assert tx.now() == first
    with store.write() as tx:
        later = tx.now()
    assert first is not None
    assert later is not None
    assert first < later


@pytest.mark.slow
def test_what_one_commits_others_hear_of(database: Database, store: SqlStore, shared: SharedStore) -> None:
    assert shared.wait_for_change(0) is None  # it has begun to listen, and may have missed something
    assert shared.wait_for_change(0.05) is None
    other = database.open()
    with other.write() as tx:
        tx.replace_inventory(Inventory(), "mark")
    assert tx.numbers is not None
    assert shared.wait_for_change(10) == tx.numbers[1]
    with store.read() as reader:
        assert reader.get_feed_changes(0).inventory == Inventory()
    with other.write() as tx:
        tx.acquire_lease("a", "one", SPAN)  # type: ignore[attr-defined] # a PostgreSQL database is shared
    assert shared.wait_for_change(0.05) is None
    with database.engine().begin() as connection:
        connection.execute(sa.text("NOTIFY forewarn"))
    assert shared.wait_for_change(0.05) is None, "a replica of an earlier version announces no number"
    other.close()


@pytest.mark.slow
def test_after_the_connection_broke_it_listens_anew(database: Database, shared: SharedStore) -> None:
    shared.wait_for_change(0)
    with database.engine().connect() as connection:
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        assert connection.execute(sa.text(query)).scalars().all() == [True]
    with pytest.raises(StoreUnavailable):
        shared.wait_for_change(10)
    assert shared.wait_for_change(0) is None
    other = database.open()
    with other.write() as tx:
        number = tx.next_sequence()
    assert shared.wait_for_change(10) == number
    other.close()


@pytest.mark.slow
def test_one_that_is_halted_in_a_transaction_does_not_keep_the_others_from_writing(database: Database) -> None:
    halted = database.open(busy_timeout_ms=60_000, halted_ms=1000)
    other = database.open(busy_timeout_ms=60_000)
    with pytest.raises(StoreUnavailable):
        write_while_halted(halted, other)
    with other.write() as tx:
        assert tx.get_inventory_fingerprint() == "other"
    halted.close()
    other.close()


def write_while_halted(halted: SqlStore, other: SqlStore) -> None:
    with halted.write() as tx:
        tx.replace_inventory(Inventory(), "halted")
        done = threading.Event()

        def write() -> None:
            with other.write() as late:
                late.replace_inventory(Inventory(), "other")
            done.set()

        thread = threading.Thread(target=write)
        thread.start()
        thread.join(GUARD_S)
        assert done.is_set()
        time.sleep(0.05)
