"""Counters of several processes together."""

from __future__ import annotations

from forewarn.clock import VirtualClock
from forewarn.endpoint.fault_registry import FaultRegistry
from forewarn.endpoint.messages import CounterReport
from forewarn.endpoint.traffic import EndpointLimits, Traffic
from forewarn.endpoint.traffic_totals import TrafficTotals
from tests.support.world import NOW

KEY = ("2020-07-01", "GET", 200)


def report(count: int) -> CounterReport:
    return CounterReport(
        number=1,
        fast=[count, 2 * count],
        outcomes=[(*KEY, 3 * count)],
        unknown_callers=4 * count,
        connections_refused=5 * count,
        connections=6 * count,
        over_limit={"connections_max": 7 * count},
    )


def values(traffic: Traffic) -> tuple[object, ...]:
    return (
        traffic.fast_path_counts,
        traffic.outcomes[KEY],
        traffic.unknown_callers,
        traffic.connections_refused,
        traffic.over_limit["connections_max"],
    )


def make() -> tuple[Traffic, TrafficTotals]:
    traffic = Traffic(EndpointLimits(), 2, FaultRegistry(VirtualClock(NOW)))
    return traffic, TrafficTotals(traffic)


def test_the_latest_reports_of_all_processes_are_summed() -> None:
    traffic, totals = make()
    totals.count(0, report(1))
    totals.count(1, report(10))
    totals.count(0, report(2))
    assert values(traffic) == ([12, 24], 36, 48, 60, 84)
    assert totals.connections == 72


def test_what_a_process_has_counted_stays_counted_when_it_ends_except_open_connections() -> None:
    traffic, totals = make()
    totals.count(0, report(1))
    totals.count(1, report(10))
    totals.end(1)
    totals.end(1)
    assert totals.connections == 6
    totals.count(1, report(100))
    assert values(traffic) == ([111, 222], 333, 444, 555, 777)
    assert totals.connections == 606
