"""Every actuator there is, each with a piece of the world that it works on and that can be counted."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from forewarn.actuators import Actuator, Progress, Simulate
from forewarn.actuators.exec import CommandLimits, Exec
from forewarn.actuators.libvirt import Libvirt, LibvirtTimings
from forewarn.actuators.webhook import Webhook
from forewarn.clock import Clock, RealClock, VirtualClock
from forewarn.core.model import EventType, Maintenance, MaintenanceState
from tests.support.hypervisor import URI, hypervisor
from tests.support.operator_service import operator_service
from tests.support.spans import GUARD_S
from tests.unit.core.builders import maintenance, vm

__all__ = ["ACTUATORS", "Subject", "carried_out", "started", "subject", "until"]

SECRET = "shared"
_FREEZE = timedelta(milliseconds=60)
_PAUSE_S = 0.01

ACTUATORS = ("simulate", "exec", "webhook", "libvirt")


def started(*vms: str, id: str = "k3m9", type: EventType = EventType.FREEZE, host: str = "host-1") -> Maintenance:
    """A maintenance whose actuator is to be asked; its duration is not known."""
    made = maintenance(*(vm(name, host=host) for name in vms), id=id, type=type, state=MaintenanceState.STARTED)
    return replace(made, duration_s=-1, started_at=made.created_at)


@dataclass
class Subject:
    """An actuator under test.

    Attributes:
        actuator: It.
        maintenance: What it is told to carry out.
        make: Another one of its kind, as after a restart of the service or on another replica.
        broken: One that cannot carry anything out, and a word of what it should say is missing.
        finish: Lets what was begun come to its end.
        count: How often it was begun in the world.
        is_aware: Whether it can say that nothing was begun.
    """

    actuator: Actuator
    maintenance: Maintenance
    clock: Clock
    make: Callable[[], Actuator]
    broken: Callable[[], Actuator] | None
    finish: Callable[[], None]
    count: Callable[[], int]
    failing: Callable[[], None] | None = None
    is_aware: bool = True


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens in another process or thread."""
    async with asyncio.timeout(GUARD_S):
        while not condition():  # noqa: ASYNC110 - nothing wakes a test
            await asyncio.sleep(_PAUSE_S)


async def carried_out(it: Subject, actuator: Actuator | None = None) -> Progress:
    """What the scheduler does until a maintenance is complete: observe, execute where nothing was begun."""
    actuator = actuator or it.actuator
    async with asyncio.timeout(GUARD_S):
        while True:
            now = it.clock.now()
            progress = await actuator.observe(it.maintenance, now) or await actuator.execute(it.maintenance, now)
            if progress.is_complete:
                return progress
            it.finish()
            assert progress.check_at is not None
            await asyncio.sleep(min(max((progress.check_at - now).total_seconds(), 0), 0.05))
            if progress.is_impacted:
                it.maintenance = replace(it.maintenance, impacted_at=now)


@asynccontextmanager
async def subject(name: str, folder: Path) -> AsyncIterator[Subject]:
    """One of `ACTUATORS`."""
    async with AsyncExitStack() as stack:
        made = await _MAKERS[name](stack, folder)
        yield made
        await made.actuator.close()


async def _simulate(_stack: AsyncExitStack, _folder: Path) -> Subject:
    clock = VirtualClock()
    made = replace(started("web-0"), started_at=clock.now())
    return Subject(
        actuator=Simulate(),
        maintenance=made,
        clock=clock,
        make=Simulate,
        broken=None,
        finish=lambda: clock.advance(timedelta(minutes=10)),
        count=lambda: 1,
        is_aware=False,
    )


async def _exec(stack: AsyncExitStack, folder: Path) -> Subject:
    script = folder / "work.py"
    script.write_text(
        "import pathlib, sys, time\n"
        f"folder = pathlib.Path({str(folder)!r})\n"
        "with (folder / 'begun').open('a') as begun:\n"
        "    begun.write('x')\n"
        "for _ in range(2000):\n"
        "    if (folder / 'fail').exists():\n"
        "        print('one\\n\\x1b[31mtwo\\tthree')\n"
        "        sys.exit(7)\n"
        "    if (folder / 'go').exists():\n"
        "        sys.exit(0)\n"
        "    time.sleep(0.01)\n"
    )
    begun = folder / "begun"

    def make() -> Exec:
        limits = CommandLimits(check_every=timedelta(milliseconds=10), deadline=timedelta(seconds=GUARD_S))
        return Exec([sys.executable, "-S", str(script)], folder / "runs", limits=limits)

    stack.callback((folder / "go").touch)  # whatever a test has left behind ends
    return Subject(
        actuator=make(),
        maintenance=started("web-0"),
        clock=RealClock(),
        make=make,
        broken=lambda: Exec(shlex.split("/no/such/program --now"), folder / "runs"),
        finish=(folder / "go").touch,
        count=lambda: len(begun.read_text()) if begun.exists() else 0,
        failing=(folder / "fail").touch,
    )


async def _webhook(stack: AsyncExitStack, _folder: Path) -> Subject:
    service = await stack.enter_async_context(operator_service())

    def make() -> Webhook:
        made = Webhook(service.url, SECRET)
        stack.push_async_callback(made.close)
        return made

    return Subject(
        actuator=make(),
        maintenance=started("web-0"),
        clock=RealClock(),
        make=make,
        broken=lambda: Webhook("http://127.0.0.1:1/none", SECRET),
        finish=lambda: service.state.update(state="completed", impact_s=1.5),
        count=lambda: service.begun.get("k3m9", 0),
        failing=lambda: service.state.update(state="failed", reason="one\n\x1b[31mtwo\tthree"),
    )


async def _libvirt(stack: AsyncExitStack, _folder: Path) -> Subject:
    world = stack.enter_context(hypervisor())
    world.define("web-0")

    def make() -> Libvirt:
        made = Libvirt(URI, timings=LibvirtTimings(freeze=_FREEZE))
        stack.push_async_callback(made.close)
        return made

    return Subject(
        actuator=make(),
        maintenance=started("web-0"),
        clock=RealClock(),
        make=make,
        broken=lambda: Libvirt("qemu+unix:///system?socket=/no/such/socket"),
        finish=lambda: None,
        count=lambda: world.count("web-0", world.library.VIR_DOMAIN_EVENT_SUSPENDED),
        failing=lambda: _vanish(world.domain("web-0")),
    )


def _vanish(domain: object) -> None:
    domain.undefine()  # type: ignore[attr-defined] # the library has no types
    domain.destroy()  # type: ignore[attr-defined] # as above


_MAKERS: dict[str, Callable[[AsyncExitStack, Path], Awaitable[Subject]]] = {
    "simulate": _simulate,
    "exec": _exec,
    "webhook": _webhook,
    "libvirt": _libvirt,
}
