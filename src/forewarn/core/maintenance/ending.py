"""End of a maintenance, and its effect on others."""

from __future__ import annotations

from forewarn.core.fast_replace import replace
from forewarn.core.maintenance.decision import Draft
from forewarn.core.maintenance.enablement import withdraw_event
from forewarn.core.maintenance.lifecycle import Trigger
from forewarn.core.model import SERVICE, EntryKind, EventType, Maintenance, MaintenanceState, PowerState
from forewarn.errors import Conflict, InvalidRequest

__all__ = ["complete_maintenance", "record_extra_impact", "record_impact"]

_POWER_STATE_AFTER = {EventType.PREEMPT: PowerState.DEALLOCATED, EventType.TERMINATE: PowerState.DELETED}
_MOVES_AWAY = frozenset({"user-redeploy", "platform-redeploy"})


def record_impact(draft: Draft, maintenance: Maintenance, *, reason: str | None = None) -> Maintenance:
    """Record an impact. Impacts happen in Started only, and change no document (R80, R82)."""
    draft.record(EntryKind.IMPACTED, maintenance_id=maintenance.id, reason=reason)
    # Later impacts keep the time of the first, from which the end is estimated.
    if maintenance.impacted_at is None:
        maintenance = replace(maintenance, impacted_at=draft.now)
        draft.put(maintenance)
    return maintenance


def record_extra_impact(draft: Draft, maintenance: Maintenance, *, duration_s: int) -> Maintenance:
    """Record a further impact while Started: in the audit log only, in no document.

    Raises:
        Conflict: It is not started.
        InvalidRequest: The impact would be negative, or as long as announced, or longer.

    Spec: R80, R82
    """
    if maintenance.state is not MaintenanceState.STARTED:
        msg = f"maintenance {maintenance.id} is {maintenance.state}: only a started one can have an impact"
        raise Conflict(msg, id=maintenance.id, state=maintenance.state.value)
    if duration_s < 0 or (0 <= maintenance.duration_s <= duration_s):
        announced_s = maintenance.duration_s
        msg = f"invalid impact of {duration_s} s: expected at least 0 and less than the announced {announced_s} s"
        raise InvalidRequest(msg, duration_s=duration_s)
    return record_impact(draft, maintenance, reason=f"further impact of {duration_s} s")


def complete_maintenance(draft: Draft, maintenance: Maintenance) -> Maintenance:
    """Complete a maintenance: its events are removed, which is the signal to recover (R79).

    A completed redeployment makes a predicted failure of the same VM pointless (R72). A VM that was preempted or
    deleted is gone (R74, R90), so maintenance planned for it alone is canceled.

    Raises:
        Conflict: It has not started.
    """
    completed = draft.apply_trigger(maintenance, Trigger.COMPLETE)
    if completed.cause in _MOVES_AWAY:
        with draft.acting_as(SERVICE):
            _cancel_predicted_failures(draft, completed)
    gone = _POWER_STATE_AFTER.get(completed.type)
    if gone is not None:
        _mark_vms_gone(draft, completed, gone)
    return completed


def _cancel_predicted_failures(draft: Draft, redeployment: Maintenance) -> None:
    for other in _find_pending_neighbours(draft, redeployment):
        # Only if all its VMs have moved: any other is still on the failing host.
        if other.cause == "predicted-failure" and set(other.vms) <= set(redeployment.vms):
            draft.apply_trigger(other, Trigger.CANCEL, reason="the VM was redeployed before")


def _mark_vms_gone(draft: Draft, ended: Maintenance, gone: PowerState) -> None:
    """Mark the VMs as gone: cancel what was planned for them alone, and withdraw events about them alone."""
    # The VMs are marked first, so that no later step of this decision announces anything for them.
    for name in ended.vms:
        draft.put(replace(draft.vms[name], power_state=gone))
        draft.record(EntryKind.VM_CHANGED, vm=name, maintenance_id=ended.id, reason=gone.value)
    with draft.acting_as(SERVICE):
        _cancel_for_gone_vms(draft, ended, gone)


def _cancel_for_gone_vms(draft: Draft, ended: Maintenance, gone: PowerState) -> None:
    vms = set(ended.vms)
    for other in _find_pending_neighbours(draft, ended):
        # Maintenance of a whole host is still needed when its VMs are gone.
        if not other.hosts and set(other.vms) <= vms:
            draft.apply_trigger(other, Trigger.CANCEL, reason=f"the VM is {gone}")
            continue
        for event in draft.get_events(other.id):
            if event.is_listed and set(event.resources) <= vms:
                withdraw_event(draft, event)


def _find_pending_neighbours(draft: Draft, ended: Maintenance) -> list[Maintenance]:
    pending = {MaintenanceState.QUEUED, MaintenanceState.SCHEDULED}
    return [other for other in draft.find_neighbours(ended) if other.state in pending]
