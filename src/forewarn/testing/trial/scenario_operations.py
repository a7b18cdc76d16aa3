"""Operations that a scenario has begun, the requests that they stand for, and what has become of them."""

from __future__ import annotations

from datetime import datetime

from forewarn.client import Event
from forewarn.core.causes import DEFAULT_CAUSE
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import Event as CoreEvent
from forewarn.core.model import EventSource, MaintenanceState
from forewarn.testing.lab import Announced, Lab
from forewarn.testing.scenario.scenario_model import HostStep, ScheduleStep, TimelineStep, VmStep

__all__ = ["ScenarioOperations"]

_CAUSES = {
    "restart": "user-restart",
    "redeploy": "user-redeploy",
    "reimage": "reimage",
    "evict": "spot-eviction",
    "delete": "scale-set-delete",
    "fail_host": "hardware-failure",
    "predict_failure": "predicted-failure",
}
_REACHED = {
    "scheduled": frozenset(MaintenanceState) - {MaintenanceState.QUEUED},
    "started": frozenset({MaintenanceState.STARTED, MaintenanceState.COMPLETED, MaintenanceState.FAILED}),
    "completed": frozenset({MaintenanceState.COMPLETED}),
    "canceled": frozenset({MaintenanceState.CANCELED}),
}


class ScenarioOperations:
    """Operations of one run of a scenario, by the names that its steps use.

    Attributes:
        lab: Service that the scenario runs against.
        maintenance_ids: Ids of the maintenances that each operation created; a second one of a name replaces the first.
    """

    def __init__(self, lab: Lab) -> None:
        self.maintenance_ids: dict[str, list[str]] = {}
        self.lab = lab

    async def begin(self, step: TimelineStep) -> None:
        """Carry out a step that begins an operation."""
        assert step.operation_begun is not None  # noqa: S101 - the caller has checked its kind
        made = await self.lab.carry_out(_build_request(step, self.lab.clock.now()))
        self.maintenance_ids[step.operation_begun] = [maintenance.id for maintenance, _ in made]

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
        shown = [event for event in self.lab.get_document(vm).events if event.id in ids]
        return next((event for event in shown if event.affects(vm)), shown[0] if shown else None)

    async def _fetch(self, operation: str) -> list[Announced]:
        return [await self.lab.fetch_maintenance(each) for each in self.maintenance_ids[operation]]


def _build_request(step: TimelineStep, now: datetime) -> MaintenanceRequest:
    """Return the request for an operation.

    Args:
        step: Step that begins the operation.
        now: Time from which its latest start counts.
    """
    action = step.action
    assert isinstance(action, ScheduleStep | VmStep | HostStep)  # noqa: S101 - no other step begins an operation
    # A scenario may give less than the minimum notice on purpose.
    force_reason = "the scenario" if action.notice is not None else None
    if isinstance(action, ScheduleStep):
        cause, source = action.cause, action.source
        if cause is None:
            assert action.type is not None  # noqa: S101 - the model requires a type or a cause
            source = source or EventSource.PLATFORM
            cause = DEFAULT_CAUSE[action.type, source]
        return MaintenanceRequest(
            cause=cause,
            type=action.type,
            source=source,
            description=action.description,
            duration_s=action.duration,
            impact=action.impact,
            notice=action.notice,
            hosts=action.hosts or (),
            vms=action.vms or (),
            force_reason=force_reason,
            latest_start=None if action.latest_start is None else now + action.latest_start,
        )
    is_host = isinstance(action, HostStep)
    return MaintenanceRequest(
        cause=_CAUSES[step.action_name],
        type=action.type if isinstance(action, HostStep) else None,
        notice=action.notice,
        hosts=(action.name,) if is_host else (),
        vms=() if is_host else (action.name,),
        force_reason=force_reason,
    )
