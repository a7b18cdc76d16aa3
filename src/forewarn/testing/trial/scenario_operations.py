"""Operations that a scenario has begun, and what has become of them."""

from __future__ import annotations

from forewarn.client import Event
from forewarn.core.model import Event as CoreEvent
from forewarn.core.model import MaintenanceState
from forewarn.testing.lab import Announced, Lab

__all__ = ["ScenarioOperations"]

_REACHED = {
    "scheduled": frozenset(MaintenanceState) - {MaintenanceState.QUEUED},
    "started": frozenset({MaintenanceState.STARTED, MaintenanceState.COMPLETED, MaintenanceState.FAILED}),
    "completed": frozenset({MaintenanceState.COMPLETED}),
    "canceled": frozenset({MaintenanceState.CANCELED}),
}


class ScenarioOperations:
    """Operations of one run of a scenario, by the names that its steps use.

    Args:
        lab: Service that the scenario runs against.

    Attributes:
        maintenance_ids: Ids of the maintenances that each operation created; a second one of a name replaces the first.
    """

    def __init__(self, lab: Lab) -> None:
        self.maintenance_ids: dict[str, list[str]] = {}
        self._lab = lab

    async def has_reached(self, operation: str, transition: str) -> bool:
        """Return True if all maintenances of an operation have reached a transition, such as ``approved``."""
        found = await self._fetch(operation)
        if transition == "approved":
            return all(event.is_approved for _, events in found for event in events)
        return all(maintenance.state in _REACHED[transition] for maintenance, _ in found)

    async def list_events(self, operation: str) -> list[CoreEvent]:
        """Return the events of an operation."""
        return [event for _, events in await self._fetch(operation) for event in events]

    async def find_shown_event(self, operation: str, vm: str) -> Event | None:
        """Return the event that a VM is shown for an operation now: the one that names the VM, or else the first."""
        ids = {event.id for event in await self.list_events(operation)}
        shown = [event for event in self._lab.get_document(vm).events if event.id in ids]
        return next((event for event in shown if event.affects(vm)), shown[0] if shown else None)

    async def _fetch(self, operation: str) -> list[Announced]:
        return [await self._lab.fetch_maintenance(each) for each in self.maintenance_ids[operation]]
