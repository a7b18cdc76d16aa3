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
from forewarn.observability.tracing.life import Moment

__all__ = ["Traced"]


class Traced:
    """An actuator whose calls are traced.

    Args:
        actuator: Actuator to wrap.
        tracing: Recorder of the spans.
        clock: Clock of the service.
    """

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
        with self._tracing.call(maintenance, f"{self._kind} plan", self._clock.now()):
            return self._actuator.plan(maintenance)

    async def check(self) -> None:
        with self._tracing.command(f"{self._kind} check"):
            await self._actuator.check()

    async def execute(self, maintenance: Maintenance, now: datetime) -> Progress:
        with self._tracing.call(maintenance, f"{self._kind} execute", now) as call, _below(call.traceparent):
            progress = await self._actuator.execute(maintenance, now)
            call.say(is_impacted=progress.is_impacted, is_complete=progress.is_complete)
            return progress

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress | None:
        with _below(self._tracing.traceparent(maintenance.id)):
            try:
                progress = await self._actuator.observe(maintenance, now)
            except ForewarnError as error:
                self._tell(maintenance, now, {}, error.message)
                raise
        if progress is not None and _is_news(maintenance, progress):
            said = {"forewarn.is_impacted": progress.is_impacted, "forewarn.is_complete": progress.is_complete}
            self._tell(maintenance, now, said)
        return progress

    async def abort(self, maintenance: Maintenance, now: datetime) -> None:
        with self._tracing.call(maintenance, f"{self._kind} abort", now) as call, _below(call.traceparent):
            await self._actuator.abort(maintenance, now)

    async def close(self) -> None:
        await self._actuator.close()

    def _tell(
        self, maintenance: Maintenance, began_at: datetime, said: dict[str, bool], failure: str | None = None
    ) -> None:
        moment = Moment(
            maintenance_id=maintenance.id,
            name=f"{self._kind} observe",
            began_at=began_at,
            ended_at=self._clock.now(),
            attributes={"forewarn.maintenance.id": maintenance.id, **said},
            failure=failure,
        )
        self._tracing.tell([moment])


def _is_news(maintenance: Maintenance, progress: Progress) -> bool:
    return progress.is_complete or (progress.is_impacted and maintenance.impacted_at is None)


@contextmanager
def _below(traceparent: str) -> Iterator[None]:
    token = TRACEPARENT.set(traceparent)
    try:
        yield
    finally:
        TRACEPARENT.reset(token)
