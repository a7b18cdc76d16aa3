"""Request for maintenance that an operation of a scenario stands for."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.testing.scenario.scenario_model import HostStep, ScheduleStep, TimelineStep, VmStep
from forewarn.testing.values import build_request

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
    if isinstance(action, ScheduleStep):
        latest_start = None if action.latest_start is None else now + action.latest_start
        return replace(_build_announcement(action), latest_start=latest_start)
    assert isinstance(action, VmStep | HostStep)  # noqa: S101 - all other operations
    is_host = isinstance(action, HostStep)
    return MaintenanceRequest(
        cause=_CAUSES[step.action_name],
        type=action.type if isinstance(action, HostStep) else None,
        notice=action.notice,
        hosts=(action.name,) if is_host else (),
        vms=() if is_host else (action.name,),
        # A scenario may give less than the minimum notice on purpose.
        force_reason="the scenario" if action.notice is not None else None,
    )


def _build_announcement(action: ScheduleStep) -> MaintenanceRequest:
    """Return the request for an announced operation, without its latest start."""
    event_type = action.type.value if action.type is not None else None
    if event_type is None or action.cause is not None:
        return MaintenanceRequest(
            cause=action.cause or "",
            type=action.type,
            source=action.source,
            description=action.description,
            duration_s=action.duration,
            impact=action.turns_out_as,
            notice=action.notice,
            hosts=action.hosts or (),
            vms=action.vms or (),
            force_reason="the scenario" if action.notice is not None else None,
        )
    return build_request(
        event_type,
        vms=action.vms or (),
        hosts=action.hosts or (),
        source=None if action.source is None else action.source.value,
        description=action.description,
        duration_s=action.duration,
        notice=action.notice,
        turns_out_as=None if action.turns_out_as is None else action.turns_out_as.value,
    )
