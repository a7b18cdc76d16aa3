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
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._maintenance_ids: dict[str, list[str]] = {}

    def add(self, operation: str, maintenance_ids: list[str]) -> None:
        """Add an operation with the maintenances that it created; a second one of that name replaces the first."""
        self._maintenance_ids[operation] = maintenance_ids

    def get_maintenance_ids(self, operation: str) -> list[str]:
        """Return the ids of the maintenances of an operation."""
        return self._maintenance_ids[operation]

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
        return [await self._lab.fetch_maintenance(each) for each in self._maintenance_ids[operation]]
