"""The size of a simulated cluster has limits, and its faults are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forewarn.testing.simulation import Size, simulate
from forewarn.testing.simulation.run import run_seed


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"vms": 0}, "vms is 0, expected 1 to 200"),
        ({"hosts": 51}, "hosts is 51, expected 1 to 50"),
        ({"span_s": 0.5}, "span_s is 0.5, expected 1 to 86400"),
        (
            {"kinds": ("kill-agent", "kill-nobody")},
            "unknown kinds of faults: kill-nobody; expected some of kill-replica,",
        ),
    ],
)
def test_what_is_out_of_range_is_refused(numbers: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Size(**numbers)


def test_there_must_be_a_seed_and_a_process() -> None:
    with pytest.raises(ValueError, match="at least one seed"):
        simulate(0)
    with pytest.raises(ValueError, match="jobs is -1"):
        simulate(1, jobs=-1)


def test_a_run_that_raises_an_error_names_the_faults_that_it_had(tmp_path: Path) -> None:
    run = run_seed(2, Size(), tmp_path)  # there is no operator's token
    assert run.broken == {"the_run_ends"}
    assert len(run.kinds) >= 1
    assert run_seed(2, Size(kinds=()), tmp_path).kinds == ()
