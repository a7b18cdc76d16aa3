"""The lease of a replica whose clock is found to be off, or that was halted for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from forewarn.clock import RealClock
from forewarn.engine import leader_election
from forewarn.engine.leader_election import LeasedLeadership
from forewarn.engine.transaction import run_inline
from forewarn.errors import ClockOff, LeaseLost, StoreUnavailable
from forewarn.store.contract import SharedStore
from forewarn.store.lease import Lease

pytestmark = pytest.mark.anyio

SPAN = timedelta(seconds=0.2)


class Stepped(RealClock):
    """A clock that somebody sets while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.ahead


class Free:
    """A database, and its transactions, that gives its lease to whoever asks; it tells the right time."""

    def __init__(self) -> None:
        self.has_it_back = asyncio.Event()

    @contextmanager
    def write(self) -> Iterator[Any]:
        yield self

    def now(self) -> datetime:
        return RealClock().now()

    def acquire_lease(self, _name: str, holder: str, span: timedelta) -> Lease:
        return Lease(holder=holder, term=1, expires_at=self.now() + span, now=self.now())

    def renew_lease(self, name: str, holder: str, _term: int, span: timedelta) -> Lease:
        return self.acquire_lease(name, holder, span)

    def release_lease(self, _name: str, _holder: str) -> None:
        self.has_it_back.set()


async def test_one_that_finds_its_clock_off_leads_no_more_from_then_on() -> None:
    """Invariant 4: it says so, and it does not schedule; not one after the other."""
    store, clock = Free(), Stepped()
    leased = LeasedLeadership(cast("SharedStore", store), clock, "one", run_inline, SPAN)
    await leased._renew_or_take_lease()
    assert leased.is_held
    clock.ahead = timedelta(seconds=5)
    await leased._renew_or_take_lease()
    with pytest.raises(ClockOff):
        leased.check_clock()
    with pytest.raises(LeaseLost):
        leased.ensure_leader()
    assert not store.has_it_back.is_set()
    await leased._renew_or_take_lease()
    assert store.has_it_back.is_set()
    assert not leased.is_held


async def test_one_that_cannot_give_its_lease_back_leads_no_more_and_says_so() -> None:
    class Away(Free):
        def release_lease(self, _name: str, _holder: str) -> None:
            raise StoreUnavailable("the database is away")

    leased = LeasedLeadership(cast("SharedStore", Away()), Stepped(), "one", run_inline, SPAN)
    await leased._renew_or_take_lease()
    with capture_logs() as lines:
        await leased.release()
    assert not leased.is_held
    said = {"event": "cannot release the lease; it will expire", "error": "the database is away"}
    assert lines == [said | {"log_level": "warning"}]


@pytest.mark.parametrize("late_s", [0.0, 0.1])
async def test_one_that_was_halted_beyond_the_end_of_its_lease_says_that_it_leads_again(
    monkeypatch: pytest.MonkeyPatch, late_s: float
) -> None:
    """Meanwhile the scheduler may have seen that it does not lead, and wait until it does (R76).

    Halted between two renewals, or during one, whose answer then came late.
    """
    passed_s, delay_s = 100.0, 0.0
    monkeypatch.setattr(leader_election, "uptime_s", lambda: passed_s)

    async def run_slowly(work: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the work returns
        nonlocal passed_s
        answer = work()
        passed_s += delay_s
        return answer

    leased = LeasedLeadership(cast("SharedStore", Free()), Stepped(), "one", run_slowly, SPAN)
    held: list[bool] = []
    leased.on_change = lambda: held.append(leased.is_held)

    async def renew_after(span_s: float) -> None:
        nonlocal passed_s
        passed_s += span_s
        await leased._renew_or_take_lease()
        leased._note_role()

    await renew_after(0.0)
    await renew_after(0.05)
    assert held == [True], "it led all the time"
    delay_s = late_s
    await renew_after(SPAN.total_seconds() - late_s + 0.05)
    assert held == [True, True]
