"""Steps of an agent that take no time."""

from __future__ import annotations

from forewarn.agent.record import EventRecord
from forewarn.agent.rule import EventStep
from forewarn.agent.steps import Remember

__all__ = ["QuickSteps"]


class QuickSteps:
    """Steps that take no time."""

    def __init__(self) -> None:
        self.ran: list[EventStep] = []

    async def run(self, record: EventRecord, step: EventStep, vm: str, save_memory: Remember, reason: str = "") -> str:
        self.ran.append(step)
        return ""
