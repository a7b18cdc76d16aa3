"""End of a maintenance, and its effect on others."""

from __future__ import annotations

from forewarn.core.decision import Draft
from forewarn.core.lifecycle import Trigger
from forewarn.core.model import EntryKind, EventType, Maintenance, MaintenanceState, PowerState
from forewarn.core.service import withdraw
from forewarn.core.value import replace
from forewarn.errors import Conflict, InvalidRequest

__all__ = ["cancel", "complete", "extra_impact", "fail", "impact"]

_POWER_STATE_AFTER = {EventType.PREEMPT: PowerState.DEALLOCATED, EventType.TERMINATE: PowerState.DELETED}
_MOVES_AWAY = frozenset({"user-redeploy", "platform-redeploy"})


def cancel(draft: Draft, maintenance: Maintenance, *, reason: str | None = None) -> Maintenance:
    """Cancel a maintenance before it starts; the impact does not happen (R77).

    Raises:
        Conflict: It has started or ended.
    """
    return draft.step(maintenance, Trigger.CANCEL, reason=reason)


def fail(draft: Draft, maintenance: Maintenance, *, reason: str) -> Maintenance:
    """Fail a maintenance after the actuator gave up; its events are removed, because nothing more will happen (R79)."""
    return draft.step(maintenance, Trigger.FAIL, reason=reason)


def impact(draft: Draft, maintenance: Maintenance, *, reason: str | None = None) -> Maintenance:
    """Record an impact. Impacts happen in Started only, and change no document (R80, R82)."""
    draft.note(EntryKind.IMPACTED, maintenance_id=maintenance.id, reason=reason)
    if maintenance.impacted_at is None:
        maintenance = replace(maintenance, impacted_at=draft.now)
        draft.put(maintenance)
    return maintenance


def extra_impact(draft: Draft, maintenance: Maintenance, *, duration_s: int) -> Maintenance:
    """Record a further impact while Started: in the audit log only, in no document.

    Args:
        draft: The decision.
        maintenance: A started one.
        duration_s: Seconds, at least 0, and shorter than the announced duration if that is known.

    Raises:
        Conflict: It is not started.
        InvalidRequest: The impact would be as long as announced, or longer.

    Spec: R80, R82
    """
    if maintenance.state is not MaintenanceState.STARTED:
        msg = f"maintenance {maintenance.id} is {maintenance.state}: only a started one can have an impact"
        raise Conflict(msg, id=maintenance.id, state=maintenance.state.value)
    if duration_s < 0 or (0 <= maintenance.duration_s <= duration_s):
        msg = f"an impact of {duration_s} s: expected at least 0 and less than the announced {maintenance.duration_s} s"
        raise InvalidRequest(msg, duration_s=duration_s)
    return impact(draft, maintenance, reason=f"further impact of {duration_s} s")


def complete(draft: Draft, maintenance: Maintenance, *, reason: str | None = None) -> Maintenance:
    """Complete a maintenance: its events are removed, which is the signal to recover (R79).

    A completed redeployment makes a predicted failure of the same VM pointless (R72). A VM that was preempted or
    deleted is gone (R74, R90), so maintenance planned for it alone is canceled.

    Raises:
        Conflict: It has not started.
    """
    completed = draft.step(maintenance, Trigger.COMPLETE, reason=reason)
    if completed.cause in _MOVES_AWAY:
        for other in _pending_beside(draft, completed):
            if other.cause == "predicted-failure" and set(other.vms) <= set(completed.vms):
                draft.step(other, Trigger.CANCEL, reason="the VM was redeployed before")
    gone = _POWER_STATE_AFTER.get(completed.type)
    if gone is not None:
        _take_away(draft, completed, gone)
    return completed


def _take_away(draft: Draft, ended: Maintenance, gone: PowerState) -> None:
    """Mark the VMs as gone: cancel what was planned for them alone, and withdraw events about them alone."""
    for name in ended.vms:
        draft.put(replace(draft.vms[name], power_state=gone))
        draft.note(EntryKind.VM_CHANGED, vm=name, maintenance_id=ended.id, reason=gone.value)
    vms = set(ended.vms)
    for other in _pending_beside(draft, ended):
        if not other.hosts and set(other.vms) <= vms:
            draft.step(other, Trigger.CANCEL, reason=f"the VM is {gone}")
            continue
        for event in draft.events_of(other.id):
            if event.is_listed and set(event.resources) <= vms:
                withdraw(draft, event)


def _pending_beside(draft: Draft, ended: Maintenance) -> list[Maintenance]:
    pending = {MaintenanceState.QUEUED, MaintenanceState.SCHEDULED}
    return [other for other in draft.neighbours(ended) if other.state in pending]
