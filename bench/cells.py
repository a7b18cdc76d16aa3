"""Simulation of a fleet in cells: what a page of all cells takes, and what a rollout loses to divided budgets.

A cell is a deployment of its own: database, replicas and hosts. So whatever happens within one takes as long as in a
fleet of that size, and only what crosses cells is simulated here. All durations are parameters.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence

__all__ = ["count_cells", "merge_pages", "roll_out"]


def count_cells(hosts: int, cell_hosts: int) -> int:
    """Return the number of cells of at most `cell_hosts` hosts each."""
    return math.ceil(hosts / cell_hosts)


def merge_pages(answer_ms: Sequence[float], cells: int, count: int, rng: random.Random) -> list[float]:
    """Return how long pages take that are merged from one page of each cell, sorted, in milliseconds.

    A merged page is complete when the slowest cell has answered.

    Args:
        answer_ms: Measured durations of one cell's page.
        cells: Number of cells, all asked at once.
        count: Number of pages.
        rng: Chooses the duration of each answer.
    """
    return sorted(max(rng.choices(answer_ms, k=cells)) for _ in range(count))


def roll_out(durations_s: Sequence[Sequence[float]], at_once: int, *, has_shares: bool) -> float:
    """Return how long a rollout over all cells takes, in seconds.

    Args:
        durations_s: For each cell, the durations of its hosts' maintenances, in order.
        at_once: Maximum number of hosts under maintenance at the same time, in all cells together.
        has_shares: True if each cell has a fixed share of it, in proportion to its hosts and at least one; False if all
            hosts share one budget.
    """
    if not has_shares:
        return _work_off([each for cell in durations_s for each in cell], at_once)
    hosts = sum(map(len, durations_s))
    return max(_work_off(cell, max(1, at_once * len(cell) // hosts)) for cell in durations_s)


def _work_off(durations_s: Sequence[float], at_once: int) -> float:
    """Return when the last of these is over, if so many are under way at the same time."""
    free_s = [0.0] * min(at_once, len(durations_s))
    for duration_s in durations_s:
        heapq.heappush(free_s, heapq.heappop(free_s) + duration_s)
    return max(free_s, default=0.0)
