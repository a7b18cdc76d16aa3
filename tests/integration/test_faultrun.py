"""The fleet as real processes, with everything going wrong that can: nothing is lost, and nothing done twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faultrun.run import Report, keep, run
from tests.faultrun.world import Base, base
from tests.support.namespaces import missing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.anyio]

SECONDS = 6
SEED = int(os.environ.get("FOREWARN_SEED", "20300101"))


@pytest.fixture(scope="module")
def shared() -> Iterator[Base]:
    with base() as made:
        yield made


async def ran(shared: Base, folder: Path, host_count: int, vm_count: int, *, namespaces: bool) -> Report:
    more = " --namespaces" if namespaces else ""
    words = f"--seed {SEED} --seconds {SECONDS} --hosts {host_count} --vms {vm_count}{more}"
    print(f"to repeat it: python -m tests.faultrun {words}")  # noqa: T201 - for who looks
    report = await run(shared, SEED, SECONDS, host_count, vm_count, namespaces=namespaces)
    keep(report, folder)
    return report


def assert_sound(report: Report, folder: Path) -> None:
    """Nothing was violated, and enough was done for that to mean something."""
    assert report.violations == [], folder
    assert sum(report.faults.values()) > 3, "something went wrong"
    assert report.figures["commands acknowledged"] > 3, "operators were heard"
    assert report.figures["carried out"] > 3, "the actuator acted"
    assert report.figures["approvals"] > 5, "VMs approved"


async def test_nothing_is_lost_or_done_twice_whatever_fails(shared: Base, tmp_path: Path) -> None:
    """R18 to R20, R42, R49, R61, R75, R83, R84, R85; invariants 3 to 6, 8 and 9."""
    assert_sound(await ran(shared, tmp_path, 4, 40, namespaces=False), tmp_path)


@pytest.mark.namespaces
@pytest.mark.skipif(missing() is not None, reason=f"network namespaces need {missing()}")
async def test_nothing_is_lost_where_hosts_are_namespaces_and_packets_vanish(shared: Base, tmp_path: Path) -> None:
    """R42, R49, R75, R84, R85."""
    assert_sound(await ran(shared, tmp_path, 3, 30, namespaces=True), tmp_path)
