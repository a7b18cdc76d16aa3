"""The fleet as real processes, with everything going wrong that can: nothing is lost, and nothing done twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faultrun.run import keep, run
from tests.faultrun.world import Base, base
from tests.support.namespaces import missing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.anyio]

SECONDS = (6, 20, 60)
"""Of the first run, and of further ones if that did too little."""

ENOUGH = {"faults": 3, "commands acknowledged": 3, "carried out": 3, "approvals": 5}
SEED = int(os.environ.get("FOREWARN_SEED", "20300101"))


@pytest.fixture(scope="module")
def shared() -> Iterator[Base]:
    with base() as made:
        yield made


async def check_run(shared: Base, folder: Path, host_count: int, vm_count: int, *, namespaces: bool) -> None:
    """Nothing is violated; a busy machine gets longer, until enough was done for that to mean something."""
    figures: dict[str, int] = {}
    for seconds in SECONDS:
        more = " --namespaces" if namespaces else ""
        words = f"--seed {SEED} --seconds {seconds} --hosts {host_count} --vms {vm_count}{more}"
        print(f"to repeat it: python -m tests.faultrun {words}")  # noqa: T201 - for who looks
        report = await run(shared, SEED, seconds, host_count, vm_count, namespaces=namespaces)
        keep(report, folder)
        assert report.violations == [], folder
        figures = {**report.figures, "faults": sum(report.faults.values())}
        if all(figures[name] > least for name, least in ENOUGH.items()):
            return
    pytest.fail(f"too little was done: {figures}")


async def test_nothing_is_lost_or_done_twice_whatever_fails(shared: Base, tmp_path: Path) -> None:
    """R18 to R20, R42, R49, R61, R75, R83, R84, R85; invariants 3 to 6, 8 and 9."""
    await check_run(shared, tmp_path, 4, 40, namespaces=False)


@pytest.mark.namespaces
@pytest.mark.skipif(missing() is not None, reason=f"network namespaces need {missing()}")
async def test_nothing_is_lost_where_hosts_are_namespaces_and_packets_vanish(shared: Base, tmp_path: Path) -> None:
    """R42, R49, R75, R84, R85."""
    await check_run(shared, tmp_path, 3, 30, namespaces=True)
