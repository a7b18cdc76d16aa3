"""An actuator for tests that only has to be observed: everything else is as little as can be."""

from __future__ import annotations

from datetime import datetime

from forewarn.actuators import Progress
from forewarn.core.model import Maintenance

__all__ = ["Observed"]


class Observed:
    """Base of actuators whose `observe` does it all."""

    is_observable = True

    def plan(self, maintenance: Maintenance) -> tuple[str, ...]:
        return (f"something for {maintenance.id}",)

    async def check(self) -> None:
        pass

    async def execute(self, maintenance: Maintenance, now: datetime) -> Progress:
        raise NotImplementedError

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress | None:
        raise NotImplementedError

    async def abort(self, maintenance: Maintenance, now: datetime) -> None:
        pass

    async def close(self) -> None:
        pass
