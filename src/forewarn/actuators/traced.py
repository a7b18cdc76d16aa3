"""Actuator wrapper that records calls in the traces of their maintenances.

The beginning and every new result are recorded; unchanged progress is not, or a maintenance of one day would have a
hundred thousand spans.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from forewarn.actuators.contract import TRACEPARENT, Actuator, Progress
from forewarn.clock import Clock
from forewarn.core.model import Maintenance
from forewarn.errors import ForewarnError
from forewarn.observability.tracing import Tracing
from forewarn.observability.tracing.maintenance_spans import MaintenanceSpan

__all__ = ["TracedActuator"]


class TracedActuator:
    """An actuator whose calls are traced."""

    def __init__(self, actuator: Actuator, tracing: Tracing, clock: Clock) -> None:
        self._actuator = actuator
        self._tracing = tracing
        self._clock = clock
        self._kind = type(actuator).__name__.lower()

    @property
    def is_observable(self) -> bool:
        """True if the wrapped actuator is observable."""
        return self._actuator.is_observable

    def plan(self, maintenance: Maintenance) -> tuple[str, ...]:
        with self._tracing.actuator_call_span(maintenance, f"{self._kind} plan", self._clock.now()):
            return self._actuator.plan(maintenance)

    async def check(self) -> None:
        with self._tracing.command_span(f"{self._kind} check"):
            await self._actuator.check()

    async def execute(self, maintenance: Maintenance, now: datetime) -> Progress:
        with (
            self._tracing.actuator_call_span(maintenance, f"{self._kind} execute", now) as call,
            _use_traceparent(call.traceparent),
        ):
            progress = await self._actuator.execute(maintenance, now)
            call.add_facts(is_impacted=progress.is_impacted, is_complete=progress.is_complete)
            return progress

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress | None:
        # The trace of the maintenance and not a span of this call, because most observations get none.
        with _use_traceparent(self._tracing.traceparent(maintenance.id)):
            try:
                progress = await self._actuator.observe(maintenance, now)
            except ForewarnError as error:
                self._record_observation(maintenance, now, {}, error.message)
                raise
        if progress is not None and _is_new_result(maintenance, progress):
            said = {"forewarn.is_impacted": progress.is_impacted, "forewarn.is_complete": progress.is_complete}
            self._record_observation(maintenance, now, said)
        return progress

    async def abort(self, maintenance: Maintenance, now: datetime) -> None:
        with (
            self._tracing.actuator_call_span(maintenance, f"{self._kind} abort", now) as call,
            _use_traceparent(call.traceparent),
        ):
            await self._actuator.abort(maintenance, now)

    async def close(self) -> None:
        await self._actuator.close()

    def _record_observation(
        self, maintenance: Maintenance, began_at: datetime, facts: dict[str, bool], failure: str | None = None
    ) -> None:
        moment = MaintenanceSpan(
            maintenance_id=maintenance.id,
            name=f"{self._kind} observe",
            began_at=began_at,
            ended_at=self._clock.now(),
            attributes={"forewarn.maintenance.id": maintenance.id, **facts},
            failure=failure,
        )
        self._tracing.export_spans([moment])


def _is_new_result(maintenance: Maintenance, progress: Progress) -> bool:
    return progress.is_complete or (progress.is_impacted and maintenance.impacted_at is None)


@contextmanager
def _use_traceparent(traceparent: str) -> Iterator[None]:
    token = TRACEPARENT.set(traceparent)
    try:
        yield
    finally:
        TRACEPARENT.reset(token)
