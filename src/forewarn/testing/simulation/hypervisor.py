"""The actuator of all replicas: what was begun goes on, even if the replica that has begun it dies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import copy_context
from datetime import datetime, timedelta

from forewarn.actuators import Progress
from forewarn.actuators.contract import BEGIN_BEFORE_S
from forewarn.clock import uptime_s
from forewarn.core.model import Maintenance
from forewarn.errors import ActuatorError
from forewarn.testing.simulation.machine_clock import START
from forewarn.testing.simulation.trace import Trace

__all__ = ["Hypervisor"]

# Short, or most of the simulated time would pass while nothing happens.
_IMPACT_AFTER_S = 5.0
_COMPLETE_AFTER_S = 20.0


class Hypervisor:
    """Actuator that is slow and fails, and begins each maintenance once.

    Args:
        trace: Gets a fact for each maintenance that is begun, interrupts its VMs, completes or is aborted.
        rng: Source of its delays and failures.
        is_observable: See `Actuator`.

    Attributes:
        failures: Probability that a call fails.
        on_impact: Called when the VMs of a maintenance are interrupted.
        on_complete: Called when they run again.
    """

    def __init__(self, trace: Trace, rng: random.Random, *, is_observable: bool) -> None:
        self.is_observable = is_observable
        self.failures = 0.0
        self.on_impact: Callable[[Maintenance], None] = lambda _: None
        self.on_complete: Callable[[Maintenance], None] = lambda _: None
        self._trace = trace
        self._rng = rng
        self._begun_at_s: dict[str, float] = {}
        self._aborted: set[str] = set()
        # What goes on belongs to no process: it must survive the replica that has begun it.
        self._context = copy_context()

    def plan(self, maintenance: Maintenance) -> tuple[str, ...]:
        """Return what would be done."""
        return tuple(f"interrupt {vm}" for vm in maintenance.vms)

    async def check(self) -> None:
        """Do nothing."""

    async def execute(self, maintenance: Maintenance, now: datetime) -> Progress:
        """Begin the maintenance; see `Actuator.execute`."""
        del now
        await self._delay()
        if self._fails():
            raise ActuatorError("the hypervisor is busy")
        if uptime_s() >= BEGIN_BEFORE_S.get():
            raise ActuatorError("the lease of this replica has expired")
        loop = asyncio.get_running_loop()
        self._begun_at_s[maintenance.id] = loop.time()
        self._note(maintenance, "execute")
        loop.call_later(_IMPACT_AFTER_S, self._interrupt, maintenance, context=self._context)
        loop.call_later(_COMPLETE_AFTER_S, self._complete, maintenance, context=self._context)
        await self._delay()
        return self._read_progress(maintenance)

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress | None:
        """Return how far it is; see `Actuator.observe`."""
        del now
        await self._delay()
        if self._fails():
            raise ActuatorError("the hypervisor does not answer")
        if maintenance.id in self._begun_at_s:
            return self._read_progress(maintenance)
        if self.is_observable:
            return None
        raise ActuatorError("nothing is known of this maintenance")

    async def abort(self, maintenance: Maintenance, now: datetime) -> None:
        """Stop what was begun."""
        del now
        self._aborted.add(maintenance.id)
        self._note(maintenance, "abort")

    async def close(self) -> None:
        """Do nothing."""

    async def _delay(self) -> None:
        await asyncio.sleep(self._rng.uniform(0.001, 0.5))

    def _fails(self) -> bool:
        return self._rng.random() < self.failures

    def _read_progress(self, maintenance: Maintenance) -> Progress:
        begun_at_s = self._begun_at_s[maintenance.id]
        passed_s = asyncio.get_running_loop().time() - begun_at_s
        if passed_s >= _COMPLETE_AFTER_S:
            return Progress(is_impacted=True, is_complete=True)
        is_impacted = passed_s >= _IMPACT_AFTER_S
        next_s = begun_at_s + (_COMPLETE_AFTER_S if is_impacted else _IMPACT_AFTER_S)
        return Progress(is_impacted=is_impacted, check_at=START + timedelta(seconds=next_s))

    def _interrupt(self, maintenance: Maintenance) -> None:
        if maintenance.id not in self._aborted:
            self._note(maintenance, "impact")
            self.on_impact(maintenance)

    def _complete(self, maintenance: Maintenance) -> None:
        self._note(maintenance, "complete")
        self.on_complete(maintenance)

    def _note(self, maintenance: Maintenance, kind: str) -> None:
        self._trace.note("hypervisor", kind, maintenance=maintenance.id, vms=list(maintenance.vms))
