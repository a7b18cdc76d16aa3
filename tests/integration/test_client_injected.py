"""Both clients, at the pace that they have by default, against everything that can be injected."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import get_args

import pytest

from forewarn.client import ChangeKind, Client, Pace
from forewarn.core.fault import FAULTS, FaultPoint
from forewarn.testing import FaultName, ScheduledEvents, background_loop
from tests.support.drivers import DRIVERS, Drives
from tests.support.service import eventually
from tests.support.spans import GUARD_S

PACES = {"held": Pace(), "polled": Pace(wait_s=0)}
OF_REQUESTS = {kind.name for kind in FAULTS.values() if kind.place not in {FaultPoint.ONCE, FaultPoint.NOTICE}}


def told_and_approved(drives: Drives, url: str, pace: Pace) -> list[ChangeKind]:
    """What a client tells until an event has begun; it approves what it is told of, as often as it is told."""
    kinds = []
    with drives(url, pace, connect_timeout_s=5) as client:
        for change in client.watch():
            kinds.append(change.kind)
            client.approve(change.event)
            if change.kind is ChangeKind.STARTED:
                break
    return kinds


def is_held(events: ScheduledEvents) -> bool:
    """Whether a request of the VM is held."""
    channel = events._lab.backend.feed.channel(events._lab.backend.identity.get_audience_key(events._lab.default_vm))
    return background_loop.run_function(lambda: len(channel._waiters or ())) > 0


def comes_through(drives: Drives, pace: Pace, kind: FaultName) -> str:
    """Have that fault strike a client that waits, then announce an event; hands back what there is to complain of."""
    with ScheduledEvents() as events, ThreadPoolExecutor(1) as threads:
        watching = threads.submit(told_and_approved, drives, events.url, pace)
        assert eventually(lambda: bool(events.requests))
        events.inject(kind, count=1)
        if kind in OF_REQUESTS:
            assert eventually(lambda: any(asked.fault == kind for asked in events.requests))
        event = events.schedule("Freeze")
        told = watching.result(2 * GUARD_S)
        wanted = [ChangeKind.STARTED] if kind == "no-notice" else [ChangeKind.PREPARE, ChangeKind.STARTED]
        is_seen = event.is_approved or kind == "no-notice"
        return "" if told == wanted and is_seen else f"{kind}: told {told}, {event}"


@pytest.mark.slow
@pytest.mark.parametrize("pace", PACES.values(), ids=PACES)
@pytest.mark.parametrize("drives", DRIVERS.values(), ids=DRIVERS)
def test_a_watch_at_the_default_pace_comes_through_every_fault(drives: Drives, pace: Pace) -> None:
    """R66, R100, R104, X1: a fault reaches a client whose request is held, and it goes on as if nothing had been."""
    with ThreadPoolExecutor(len(FAULTS)) as threads:
        found = list(threads.map(partial(comes_through, drives, pace), get_args(FaultName)))
    assert [fault for fault in found if fault] == []


def test_a_fault_is_met_by_a_client_that_is_held() -> None:
    """R66, X1: not only when its wait is over, which is long after this test has given up."""
    pace = replace(Pace(), wait_s=300, refresh_s=10 * GUARD_S)
    with ScheduledEvents() as events, Client(events.url, pace=pace) as client, ThreadPoolExecutor(1) as threads:
        told = client.follow()
        next(told)
        waiting = threads.submit(lambda: [next(told), next(told)])
        assert eventually(lambda: is_held(events))
        events.inject("503", count=1)
        same, missed = waiting.result(GUARD_S)
        assert [asked.status for asked in events.requests] == [200, 304, 503]
    assert (same.is_changed, missed.failures) == (False, 1)  # type: ignore[union-attr] # Seen, and Missed
