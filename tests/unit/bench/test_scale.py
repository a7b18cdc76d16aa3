"""The simulated feed, on cases small enough to be reckoned by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from bench.scale import Costs, Loss, announce, approve_all, come_back, pause_s, tell_all

COSTS = Costs(
    join_s=0.01,
    tell_s=0.001,
    alive_s=0.0,
    commit_s=0.05,
    approval_s=0.02,
    follow_s=0.004,
    host_s=0.003,
    patience_s=15.0,
)


class Evenly(random.Random):
    """Luck that never varies: the middle of each span, and nothing is shuffled."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2

    def shuffle(self, x: object) -> None:
        pass


def test_one_after_the_other_is_told() -> None:
    change = tell_all(COSTS, hosts=3, replicas=1, commit_s=0.05)
    assert change.committed_s == 0.05
    assert change.seen_s == pytest.approx([0.054, 0.055, 0.056])


def test_another_replica_hears_of_it_later_and_tells_its_hosts_at_the_same_time() -> None:
    change = tell_all(COSTS, hosts=4, replicas=2, commit_s=0.05)
    assert change.seen_s == pytest.approx([0.054, 0.055, 0.058, 0.059])


def test_a_maintenance_for_each_host_waits_for_the_one_writer() -> None:
    change = announce(COSTS, hosts=10, replicas=1)
    assert change.committed_s == pytest.approx(0.5)
    assert change.seen_s == pytest.approx([0.05 * number + 0.004 for number in range(1, 11)])


def test_approvals_that_come_faster_than_they_are_written_down_wait() -> None:
    done_s = approve_all(COSTS, vms=100, think_s=1.0, rng=random.Random(1))
    assert done_s[-1] == pytest.approx(2.0, abs=0.05)
    slow_s = approve_all(COSTS, vms=100, think_s=100.0, rng=random.Random(1))
    assert slow_s[-1] <= 100.1


def test_the_hosts_of_a_replica_that_dies_are_served_one_after_the_other_by_the_others() -> None:
    found = come_back(COSTS, Loss(hosts=20, replicas=2, dead=1), Evenly())
    # All pause for 0.3 s, and then find the other one.
    assert found.back_s == pytest.approx([0.3 + 0.01 * number for number in range(1, 11)])
    assert found.vain == 0


def test_who_is_not_served_in_time_gives_up_and_asks_again() -> None:
    costs = replace(COSTS, join_s=1.0, patience_s=3.5)
    found = come_back(costs, Loss(hosts=4, replicas=1, dead=1), Evenly())
    # Three are served within their patience. The fourth leaves at 3.8 s and pauses for 0.6 s; it was served in vain.
    assert found.back_s == pytest.approx([1.3, 2.3, 3.3, 5.4])
    assert found.vain == 1


def test_more_hosts_than_are_served_in_their_patience_and_pauses_never_come_back() -> None:
    found = come_back(replace(COSTS, join_s=0.1), Loss(hosts=1000, replicas=1, dead=1, limit_s=300.0), random.Random(1))
    assert len(found.back_s) < 200
    assert found.vain > 1000


def test_hosts_that_a_replica_keeps_make_it_slower_for_those_who_come() -> None:
    costs = replace(COSTS, alive_s=0.05)  # ten watches, a line each in 5 s: a tenth of its core
    found = come_back(costs, Loss(hosts=20, replicas=2, dead=1), Evenly())
    assert found.back_s[-1] == pytest.approx(0.3 + 10 * 0.01 / 0.9)


def test_pauses_grow_up_to_ten_seconds() -> None:
    assert [pause_s(attempt, Evenly()) for attempt in (1, 2, 3, 5, 6, 20)] == pytest.approx(
        [0.3, 0.6, 1.2, 4.8, 7.5, 7.5]
    )
