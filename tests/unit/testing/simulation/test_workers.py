"""Calls in forked workers: in order, few at a time, with any function."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forewarn.testing.simulation.workers import run_in_worker, run_in_workers


def test_results_come_in_order_from_other_processes() -> None:
    factor = 3
    results = list(run_in_workers(lambda n: (n * factor, os.getpid()), range(120), 2))
    assert [result for result, _ in results] == [n * factor for n in range(120)]
    assert os.getpid() not in {pid for _, pid in results}


def test_a_caller_that_stops_leaves_the_rest_undone(tmp_path: Path) -> None:
    def touch(n: int) -> int:
        (tmp_path / str(n)).touch()
        return n

    results = run_in_workers(touch, range(100), 2)
    assert next(results) == 0
    results.close()
    assert len(list(tmp_path.iterdir())) < 20


def test_an_error_of_the_function_reaches_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        run_in_worker(lambda n: 1 // n, 0)
