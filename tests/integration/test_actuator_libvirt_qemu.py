"""The actuator `libvirt` on real machines: QEMU, two daemons, live migration; daemons and services that die."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from forewarn.actuators import Progress
from forewarn.actuators.libvirt import Destination, Libvirt, LibvirtTimings
from forewarn.actuators.libvirt_connection import load_libvirt
from forewarn.actuators.libvirt_events import DomainEvent, follow_domains
from forewarn.clock import RealClock
from forewarn.core.model import EventType, Maintenance
from forewarn.errors import ActuatorError
from tests.support.actuated import started, until
from tests.support.documents import ROOT
from tests.support.hypervisor import NEEDS_LIBVIRT
from tests.support.qemu import Daemon, daemon, guest_xml, missing
from tests.support.spans import GUARD_S

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    NEEDS_LIBVIRT,
    pytest.mark.skipif(missing() is not None, reason=f"real machines need {missing()}"),
]

CLOCK = RealClock()
TERMS = LibvirtTimings(
    freeze=timedelta(milliseconds=500), shutdown_timeout=timedelta(seconds=1), check_every=timedelta(milliseconds=100)
)
LOCAL = "tcp://127.0.0.1"


@pytest.fixture
def home() -> Iterator[Daemon]:
    with daemon() as made:
        connect = load_libvirt().open(made.uri)
        connect.defineXML(guest_xml("web-0")).create()
        connect.close()
        yield made


@pytest.fixture
def away() -> Iterator[Daemon]:
    with daemon() as made:
        yield made


@asynccontextmanager
async def actuator(home: Daemon, away: Daemon | None = None, **options: Any) -> AsyncIterator[Libvirt]:  # noqa: ANN401 - options of `Libvirt`
    destinations = {} if away is None else {"*": Destination(away.uri, LOCAL)}
    made = Libvirt(home.uri, destinations=destinations, timings=TERMS, **options)
    try:
        yield made
    finally:
        await made.close()


async def carried_out(libvirt: Libvirt, maintenance: Maintenance) -> Progress:
    async with asyncio.timeout(GUARD_S):
        while True:
            now = CLOCK.now()
            progress = await libvirt.observe(maintenance, now) or await libvirt.execute(maintenance, now)
            if progress.is_complete:
                return progress
            if progress.is_impacted and maintenance.impacted_at is None:
                maintenance = replace(maintenance, impacted_at=now)
            assert progress.check_at is not None
            await asyncio.sleep(max((progress.check_at - CLOCK.now()).total_seconds(), 0))


def domains(where: Daemon) -> dict[str, tuple[int, int]]:
    """State and number of what is there."""
    connect = load_libvirt().open(where.uri)
    try:
        return {domain.name(): (domain.state()[0], domain.ID()) for domain in connect.listAllDomains()}
    finally:
        connect.close()


RUNNING, OFF = 1, 5


async def test_a_machine_is_suspended_started_anew_and_stopped(home: Daemon) -> None:
    async with actuator(home) as libvirt:
        await libvirt.check()
        done = await carried_out(libvirt, started("web-0", id="freeze"))
        assert done.impact_s is not None
        assert done.impact_s >= 0.5
        assert domains(home) == {"web-0": (RUNNING, 1)}
        done = await carried_out(libvirt, started("web-0", id="reboot", type=EventType.REBOOT))
        assert done.impact_s is not None
        assert done.impact_s > 1  # its firmware does not shut down when it is asked
        assert domains(home) == {"web-0": (RUNNING, 2)}
        await carried_out(libvirt, started("web-0", id="end", type=EventType.TERMINATE))
        assert domains(home) == {"web-0": (OFF, -1)}


async def test_a_machine_is_migrated_while_it_runs_and_its_pause_is_measured(home: Daemon, away: Daemon) -> None:
    maintenance = started("web-0")
    async with actuator(home, away) as libvirt:
        done = await carried_out(libvirt, maintenance)
    assert domains(home) == {}
    assert domains(away)["web-0"][0] == RUNNING
    assert done.impact_s is not None
    assert done.impact_s > 0
    async with actuator(home, away) as other:
        later = await other.observe(maintenance, CLOCK.now())
    assert later == done


async def test_a_machine_is_redeployed_to_the_destination(home: Daemon, away: Daemon) -> None:
    async with actuator(home, away) as libvirt:
        done = await carried_out(libvirt, started("web-0", type=EventType.REDEPLOY))
    assert done.is_complete
    assert domains(home) == {}
    assert domains(away)["web-0"][0] == RUNNING


SERVICE = """
import asyncio, os, signal, sys
sys.path.insert(0, {root!r})
from forewarn.actuators.libvirt import Destination, Libvirt
from forewarn.actuators.libvirt_connection import load_libvirt
from forewarn.clock import RealClock
from tests.support.actuated import started

