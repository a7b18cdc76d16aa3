from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from forewarn.clock import VirtualClock
from forewarn.core.fault import FAULTS, FaultPoint
from forewarn.endpoint.fault_registry import FaultRegistry
from forewarn.errors import InvalidRequest, LimitExceeded, NotFound


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def faults(clock: VirtualClock) -> FaultRegistry:
    return FaultRegistry(clock, faults_max=3)


def struck(faults: FaultRegistry, vm: str = "a", method: str = "GET") -> str:
    fault = faults.take_matching_fault(vm, method, FaultPoint.STATUS, FaultPoint.DOCUMENT)
    return "" if fault is None else fault.kind.name


def test_of_several_the_oldest_strikes_until_it_is_used_up(faults: FaultRegistry) -> None:
    """R66."""
    faults.inject("500", count=2)
    faults.inject("stale")
    assert [struck(faults) for _ in range(4)] == ["500", "500", "stale", "stale"]
    [left] = faults.all
    assert (left.kind.name, left.struck) == ("stale", 2)


def test_a_fault_is_for_some_vms_and_some_requests(faults: FaultRegistry) -> None:
    faults.inject("503", vms=["a", "a", "b"], method="POST")
    assert [struck(faults, vm, method) for vm in "abc" for method in ("GET", "POST")] == ["", "503", "", "503", "", ""]
    assert faults.all[0].vms == ("a", "b")


def test_a_fault_strikes_only_where_its_kind_does(faults: FaultRegistry) -> None:
    faults.inject("refused")
    assert struck(faults) == ""
    assert faults.take_matching_fault("", "", FaultPoint.CONNECTION) is not None


def test_a_fault_ends_when_its_time_is_over(faults: FaultRegistry, clock: VirtualClock) -> None:
    faults.inject("500", lasts=timedelta(seconds=30))
    clock.advance(timedelta(seconds=29))
    assert struck(faults) == "500"
    clock.advance(timedelta(seconds=1))
    assert struck(faults) == ""
    assert faults.all == ()
    assert not faults.in_force


def test_a_rate_holds_over_many_and_is_the_same_in_every_run(clock: VirtualClock) -> None:
    def run() -> list[str]:
        faults = FaultRegistry(clock)
        faults.inject("500", rate=0.25)
        return [struck(faults) for _ in range(1000)]

    assert run() == run()
    assert 180 < Counter(run())["500"] < 320


def test_what_is_cleared_is_gone(faults: FaultRegistry) -> None:
    first, second = faults.inject("500"), faults.inject("503")
    assert faults.clear(first.id) == 1
    with pytest.raises(NotFound, match="fault 1 is not in force"):
        faults.clear(first.id)
    assert struck(faults) == "503"
    assert (second.id, faults.clear(), faults.clear()) == (2, 1, 0)


def test_there_is_a_limit(faults: FaultRegistry, clock: VirtualClock) -> None:
    for _ in range(3):
        faults.inject("500", lasts=timedelta(minutes=1))
    with pytest.raises(LimitExceeded, match="faults_max"):
        faults.inject("500")
    clock.advance(timedelta(minutes=1))
    faults.inject("500")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"kind": "sloth"}, "unknown fault 'sloth'"),
        ({"kind": "500", "method": "PUT"}, "expected GET or POST, or empty for both"),
        ({"kind": "500", "count": 0}, "expected at least 1"),
        ({"kind": "500", "rate": 0.0}, "expected more than 0 and at most 1"),
        ({"kind": "500", "rate": 1.1}, "expected more than 0 and at most 1"),
        ({"kind": "500", "rate": float("nan")}, "expected more than 0 and at most 1"),
        ({"kind": "500", "lasts": timedelta(0)}, "duration is 0 s: expected more than 0 s"),
        ({"kind": "500", "delay": timedelta(1)}, "fault 500 has no delay"),
        ({"kind": "late", "delay": timedelta(-1)}, "expected at least 0 s"),
    ],
)
def test_what_makes_no_sense_is_refused(faults: FaultRegistry, how: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        faults.inject(**how)
    assert faults.all == ()


def test_a_fault_says_what_it_is(faults: FaultRegistry) -> None:
    told = faults.inject(
        "late", vms=["a"], method="GET", count=3, rate=0.5, lasts=timedelta(hours=1), delay=timedelta(minutes=1)
    )
    assert told.describe() == "late for a on GET 3 times in 50% of the requests until 01:00:00 for 1m each"


@pytest.mark.parametrize("kind", FAULTS.values(), ids=lambda kind: kind.name)
def test_every_kind_says_what_a_client_sees_and_what_a_good_one_does(kind: Any) -> None:  # noqa: ANN401 - a row
    assert kind.what.endswith(".")
    assert kind.advice.endswith(".")
    assert (kind.delay is not None) == (kind.name in {"slow-headers", "slow-body", "time-out", "late", "short-notice"})
