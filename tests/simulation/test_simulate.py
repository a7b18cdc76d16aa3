"""Handlers and actuators of others in simulated clusters: mistakes are found, and what is correct passes.

`test_docs.py` runs the handlers of docs/how-to/simulate-a-cluster.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from forewarn.actuators import Progress
from forewarn.client import AsyncClient, Document, EndpointError, Event
from forewarn.core.model import Maintenance
from forewarn.errors import HookFailed
from forewarn.testing.simulation import Guest, Hypervisor, SimulationFailed, Size, simulate
from forewarn.testing.simulation.handler_vm import Handler
from forewarn.testing.simulation.hypervisor import HypervisorActuator

pytestmark = [pytest.mark.slow, pytest.mark.begins_first(100)]

SMALL = Size(replicas=1, hosts=1, vms=1, operations=4, span_s=60)
SEEDS = 20


def broken(*, handler: Handler | None = None, make_actuator: Callable[[Hypervisor], MyActuator] | None = None) -> str:
    """Return what the first run that fails says."""
    kinds = None if handler else ("kill-replica", "fail-hypervisor")
    with pytest.raises(SimulationFailed) as caught:
        simulate(SEEDS, handler=handler, make_actuator=make_actuator, size=replace(SMALL, kinds=kinds))
    failure = caught.value
    assert failure.complaints
    assert any("vm-0" in line for line in failure.story)
    assert f"seeds=[{failure.seed}], size={failure.size}" in str(failure)
    return "\n".join(failure.complaints)


class Careful:
    """A handler without a mistake: it remembers each event of its VM until it has recovered."""

    poll_s = 5

    async def __call__(self, guest: Guest) -> None:
        async with AsyncClient() as client:
            while True:
                with suppress(EndpointError, HookFailed, OSError):
                    await self.handle(guest, client, await client.fetch())
                await asyncio.sleep(self.poll_s)

    async def handle(self, guest: Guest, client: AsyncClient, document: Document) -> None:
        memory = set(json.loads(guest.read_state() or b"[]"))
        own = {event.id: event for event in document.events if guest.name in event.resources}
        for event in own.values():
            if event.status == "Scheduled" and event.id not in memory:
                guest.write_state(json.dumps(sorted(memory | {event.id})).encode())
                memory.add(event.id)
                await self.get_ready(guest, client, event)
        for event_id in sorted(memory):
            if self.is_over(event_id, own):
                await guest.recover(event_id)
                memory.remove(event_id)
                guest.write_state(json.dumps(sorted(memory)).encode())

    async def get_ready(self, guest: Guest, client: AsyncClient, event: Event) -> None:
        await guest.prepare(event.id)
        await client.approve(event)

    def is_over(self, event_id: str, own: dict[str, Event]) -> bool:
        return event_id not in own


def test_the_handler_that_the_mistakes_are_planted_in_passes() -> None:
    assert simulate(10, handler=Careful(), size=SMALL)["impact"] > 0


def test_a_handler_that_approves_before_it_has_prepared_is_found() -> None:
    class Hasty(Careful):
        async def get_ready(self, guest: Guest, client: AsyncClient, event: Event) -> None:
            await client.approve(event)
            await guest.prepare(event.id)

    assert "impacts_wait_for_preparation: vm-0" in broken(handler=Hasty())


def test_a_handler_that_recovers_as_soon_as_it_has_started_is_found() -> None:
    class Impatient(Careful):
        def is_over(self, event_id: str, own: dict[str, Event]) -> bool:
            return event_id not in own or own[event_id].status == "Started"

    assert "recoveries_wait_for_the_end: vm-0" in broken(handler=Impatient())


def test_a_handler_that_ends_is_found() -> None:
    class Fragile(Careful):
        async def __call__(self, guest: Guest) -> None:
            async with AsyncClient() as client:
                while True:
                    await self.handle(guest, client, await client.fetch())
                    await asyncio.sleep(self.poll_s)

    async def end(guest: Guest) -> None:
        await asyncio.sleep(40)

    with pytest.raises(SimulationFailed, match=r"agents_and_endpoints_never_fail: vm-0: ended at .* HookFailed"):
        simulate(SEEDS, handler=Fragile(), size=replace(SMALL, kinds=("fail-steps",)))
    with pytest.raises(SimulationFailed, match="the handler has returned"):
        simulate(1, handler=end, size=SMALL)


class MyActuator(HypervisorActuator):
    def __init__(self, hypervisor: Hypervisor) -> None:
        super().__init__(hypervisor, is_observable=True)


class Forgetful(MyActuator):
    """Knows only what this object has begun."""

    def __init__(self, hypervisor: Hypervisor) -> None:
        super().__init__(hypervisor)
        self._begun = set[str]()

    async def execute(self, maintenance: Maintenance, now: datetime) -> Progress:
        progress = await super().execute(maintenance, now)
        self._begun.add(maintenance.id)
        return progress

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress | None:
        return await super().observe(maintenance, now) if maintenance.id in self._begun else None


def test_an_actuator_that_asks_the_hypervisor_passes() -> None:
    happened = simulate(4, make_actuator=MyActuator)
    assert happened["execute"] > 0


class Unhurried(MyActuator):
    """Wants to be asked only after a minute, which is its own decision."""

    async def execute(self, maintenance: Maintenance, now: datetime) -> Progress:
        return replace(await super().execute(maintenance, now), check_at=now + timedelta(minutes=1))


def test_an_actuator_may_learn_late_that_it_has_completed() -> None:
    assert simulate(1, make_actuator=Unhurried, size=replace(SMALL, kinds=()))["complete"] > 0


def test_an_actuator_that_relies_on_its_memory_is_found() -> None:
    assert "maintenances_are_carried_out_once" in broken(make_actuator=Forgetful)
