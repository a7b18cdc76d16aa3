"""Simulated hypervisor of all replicas: work goes on, even if the replica that began it dies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime, timedelta

from forewarn.actuators import Progress
from forewarn.actuators.contract import BEGIN_BEFORE_S
from forewarn.clock import uptime_s
from forewarn.core.model import EventType, Maintenance
from forewarn.errors import ActuatorError
from forewarn.testing.simulation.machine_clock import START
from forewarn.testing.simulation.trace import Trace

__all__ = ["Hypervisor", "HypervisorActuator"]

# Short, or most of the simulated time would pass while nothing happens.
_IMPACT_AFTER_S = 5.0
_COMPLETE_AFTER_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Work on one maintenance.

    Attributes:
        begun_at_s: Start time, in seconds of the loop's clock.
    """

    maintenance_id: str
    vms: tuple[str, ...]
    type: EventType
    begun_at_s: float


class Hypervisor:
    """Simulated hypervisor: slow, and during the fault ``fail-hypervisor`` its calls fail.

    It interrupts the VMs 5 s after the start of the work, and returns them 20 s after the start.

    Args:
        trace: Gets a fact for each maintenance that is begun, interrupts its VMs, completes or is stopped.
        rng: Source of its delays and failures.
        loses_answers: True if a call that fails may have begun something.

    Attributes:
        failures: Probability that a call fails.
        on_impact: Called with the VMs that are interrupted and the type of the event.
        on_complete: Called with the VMs that run again.
    """

    def __init__(self, trace: Trace, rng: random.Random, *, loses_answers: bool = False) -> None:
        self.failures = 0.0
        self.on_impact: Callable[[Sequence[str], EventType], None] = lambda *_: None
        self.on_complete: Callable[[Sequence[str]], None] = lambda _: None
        self._trace = trace
        self._rng = rng
        self._loses_answers = loses_answers
        self._works: dict[str, _Work] = {}
        self._stopped: set[str] = set()
        # What goes on belongs to no process: it must survive the replica that has begun it.
        self._context = copy_context()

    async def begin(self, maintenance_id: str, vms: Sequence[str], event_type: EventType) -> Progress:
        """Begin to interrupt VMs, under the id of their maintenance; takes up to a second.

        A repeated call begins the same work again, which breaks the property `maintenances_are_carried_out_once`.

        Raises:
            ActuatorError: The call has failed. Nothing was begun, unless `loses_answers`.
        """
        await self._delay()
        if self._fails():
            raise ActuatorError("the hypervisor is busy")
        if uptime_s() >= BEGIN_BEFORE_S.get():
            raise ActuatorError("the lease of this replica has expired")
        loop = asyncio.get_running_loop()
        work = _Work(maintenance_id=maintenance_id, vms=tuple(vms), type=event_type, begun_at_s=loop.time())
        self._works[maintenance_id] = work
        self._note(work, "execute")
        loop.call_later(_IMPACT_AFTER_S, self._interrupt, work, context=self._context)
        loop.call_later(_COMPLETE_AFTER_S, self._complete, work, context=self._context)
        await self._delay()
        if self._loses_answers and self._fails():
            raise ActuatorError("the hypervisor did not answer")
        return self._read_progress(work)

    async def find(self, maintenance_id: str) -> Progress | None:
        """Return the progress of a maintenance; None if nothing was begun under that id. Takes up to half a second.

        Raises:
            ActuatorError: The call has failed.
        """
        await self._delay()
        if self._fails():
            raise ActuatorError("the hypervisor does not answer")
        work = self._works.get(maintenance_id)
        return None if work is None else self._read_progress(work)

    async def stop(self, maintenance_id: str) -> None:
        """Do not interrupt the VMs of a maintenance from now on; takes no time, and never fails."""
        self._stopped.add(maintenance_id)
        self._trace.note("hypervisor", "abort", maintenance=maintenance_id)

    async def _delay(self) -> None:
        await asyncio.sleep(self._rng.uniform(0.001, 0.5))

    def _fails(self) -> bool:
        return self._rng.random() < self.failures

    @staticmethod
    def _read_progress(work: _Work) -> Progress:
        passed_s = asyncio.get_running_loop().time() - work.begun_at_s
        if passed_s >= _COMPLETE_AFTER_S:
            return Progress(is_impacted=True, is_complete=True)
        is_impacted = passed_s >= _IMPACT_AFTER_S
        next_s = work.begun_at_s + (_COMPLETE_AFTER_S if is_impacted else _IMPACT_AFTER_S)
        return Progress(is_impacted=is_impacted, check_at=START + timedelta(seconds=next_s))

    def _interrupt(self, work: _Work) -> None:
        if work.maintenance_id not in self._stopped:
            self._note(work, "impact")
            self.on_impact(work.vms, work.type)

    def _complete(self, work: _Work) -> None:
        self._note(work, "complete")
        self.on_complete(work.vms)

    def _note(self, work: _Work, kind: str) -> None:
        self._trace.note("hypervisor", kind, maintenance=work.maintenance_id, vms=list(work.vms))


class HypervisorActuator:
    """Actuator of the hypervisor.

    Args:
        hypervisor: Carries everything out.
        is_observable: See `Actuator`.
    """

    def __init__(self, hypervisor: Hypervisor, *, is_observable: bool) -> None:
        self.is_observable = is_observable
        self._hypervisor = hypervisor

    def plan(self, maintenance: Maintenance) -> tuple[str, ...]:
        """Return what would be done."""
        return tuple(f"interrupt {vm}" for vm in maintenance.vms)

    async def check(self) -> None:
        """Do nothing."""

    async def execute(self, maintenance: Maintenance, now: datetime) -> Progress:
        """Begin the maintenance; see `Actuator.execute`."""
        del now
        return await self._hypervisor.begin(maintenance.id, maintenance.vms, maintenance.type)

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress | None:
        """Return how far it is; see `Actuator.observe`."""
        del now
        progress = await self._hypervisor.find(maintenance.id)
        if progress is None and not self.is_observable:
            raise ActuatorError("nothing is known of this maintenance")
        return progress

    async def abort(self, maintenance: Maintenance, now: datetime) -> None:
        """Stop what was begun."""
        del now
        await self._hypervisor.stop(maintenance.id)

    async def close(self) -> None:
        """Do nothing."""
