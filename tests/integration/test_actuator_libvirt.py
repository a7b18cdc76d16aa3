"""The actuator `libvirt`, on libvirt's test driver: pauses, reboots, moves, what vanishes, power cuts at each step."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from forewarn.actuators import Progress
from forewarn.actuators.libvirt import Destination, Libvirt, LibvirtTimings, read_destinations
from forewarn.actuators.libvirt_domain import ENDED_RECORDS_MAX
from forewarn.clock import RealClock, VirtualClock
from forewarn.core.model import EventType, Maintenance
from forewarn.errors import ActuatorError, ConfigError
from tests.support.actuated import started, until
from tests.support.hypervisor import NEEDS_LIBVIRT, URI, Hypervisor, domain_xml, hypervisor
from tests.support.interrupting import Cut, PowerCut, stubborn
from tests.support.spans import GUARD_S

pytestmark = [pytest.mark.anyio, pytest.mark.slow, NEEDS_LIBVIRT]

T = EventType
CLOCK = RealClock()
NOW = CLOCK.now()
TERMS = LibvirtTimings(
    freeze=timedelta(milliseconds=60),
    shutdown_timeout=timedelta(milliseconds=60),
    check_every=timedelta(milliseconds=10),
)


@pytest.fixture
def world() -> Iterator[Hypervisor]:
    with hypervisor() as made:
        made.define("web-0", "web-1")
        yield made


@pytest.fixture
async def libvirt(world: Hypervisor) -> AsyncIterator[Libvirt]:
    async with closing(Libvirt(URI, timings=TERMS)) as made:
        yield made


@asynccontextmanager
async def closing(made: Libvirt) -> AsyncIterator[Libvirt]:
    try:
        yield made
    finally:
        await made.close()


async def carried_out(
    libvirt: Libvirt, maintenance: Maintenance, end: Callable[[Progress], bool] | None = None
) -> Progress:
    """What the scheduler does, until it is complete or `end` says so."""
    async with asyncio.timeout(GUARD_S):
        while True:
            now = CLOCK.now()
            progress = await libvirt.observe(maintenance, now) or await libvirt.execute(maintenance, now)
            if progress.is_complete or (end is not None and end(progress)):
                return progress
            if progress.is_impacted and maintenance.impacted_at is None:
                maintenance = replace(maintenance, impacted_at=now)
            assert progress.check_at is not None
            await asyncio.sleep(max((progress.check_at - CLOCK.now()).total_seconds(), 0))


async def refusal(libvirt: Libvirt, maintenance: Maintenance) -> str:
    with pytest.raises(ActuatorError) as caught:
        await carried_out(libvirt, maintenance)
    assert caught.value.message.isprintable()
    return caught.value.message


# Freeze


async def test_a_freeze_pauses_the_vm_for_its_time_and_no_other(libvirt: Libvirt, world: Hypervisor) -> None:
    progress = await libvirt.execute(started("web-0"), NOW)
    assert (progress.is_impacted, progress.is_complete) == (True, False)
    assert (world.state("web-0"), world.state("web-1")) == ("paused", "running")
    done = await carried_out(libvirt, started("web-0"))
    assert world.state("web-0") == "running"
    assert done.impact_s is not None
    assert done.impact_s >= 0.06


async def test_a_freeze_lasts_as_long_as_was_announced(world: Hypervisor) -> None:
    clock = VirtualClock()
    async with closing(Libvirt(URI, clock=clock)) as libvirt:
        maintenance = replace(started("web-0"), duration_s=9)
        progress = await libvirt.execute(maintenance, clock.now())
        assert progress.check_at == clock.now() + timedelta(seconds=9)
        clock.advance(timedelta(seconds=8.9))
        assert await libvirt.observe(maintenance, clock.now()) == progress
        assert world.state("web-0") == "paused"
        clock.advance(timedelta(seconds=0.1))
        done = await libvirt.observe(maintenance, clock.now())
        assert done == Progress(is_impacted=True, is_complete=True, impact_s=9.0)


async def test_without_interruption_nothing_is_paused(libvirt: Libvirt, world: Hypervisor) -> None:
    """R39: a duration of 0."""
    done = await libvirt.execute(replace(started("web-0"), duration_s=0), NOW)
    assert (done.is_complete, done.impact_s) == (True, 0.0)
    await asyncio.sleep(0.03)
    assert world.count("web-0", world.library.VIR_DOMAIN_EVENT_SUSPENDED) == 0


@pytest.mark.parametrize("state", ["off", "paused"])
async def test_a_vm_that_does_not_run_is_left_as_it_is(libvirt: Libvirt, world: Hypervisor, state: str) -> None:
    domain = world.domain("web-0")
    domain.destroy() if state == "off" else domain.suspend()
    kinds = [T.FREEZE, T.REBOOT, T.REDEPLOY, T.TERMINATE] if state == "off" else [T.FREEZE]
    for kind in kinds:
        done = await carried_out(libvirt, started("web-0", id=f"m-{kind}", type=kind))
        assert done.impact_s == 0.0
        assert world.state("web-0") == state


async def test_a_reboot_that_impact_a_freeze_is_one(libvirt: Libvirt, world: Hypervisor) -> None:
    """R81."""
    maintenance = replace(started("web-0", type=T.REBOOT), impact=T.FREEZE)
    number = world.domain("web-0").ID()
    await carried_out(libvirt, maintenance)
    assert world.domain("web-0").ID() == number
    await until(lambda: world.count("web-0", world.library.VIR_DOMAIN_EVENT_RESUMED) == 1)


# Reboot, redeploy, preempt, terminate


@pytest.mark.parametrize("kind", [T.REBOOT, T.REDEPLOY])
async def test_a_reboot_or_redeployment_starts_the_vm_anew(
    libvirt: Libvirt, world: Hypervisor, kind: EventType
) -> None:
    number = world.domain("web-0").ID()
    done = await carried_out(libvirt, started("web-0", type=kind))
    assert world.state("web-0") == "running"
    assert world.domain("web-0").ID() != number
    assert done.impact_s is not None
    assert done.impact_s > 0


@pytest.mark.parametrize("kind", [T.PREEMPT, T.TERMINATE])
async def test_a_preempted_or_terminated_vm_stays_off(libvirt: Libvirt, world: Hypervisor, kind: EventType) -> None:
    done = await carried_out(libvirt, started("web-0", type=kind))
    assert world.state("web-0") == "off"
    assert done.impact_s is None


@pytest.mark.parametrize("kind", [T.REBOOT, T.REDEPLOY, T.TERMINATE])
async def test_a_guest_that_does_not_shut_down_loses_its_power(
    libvirt: Libvirt, world: Hypervisor, monkeypatch: pytest.MonkeyPatch, kind: EventType
) -> None:
    stubborn(monkeypatch)
    number = world.domain("web-0").ID()
    first = await libvirt.execute(started("web-0", type=kind), NOW)
    assert not first.is_complete
    assert world.domain("web-0").ID() == number
    await carried_out(libvirt, started("web-0", type=kind))
    assert world.state("web-0") == ("off" if kind is T.TERMINATE else "running")
    if kind is not T.TERMINATE:
        assert world.domain("web-0").ID() != number


# Several VMs


async def test_it_is_complete_when_each_of_its_vms_is(libvirt: Libvirt, world: Hypervisor) -> None:
    names = [f"db-{number}" for number in range(9)]
    world.define(*names)
    maintenance = started(*names)
    progress = await libvirt.execute(maintenance, NOW)
    assert {world.state(name) for name in names} == {"paused"}
    assert not progress.is_complete
    await carried_out(libvirt, maintenance)
    assert {world.state(name) for name in names} == {"running"}


async def test_a_vm_that_is_missing_keeps_no_other_suspended_and_then_is_told(
    libvirt: Libvirt, world: Hypervisor
) -> None:
    maintenance = started("web-0", "web-1")
    await libvirt.execute(maintenance, NOW)
    world.domain("web-1").undefine()
    world.domain("web-1").destroy()
    assert await refusal(libvirt, maintenance) == f"vm web-1 is not a domain of {URI}"
    assert world.state("web-0") == "running"


async def test_with_a_vm_that_was_never_there_nothing_is_begun(libvirt: Libvirt, world: Hypervisor) -> None:
    assert await refusal(libvirt, started("web-0", "nobody", "no-one")) == f"vm nobody is not a domain of {URI}"
    assert world.state("web-0") == "running"


# What vanishes, and what others do


async def test_a_transient_vm_that_ends_is_terminated(libvirt: Libvirt, world: Hypervisor) -> None:
    for number, name in enumerate(("one", "two")):
        world.connect.createXML(domain_xml(name), 0)
        maintenance = started(name, id=f"m{number}", type=T.TERMINATE)
        assert (await carried_out(libvirt, maintenance)).is_complete
    later = await libvirt.observe(replace(started("two", id="m1", type=T.TERMINATE), impacted_at=NOW), NOW)
    assert later == Progress(is_impacted=True, is_complete=True)


async def test_a_vm_that_vanishes_while_it_is_terminated_is_terminated(
    libvirt: Libvirt, world: Hypervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubborn(monkeypatch)
    maintenance = replace(started("web-0", type=T.PREEMPT), impacted_at=NOW)
    assert await libvirt.observe(replace(maintenance, impacted_at=None), NOW) is None
    await libvirt.execute(maintenance, NOW)
    world.domain("web-0").undefine()
    world.domain("web-0").destroy()
    assert (await carried_out(libvirt, maintenance)).is_complete


async def test_a_transient_vm_cannot_be_rebooted_and_that_is_said_before(libvirt: Libvirt, world: Hypervisor) -> None:
    world.connect.createXML(domain_xml("lone"), 0)
    for kind in (T.REBOOT, T.REDEPLOY):
        assert "transient" in await refusal(libvirt, started("lone", type=kind))
    assert world.state("lone") == "running"
    assert (await carried_out(libvirt, started("lone", id="f"))).is_complete


async def test_a_vm_that_somebody_resumed_or_started_meanwhile_is_not_touched_again(
    libvirt: Libvirt, world: Hypervisor
) -> None:
    await libvirt.execute(started("web-0"), NOW)
    world.domain("web-0").destroy()
    world.domain("web-0").create()
    world.domain("web-0").suspend()  # a pause of somebody else's
    assert (await carried_out(libvirt, started("web-0"))).is_complete
    assert world.state("web-0") == "paused"


async def test_a_record_that_is_gone_from_a_vm_that_felt_it_has_nothing_begun_anew(
    libvirt: Libvirt, world: Hypervisor
) -> None:
    with pytest.raises(ActuatorError, match="record is gone"):
        await libvirt.observe(replace(started("web-0", type=T.REBOOT), impacted_at=NOW), NOW)


async def test_records_of_old_do_not_pile_up(libvirt: Libvirt, world: Hypervisor) -> None:
    for number in range(ENDED_RECORDS_MAX + 3):
        await carried_out(libvirt, started("web-0", id=f"m{number}", type=T.REBOOT))
    assert world.domain("web-0").XMLDesc().count("<forewarn:maintenance") == ENDED_RECORDS_MAX + 1
    last = await libvirt.observe(started("web-0", id=f"m{ENDED_RECORDS_MAX + 2}", type=T.REBOOT), NOW)
    assert last is not None
    assert last.is_complete


# Moving


def away_at(folder: Path) -> Destination:
    """Another libvirt, empty. Each connection to it has its own domains: use one."""
    (folder / "away.xml").write_text("<node/>")
    return Destination(f"test://{folder}/away.xml")


async def domains(libvirt: Libvirt, uri: str) -> dict[str, bool]:
    """What is where, and whether it runs."""
    return await libvirt._get_connection(uri, "web-0").run_job(
        lambda session: {domain.name(): bool(domain.isActive()) for domain in session.connect.listAllDomains()}
    )


@pytest.mark.parametrize("is_running", [True, False])
async def test_a_redeployment_with_a_destination_moves_the_vm(
    world: Hypervisor, tmp_path: Path, is_running: bool
) -> None:
    away = away_at(tmp_path)
    if not is_running:
        world.domain("web-0").destroy()
    identity = world.domain("web-0").UUIDString()
    async with closing(Libvirt(URI, destinations={"*": away}, timings=TERMS, connections_per_host=1)) as libvirt:
        done = await carried_out(libvirt, started("web-0", type=T.REDEPLOY))
        assert done.is_complete
        assert await domains(libvirt, away.uri) == {"web-0": is_running}
        assert await domains(libvirt, URI) == {"web-1": True}
        there = await libvirt._get_connection(away.uri, "web-0").run_job(
            lambda s: s.connect.lookupByName("web-0").UUIDString()
        )
        assert there == identity
        # The inventory may not know yet that it has moved: it is found all the same.
        await carried_out(libvirt, started("web-0", id="next", type=T.TERMINATE))
        assert await domains(libvirt, away.uri) == {"web-0": False}


async def test_a_migration_that_libvirt_refuses_is_an_error_each_time_and_the_vm_runs_on(world: Hypervisor) -> None:
    destinations = {"host-1": Destination("qemu+unix:///system?socket=/no/such/socket")}
    async with closing(Libvirt(URI, destinations=destinations, timings=TERMS)) as libvirt:
        for _ in range(TERMS.migrations_max + 3):
            message = await refusal(libvirt, started("web-0"))
            assert message.startswith(f"vm web-0 was not migrated: libvirt at {URI}: ")
        assert world.state("web-0") == "running"
        assert f'tries="{TERMS.migrations_max}"' in world.domain("web-0").XMLDesc()


# Power cuts


CASES: list[tuple[EventType, bool, dict[str, int]]] = [
    (T.FREEZE, False, {"SUSPENDED": 1, "RESUMED": 1}),
    (T.REBOOT, False, {"STOPPED": 1, "STARTED": 1}),
    (T.REDEPLOY, True, {"STOPPED": 1, "UNDEFINED": 1}),
    (T.TERMINATE, False, {"STOPPED": 1}),
]


@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(("kind", "has_destination", "expected"), CASES, ids=[str(kind) for kind, _, _ in CASES])
async def test_whenever_the_power_is_cut_nothing_is_done_twice_or_left_undone(
    world: Hypervisor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: EventType,
    has_destination: bool,
    expected: dict[str, int],
    is_before: bool,
) -> None:
    """Invariant 3, for every change that is made to a VM: the next one goes on from what stands on the VM itself."""
    destinations = {"*": away_at(tmp_path)} if has_destination else {}
    cut = PowerCut(is_before=is_before).install(monkeypatch)
    for number in range(1, 50):
        name = f"vm-{number}"
        world.define(name)
        await until(lambda: world.count(name, world.library.VIR_DOMAIN_EVENT_STARTED) == 1)  # noqa: B023 - now
        world.events.clear()
        maintenance = started(name, type=kind)
        cut.left, cut.has_come = number, False
        first = Libvirt(URI, destinations=destinations, timings=TERMS, connections_per_host=1)
        second = Libvirt(URI, destinations=destinations, timings=TERMS, connections_per_host=1)
        second._connections = first._connections  # the test driver forgets a destination with its connection
        with contextlib.suppress(Cut):
            await carried_out(first, maintenance)
        cut.left = -1
        assert (await carried_out(second, maintenance)).is_complete
        await second.close()
        for event, count in expected.items():
            code = getattr(world.library, f"VIR_DOMAIN_EVENT_{event}")
            await until(lambda: world.count(name, code) >= count)  # noqa: B023 - now
            assert world.count(name, code) == count, f"{event} with the power cut at change {number}"
        if not cut.has_come:
            break
    assert number > 3


# Aborting


async def test_an_abort_resumes_what_is_suspended(world: Hypervisor) -> None:
    async with closing(Libvirt(URI, timings=replace(TERMS, freeze=timedelta(hours=1)))) as libvirt:
        maintenance = started("web-0", "web-1")
        await libvirt.execute(maintenance, NOW)
        assert world.state("web-1") == "paused"
        for _ in range(2):
            await libvirt.abort(maintenance, NOW)
        assert (world.state("web-0"), world.state("web-1")) == ("running", "running")
        later = await libvirt.observe(maintenance, NOW)
        assert later is not None
        assert later.is_complete


async def test_an_abort_starts_what_would_stay_off(world: Hypervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    stubborn(monkeypatch)
    async with closing(Libvirt(URI, timings=replace(TERMS, shutdown_timeout=timedelta(hours=1)))) as libvirt:
        maintenance = started("web-0", type=T.REBOOT)
        await libvirt.execute(maintenance, NOW)
        world.domain("web-0").destroy()
        await libvirt.abort(maintenance, NOW)
        assert world.state("web-0") == "running"


# Settings


async def test_a_check_connects_to_every_libvirt_that_is_known(world: Hypervisor, tmp_path: Path) -> None:
    async with closing(Libvirt(URI, destinations={"host-1": away_at(tmp_path)})) as fine:
        await fine.check()
    nowhere = Destination("qemu+unix:///system?socket=/no/such/socket")
    async with closing(Libvirt("test:///{host}", destinations={"default": nowhere})) as broken:
        with pytest.raises(ActuatorError, match="/no/such/socket"):
            await broken.check()


def test_each_host_has_its_libvirt_and_its_destination(world: Hypervisor) -> None:
    text = "host-1=qemu+tls://host-9/system|tcp://10.0.0.9 qemu+ssh://spare/system?a=b"
    destinations = read_destinations(text)
    assert destinations == {
        "host-1": Destination("qemu+tls://host-9/system", "tcp://10.0.0.9"),
        "*": Destination("qemu+ssh://spare/system?a=b"),
    }
    libvirt = Libvirt("qemu+ssh://{host}/system", destinations=destinations, timings=TERMS)
    plans = [
        libvirt.plan(started("web-0", host=host, type=kind))[0]
        for host, kind in [
            ("host-1", T.FREEZE),
            ("host-2", T.REDEPLOY),
            ("spare", T.FREEZE),
            ("host-1", T.REBOOT),
            ("host-1", T.PREEMPT),
        ]
    ]
    shut_down = "cut its power after 0.06 s"
    assert plans == [
        "migrate web-0 from qemu+ssh://host-1/system to qemu+tls://host-9/system while it runs",
        f"shut down web-0 on qemu+ssh://host-2/system, {shut_down}, define and start it on qemu+ssh://spare/system?a=b",
        "migrate web-0 from qemu+ssh://spare/system to qemu+ssh://spare/system?a=b while it runs",
        f"shut down web-0 on qemu+ssh://host-1/system, {shut_down}, and start it again",
        f"shut down web-0 on qemu+ssh://host-1/system, {shut_down}",
    ]


def test_a_host_is_not_its_own_destination(world: Hypervisor) -> None:
    libvirt = Libvirt("qemu+ssh://{host}/system", destinations={"*": Destination("qemu+ssh://spare/system")})
    (line,) = libvirt.plan(started("web-0", host="spare"))
    assert line == "suspend web-0 on qemu+ssh://spare/system, resume it after 5 s"


@pytest.mark.parametrize("text", ["host-1", "host-1=", "=qemu:///x", "a=qemu:///x a=qemu:///y", "qemu:///x qemu:///y"])
def test_a_destination_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="libvirt_destination"):
        read_destinations(text)
