"""Hundreds of agents against the real service, under everything that can go wrong at once, and then in calm.

Every event is either prepared before it starts or reported as not, and then prepared for as soon as it is seen; no
approval goes out before its preparation, every preparation is undone once, nobody waits for ever, and a restart forgets
nothing.

Each run follows from its seed, which a failure prints. To replay one:
``FOREWARN_SEED=17 pytest tests/simulation/test_agents.py``.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.agents.checks import Findings, check
from tests.support.agents.history import Fact
from tests.support.agents.region import Region
from tests.support.agents.weather import CALM
from tests.support.warp import Stuck, WarpClock, run_warped

REPLAYED = os.environ.get("FOREWARN_SEED", "")
SEEDS = [int(REPLAYED)] if REPLAYED else [1, 2, 3]
HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Agents log every failure, and there are many of them."""
    logging.disable(logging.CRITICAL)
    yield
    gc.collect()
    logging.disable(logging.NOTSET)


def run(seed: int, count: int, span_s: float, **rates: Any) -> tuple[Region, Findings]:  # noqa: ANN401 - rates of the weather
    async def live() -> Region:
        region = Region(seed, count, **rates)
        await region.run(span_s)
        return region

    try:
        region = run_warped(live())
        findings = check(region)
    except BaseException:
        print(f"seed {seed}; replay with FOREWARN_SEED={seed}")  # noqa: T201 - what a failure shows
        raise
    print(f"seed {seed}; replay with FOREWARN_SEED={seed}")  # noqa: T201 - what a failure shows
    print(f"{len(region.machines)} VMs, {region.ended_s:.0f} s, {region.provider.requests} requests")  # noqa: T201 - what a failure shows
    print("\n".join(f"{name}: {count}" for name, count in sorted((region.faults + findings.figures).items())))  # noqa: T201 - what a failure shows
    return region, findings


@pytest.mark.parametrize("seed", SEEDS)
def test_every_event_is_prepared_or_reported_and_every_preparation_is_undone_once(seed: int) -> None:
    """R49, R50, R75 to R81, R97, R100 to R106."""
    _, findings = run(seed, 60, HOUR_S)
    assert findings.complaints == []
    for seen in (
        "started: prepared",
        "started: reported as not prepared",
        "prepared for after the start",
        "approvals sent",
        "step recover",
    ):
        assert findings.figures[seen], f"{seen} was not seen at all"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [int(REPLAYED)] if REPLAYED else [101])
def test_the_same_holds_for_hundreds_of_agents(seed: int) -> None:
    _, findings = run(seed, 200, HOUR_S, trouble=0.5, events=0.6)
    assert findings.complaints == []


def test_a_run_follows_from_its_seed() -> None:
    def live() -> tuple[dict[str, list[Fact]], list[object]]:
        region, _ = run(7, 12, 900)
        return {name: machine.history for name, machine in region.machines.items()}, list(region.audit_log())

    assert live() == live()


def test_where_nothing_goes_wrong_every_event_is_prepared_in_time() -> None:
    """Who has enough notice is never reported."""

    async def live() -> Region:
        region = Region(5, 12, weather=CALM, trouble=0.0, events=2.0)
        await region.run(HOUR_S / 2)
        return region

    region = run_warped(live())
    findings = check(region)
    assert findings.complaints == []
    assert set(region.faults) <= {"reboot"}
    assert findings.figures["started: prepared"]


def test_at_the_level_debug_each_new_document_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    logging.disable(logging.NOTSET)
    run(5, 1, HOUR_S / 2, weather=CALM, trouble=0.0, events=2.0)
    logged = [record for record in caplog.records if record.msg.startswith("document ")]
    assert len(logged) > 1
    for record in logged:
        document = vars(record)["document"]
        number, events = document["incarnation"], document["events"]
        assert record.getMessage() == f"document {number} has {len(events)} events"


def test_time_jumps_to_the_next_timer_and_clocks_may_be_set() -> None:
    async def live() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        clock = WarpClock(loop)
        began = clock.now()
        await asyncio.gather(*(asyncio.sleep(hours * HOUR_S) for hours in (3, 1, 2)))
        return loop.time(), (clock.now() - began).total_seconds()

    assert run_warped(live()) == (3 * HOUR_S, 3 * HOUR_S)


def test_who_waits_for_nothing_is_found_out() -> None:
    async def live() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck, match="waits for somebody else"):
        run_warped(live())
