"""Which process accepts the connections of one that does not answer."""

from __future__ import annotations

from itertools import chain, combinations

from forewarn.endpoint.socket_assignment import assign_sockets


def test_with_all_at_work_none_accepts_for_another() -> None:
    assert assign_sockets(3, {0, 1, 2}) == {0: (), 1: (), 2: ()}


def test_with_none_at_work_nothing_is_assigned() -> None:
    assert assign_sockets(3, set()) == {}


def test_every_absent_process_has_exactly_one_in_its_place_and_the_work_is_spread() -> None:
    for working in chain.from_iterable(combinations(range(6), size) for size in range(1, 7)):
        assigned = assign_sockets(6, set(working))
        assert set(assigned) == set(working)
        taken = sorted(chain.from_iterable(assigned.values()))
        assert taken == [number for number in range(6) if number not in working]
        sizes = [len(others) for others in assigned.values()]
        assert max(sizes) - min(sizes) <= 1
