"""Request for maintenance that an operation of a scenario stands for."""

from __future__ import annotations

from datetime import datetime

from forewarn.core.causes import DEFAULT_CAUSE
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EventSource
from forewarn.testing.scenario.scenario_model import HostStep, ScheduleStep, TimelineStep, VmStep

__all__ = ["build_operation_request"]

_CAUSES = {
    "restart": "user-restart",
    "redeploy": "user-redeploy",
    "reimage": "reimage",
    "evict": "spot-eviction",
    "delete": "scale-set-delete",
    "fail_host": "hardware-failure",
    "predict_failure": "predicted-failure",
}


def build_operation_request(step: TimelineStep, now: datetime) -> MaintenanceRequest:
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
