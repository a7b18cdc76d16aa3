"""The lease by which one replica carries out what is due, on a real PostgreSQL and with clocks that are off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import pytest

from forewarn.clock import RealClock
from forewarn.engine.leader_election import LeasedLeadership
from forewarn.engine.transaction import run_inline
from forewarn.errors import ClockOff, LeaseLost
from forewarn.store import SqlStore
from tests.support.databases import Database, PostgreSql, postgresql
from tests.support.spans import GUARD_S

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SPAN = timedelta(seconds=0.8)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSql]:
    with postgresql() as running:
        yield running


@pytest.fixture
def database(server: PostgreSql) -> Iterator[Database]:
    with server.database() as made:
        yield made


@pytest.fixture
def store(database: Database) -> Iterator[SqlStore]:
    store = database.open(busy_timeout_ms=60_000)
    yield store
    store.close()


class OffClock(RealClock):
    """A clock that is so far ahead."""

    def __init__(self, ahead: timedelta) -> None:
        super().__init__()
        self.ahead = ahead

    def now(self) -> datetime:
        return super().now() + self.ahead


def leased(store: SqlStore, name: str, ahead: timedelta = timedelta(0), span: timedelta = SPAN) -> LeasedLeadership:
    assert store.shared is not None
    return LeasedLeadership(store.shared, OffClock(ahead), name, run_inline, span)


@asynccontextmanager
async def running(*leaderships: LeasedLeadership) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each.run()) for each in leaderships]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(GUARD_S):
        while not is_so():  # noqa: ASYNC110 - nobody tells a test
            await asyncio.sleep(0.01)


async def until_held(leadership: LeasedLeadership) -> None:
    await until(lambda: leadership.is_held)


async def test_one_holds_it_as_long_as_it_renews_it(store: SqlStore) -> None:
    one, two = leased(store, "one"), leased(store, "two")
    changes: list[str] = []
    one.on_change = lambda: changes.append("one")
    two.on_change = lambda: changes.append("two")
    for _ in range(5):  # a machine that halts for longer than the span ends it
        async with running(one):
            await until_held(one)
            async with running(two):
                changes.clear()
                await asyncio.sleep(3 * SPAN.total_seconds())
                if not changes:
                    assert (one.is_held, two.is_held) == (True, False)
                    # Both know who leads.
                    assert [each.lease.holder for each in (one, two) if each.lease is not None] == ["one", "one"]
                    return
        await two.release()
    pytest.fail("it was never held for three spans")


async def test_the_other_takes_over_at_once_when_it_is_given_back(store: SqlStore) -> None:
    """It would otherwise last for an hour."""
    one, two = (leased(store, name, span=timedelta(hours=1)) for name in ("one", "two"))
    async with running(one):
        await until_held(one)
        with store.write() as tx:
            one.ensure_leader_in(tx)
            with pytest.raises(LeaseLost, match="another replica"):
                two.ensure_leader_in(tx)
    await one.release()
    one.check_clock()
    with pytest.raises(LeaseLost, match="the lease has expired"):
        one.ensure_leader()
    async with running(two):
        await until_held(two)


async def test_one_that_renews_it_no_more_knows_by_itself(store: SqlStore) -> None:
    one = leased(store, "one")
    async with running(one):
        await until_held(one)
    await asyncio.sleep(SPAN.total_seconds() + 0.05)
    assert not one.is_held
    with store.write() as tx:
        one.ensure_leader_in(tx)  # nobody has taken it: what it decides now still comes before whatever another decides
    two = leased(store, "two")
    async with running(two):
        await until_held(two)
    with store.write() as tx, pytest.raises(LeaseLost):
        one.ensure_leader_in(tx)


@pytest.mark.parametrize("ahead_s", [-30.0, 30.0])
async def test_one_whose_clock_is_off_says_so_and_does_not_hold_it(store: SqlStore, ahead_s: float) -> None:
    off, right = leased(store, "off", timedelta(seconds=ahead_s)), leased(store, "right", timedelta(seconds=0.5))
    async with running(off):
        await until(lambda: off.skew != timedelta(0))
        assert not off.is_held
        with pytest.raises(ClockOff, match=r"\d\d\.\d s (ahead of|behind) the database's: this replica cannot lead"):
            off.check_clock()
        async with running(right):
            await until_held(right)
            right.check_clock()
            # What the database's answer may have been under way is taken off, so it is never too much.
            await until(lambda: timedelta(seconds=0.3) < right.skew <= timedelta(seconds=0.5))
