"""Small cases of the simulation of cells, calculated by hand."""

from __future__ import annotations

import random

import pytest

from bench.cells import count_cells, merge_pages, roll_out


@pytest.mark.parametrize(("hosts", "expected"), [(1, 1), (5000, 1), (5001, 2), (200_000, 40)])
def test_the_last_cell_may_be_smaller(hosts: int, expected: int) -> None:
    assert count_cells(hosts, 5000) == expected


def test_a_merged_page_takes_as_long_as_the_slowest_cell() -> None:
    rng = random.Random(1)
    assert merge_pages([2.0], 40, 3, rng) == [2.0, 2.0, 2.0]
    one, many = (merge_pages([1.0] * 99 + [9.0], cells, 1000, rng) for cells in (1, 400))
    assert one.count(9.0) < 30
    assert many.count(9.0) > 950


@pytest.mark.parametrize(
    ("at_once", "has_shares", "expected"),
    [
        (1, False, 14.0),
        # 4 and 1 begin, then 1, 1, 1, then 6.
        (2, False, 10.0),
        (6, False, 6.0),
        # Each cell has one: 4 + 1 + 1 against 1 + 1 + 6.
        (2, True, 8.0),
        (6, True, 6.0),
        # At least one host of each cell, so never fewer than there are cells.
        (1, True, 8.0),
    ],
)
def test_a_rollout_ends_with_its_last_host(at_once: int, has_shares: bool, expected: float) -> None:
    durations_s = [[4.0, 1.0, 1.0], [1.0, 1.0, 6.0]]
    assert roll_out(durations_s, at_once, has_shares=has_shares) == expected


def test_cells_without_hosts_take_no_time() -> None:
    assert roll_out([[], []], 2, has_shares=False) == 0.0
