"""A random world under faults: first nothing may ever be wrong, then everything must come to its end.

Each run follows from its seed, which a failure prints. To replay one:
``FOREWARN_SEED=17 pytest tests/simulation/test_faults.py``.
"""

from __future__ import annotations

import os

import pytest

from tests.support.fleet import Fleet

pytestmark = pytest.mark.anyio

REPLAYED = os.environ.get("FOREWARN_SEED", "")
SEEDS = [int(REPLAYED)] if REPLAYED else [1, 2, 3]
STEPS = 100


async def run(seed: int, steps: int) -> Fleet:
    fleet = Fleet(seed)
    try:
        await fleet.begin()
        for _ in range(steps):
            await fleet.step(with_faults=True)
        await fleet.settle()
    except BaseException:
        print(f"seed {seed}, after {len(fleet.steps)} steps; replay with FOREWARN_SEED={seed}")  # noqa: T201
        print("\n".join(fleet.steps[-30:]))  # noqa: T201
        raise
    return fleet


@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_is_ever_wrong_under_faults_and_everything_ends_without_them(seed: int) -> None:
    """R42, R46, R49, R55, R75 to R86; invariants 3 to 6 and 8 of the design."""
    fleet = await run(seed, STEPS)
    assert fleet.audit_log, "something happened at all"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1000, 1005))
async def test_nothing_is_ever_wrong_in_long_runs(seed: int) -> None:
    fleet = await run(seed, 300)
    assert fleet.audit_log, "something happened at all"


async def test_a_run_follows_from_its_seed() -> None:
    first, second = await run(5, 40), await run(5, 40)
    assert first.steps == second.steps
    assert first.audit_log == second.audit_log
    assert first.shown == second.shown
