"""A replica whose clock is found to be off while it leads: it leads no more from that moment on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, cast

import pytest

from forewarn.clock import RealClock
from forewarn.engine.leader_election import LeasedLeadership
from forewarn.engine.transaction import run_inline
from forewarn.errors import ClockOff, LeaseLost
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