async def main():
    libvirt = Libvirt({home!r}, destinations={{"*": Destination({away!r}, {local!r})}})
    await libvirt.execute(started("web-0"), RealClock().now())
    domain = load_libvirt().open({home!r}).lookupByName("web-0")
    while domain.jobInfo()[0] == 0:
        await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_migration_outlives_the_service_that_began_it(home: Daemon, away: Daemon) -> None:
    """Invariant 3."""
    code = SERVICE.format(root=str(ROOT), home=home.uri, away=away.uri, local=LOCAL)
    ran = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], check=False, timeout=60)
    assert ran.returncode == -signal.SIGKILL
    async with actuator(home, away) as next_one:
        assert (await carried_out(next_one, started("web-0"))).is_complete
    assert domains(home) == {}
    assert domains(away)["web-0"][0] == RUNNING


async def test_a_migration_is_stopped_by_an_abort_and_the_machine_runs_on_where_it_was(
    home: Daemon, away: Daemon
) -> None:
    maintenance = started("web-0")
    async with actuator(home, away) as libvirt:
        await libvirt.execute(maintenance, CLOCK.now())
        connect = load_libvirt().open(home.uri)
        domain = connect.lookupByName("web-0")
        await until(lambda: domain.jobInfo()[0] != 0)
        await libvirt.abort(maintenance, CLOCK.now())
        await until(lambda: domain.jobInfo()[0] == 0)
        connect.close()
        later = await libvirt.observe(maintenance, CLOCK.now())
        assert later is not None
        assert later.is_complete
    assert domains(home)["web-0"][0] == RUNNING
    assert domains(away) == {}


async def test_a_daemon_that_dies_is_connected_to_again_and_nothing_is_done_twice(home: Daemon) -> None:
    maintenance = replace(started("web-0"), duration_s=3)
    heard: list[DomainEvent] = []
    following = asyncio.create_task(follow_domains(home.uri, heard.append, reconnect_s=0.1))
    async with actuator(home) as libvirt:
        await libvirt.execute(maintenance, CLOCK.now())
        await until(lambda: bool(heard))
        home.send(signal.SIGKILL)
        with pytest.raises(ActuatorError, match="libvirt at"):
            await libvirt.observe(maintenance, CLOCK.now())
        before = len(heard)
        await asyncio.to_thread(home.start)
        done = await carried_out(libvirt, replace(maintenance, impacted_at=CLOCK.now()))
        assert done.impact_s is not None
        assert done.impact_s >= 3
        await until(lambda: any(news.kind == "present" for news in heard[before:]))
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert domains(home)["web-0"] == (RUNNING, 1)


async def test_a_daemon_that_hangs_is_not_waited_for_and_goes_on_where_it_was(home: Daemon) -> None:
    maintenance = started("web-0", type=EventType.REBOOT)
    async with actuator(home, call_timeout=timedelta(seconds=6)) as libvirt:
        await libvirt.execute(maintenance, CLOCK.now())
        home.send(signal.SIGSTOP)
        with pytest.raises(ActuatorError, match="did not answer within 6 s"):
            await libvirt.observe(maintenance, CLOCK.now())
        home.send(signal.SIGCONT)
        assert (await carried_out(libvirt, maintenance)).is_complete
    assert domains(home) == {"web-0": (RUNNING, 2)}
