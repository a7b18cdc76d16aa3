"""Part 7: the testing kit: the time until a fixture answers, for a simulated day, and for each shipped scenario.

Everything runs in this process, as in a test session. The first fixture is not counted, because it also imports the
service.
"""

from __future__ import annotations

import asyncio
import http.client
import random
import time
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from bench.result import Effort, Result, Row, percentile

__all__ = ["measure"]

_FIRST_MS = 20.0
_DAY_S = 1.0
_SCENARIOS_S = 10.0
_PATH = "/metadata/scheduledevents?api-version=2020-07-01"
_VMS = 20
_EVENTS = 1000
_DAY = timedelta(days=1)


def measure(effort: Effort, folder: Path, log: Path) -> Result:  # noqa: ARG001 - all parts have the same arguments
    """Measure fixtures, a simulated day, and the scenarios."""
    result = Result(title="The testing kit, in one process on one core")
    delays_ms, fixtures_s = _fixtures(effort.fixtures)
    days_s = [_day(effort.events_of_day) for _ in range(3)]
    plays_s = {name: asyncio.run(_play(name)) for name in _names()}
    result.raw["kit"] = {"to_first_get_ms": delays_ms, "day_s": days_s, "plays_s": plays_s}
    result.rows += [
        Row(
            what="fixture set-up to first GET, p50",
            value=percentile(delays_ms, 50),
            unit="ms",
            target=_FIRST_MS,
            note=f"of {len(delays_ms)}",
        ),
        Row(what="fixture set-up to first GET, p99", value=percentile(delays_ms, 99), unit="ms"),
        Row(what="fixtures with one event and one GET each", value=len(delays_ms) / fixtures_s, unit="a second"),
        Row(
            what=f"a simulated day with {effort.events_of_day:,} events on {_VMS} VMs",
            value=min(days_s),
            unit="s",
            target=_DAY_S if effort.events_of_day == _EVENTS else None,
            note="best of 3",
        ),
        Row(
            what=f"all {len(plays_s)} scenarios on virtual time",
            value=sum(plays_s.values()),
            unit="s",
            target=_SCENARIOS_S,
        ),
    ]
    return result


def _fixtures(count: int) -> tuple[list[float], float]:
    """Return milliseconds from set-up to first answer for each fixture but the first, and the total in seconds."""
    from forewarn.testing import ScheduledEvents  # noqa: PLC0415 - only this part needs it

    delays_ms = []
    began_s = 0.0
    for number in range(count + 1):
        if number == 1:
            began_s = time.perf_counter()
        set_up_s = time.perf_counter()
        with ScheduledEvents() as events:
            address = urlsplit(events.url)
            connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=10)
            connection.request("GET", _PATH, headers={"Metadata": "true"})
            connection.getresponse().read()
            if number:
                delays_ms.append((time.perf_counter() - set_up_s) * 1000)
            events.schedule("Freeze")
            connection.close()
    return delays_ms, time.perf_counter() - began_s


def _day(count: int) -> float:
    """Return the seconds for a simulated day with `count` events at random times, each from start to end."""
    from forewarn.testing.lab import Lab  # noqa: PLC0415 - as above
    from forewarn.testing.values import build_request, parse_any_inventory  # noqa: PLC0415 - as above

    rng = random.Random(7)
    names = [f"vm-{number}" for number in range(_VMS)]
    spans = sorted(rng.uniform(0, _DAY.total_seconds()) for _ in range(count))

    async def live() -> float:
        async with Lab(parse_any_inventory(names)).running() as lab:
            began_s = time.perf_counter()
            start = lab.clock.now()
            for number, at_s in enumerate(spans):
                moment = start + timedelta(seconds=at_s)
                if moment > lab.clock.now():
                    await lab.advance(moment - lab.clock.now())
                await lab.carry_out(build_request("Freeze", vms=[names[number % _VMS]]))
            await lab.advance(max(start + _DAY - lab.clock.now(), timedelta(hours=1)))
            return time.perf_counter() - began_s

    return asyncio.run(live())


def _names() -> list[str]:
    from forewarn.testing.scenario.scenario_loader import shipped_scenarios  # noqa: PLC0415 - as above

    return shipped_scenarios()


async def _play(name: str) -> float:
    """Return the seconds for one scenario, including reading its file."""
    from forewarn.testing.scenario.scenario_loader import load_scenario  # noqa: PLC0415 - as above
    from forewarn.testing.trial.player import ScenarioPlayer, create_lab  # noqa: PLC0415 - as above

    began_s = time.perf_counter()
    scenario = load_scenario(name)
    async with create_lab(scenario).running() as lab:
        await ScenarioPlayer(scenario, lab).play()
    return time.perf_counter() - began_s
