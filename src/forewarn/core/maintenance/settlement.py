"""Automatic steps: announcing queued maintenance when its turn comes, starting maintenance that is ready.

Every command ends here. `settle_maintenances` checks each maintenance in focus, and checks it again after each change
that may concern it, as `_find_concerned` says:

- queued, and no older one excludes it: announced, with its full notice from now on;
- scheduled, and its time has come: started, all its events together (R84); but not while the clock is not trusted.

"Its time" is `get_ready_time`: NotBefore, or once every vote is in, the last approval plus the configured delay (R76,
R83, A24). An event has a vote as long as it is listed; a withdrawn one has none (R70, R86). Even an event approved by
policy is shown as Scheduled for a moment, and does not begin in the quiet hours of that policy.

The audit log names the actor of the command for the maintenance that the command changed, and the service for any
other: an actuator that ends one maintenance has not announced the next.
"""

from __future__ import annotations

from datetime import datetime

from forewarn.core.maintenance.announcement import announce_maintenance
from forewarn.core.maintenance.conflicts import is_held, must_queue
from forewarn.core.maintenance.decision import Draft
from forewarn.core.maintenance.lifecycle import Trigger
from forewarn.core.maintenance.tenancy import PASSED_CAUSES, get_tenant, get_unavailable_max, next_allowed_start
from forewarn.core.model import POLICY, SERVICE, Event, EventType, Maintenance, MaintenanceState
from forewarn.errors import Conflict, IllegalTransition, QuietHoursConflict

__all__ = ["force_start", "get_ready_time", "is_approved_by_all", "settle_maintenances"]


def is_approved_by_all(events: list[Event]) -> bool:
    """Return True if there is at least one vote and none is missing."""
    votes = [event for event in events if event.is_listed]
    return bool(votes) and all(event.is_approved for event in votes)


def get_ready_time(draft: Draft, maintenance: Maintenance) -> datetime:
    """Return the time from which a scheduled maintenance may start, by its notice and votes alone."""
    if maintenance.not_before is None:
        raise IllegalTransition(f"maintenance {maintenance.id} is {maintenance.state} and has no NotBefore")
    events = draft.get_events(maintenance.id)
    if not is_approved_by_all(events):
        return maintenance.not_before
    votes = [event for event in events if event.is_listed]
    by_policy = [event for event in votes if event.approved_by == POLICY]
    if by_policy and maintenance.cause in PASSED_CAUSES:  # never shown as Scheduled (X5)
        return max(event.approved_at for event in votes if event.approved_at is not None)
    agreed_at = max(_get_effective_time(draft, event) for event in votes)
    if by_policy:
        # A policy agrees to a start outside of its quiet hours only. An earlier start needs an approval by a caller.
        policies = [get_tenant(draft, event, maintenance)[1] for event in by_policy]
        agreed_at = (
            next_allowed_start(maintenance, policies, agreed_at, maintenance.not_before) or maintenance.not_before
        )
    # Approvals can only bring the start forward, never delay it past NotBefore.
    return min(maintenance.not_before, agreed_at)


def _get_effective_time(draft: Draft, event: Event) -> datetime:
    """Return the time from which its approval allows a start (A24)."""
    rules = draft.rules
    delay = max(rules.start_delay, rules.policy_delay) if event.approved_by == POLICY else rules.start_delay
    return (event.approved_at or draft.now) + delay


def settle_maintenances(draft: Draft) -> None:
    """Announce and start what is due, oldest first, until nothing changes."""
    authors = draft.take_authors()
    while concerned := _find_concerned(draft, draft.take_changed()):
        for maintenance in sorted(concerned, key=_make_sort_key):
            # Read again: settling an earlier one may have changed it.
            with draft.acting_as(authors.get(maintenance.id, SERVICE)):
                _settle_maintenance(draft, draft.maintenances[maintenance.id])
    # Of a batch of approvals, the next one is not the author of what this one has changed.
    draft.take_authors()


def _find_concerned(draft: Draft, changed: list[Maintenance]) -> list[Maintenance]:
    """Return the maintenances in focus that may have to be announced or started because these have changed.

    An approval must not cost a look at its whole scope: a decision may have hundreds of them.
    """
    if not draft.has_focus:
        return []
    found = {m.id: m for m in changed}
    for maintenance in changed:
        found.update((other.id, other) for other in draft.find_on_same_vms(maintenance))
        if not maintenance.is_active:
            waiting = (m for m in draft.find_neighbours(maintenance) if m.state is MaintenanceState.QUEUED)
            found.update((other.id, other) for other in waiting)
    for scope in {scope for maintenance in changed for scope in _find_coupling_scopes(draft, maintenance)}:
        deletes = draft.find_pending_deletes(scope)
        latest = max((get_ready_time(draft, m) for m in deletes), default=None)
        if draft.deletes_ready_at.get(scope) != latest:
            draft.deletes_ready_at[scope] = latest
            found.update((m.id, m) for m in deletes)
    return [maintenance for maintenance in found.values() if draft.is_in_focus(maintenance)]


def _find_coupling_scopes(draft: Draft, maintenance: Maintenance) -> set[str]:
    """Return the scopes of a delete that couple their deletes.

    Spec: R92
    """
    if maintenance.type is not EventType.TERMINATE:
        return set()
    names = {claim.scope for claim in maintenance.claims if claim.scope is not None}
    return {name for name in names if name in draft.scopes and draft.scopes[name].couples_deletes}


def _make_sort_key(maintenance: Maintenance) -> tuple[datetime, int]:
    """Return a sort key: what fell due first starts first, however late it is."""
    return (maintenance.not_before or maintenance.created_at, maintenance.sequence)


def _settle_maintenance(draft: Draft, maintenance: Maintenance) -> None:
    if maintenance.state is MaintenanceState.QUEUED:
        limits = get_unavailable_max(maintenance, draft.scopes)
        if must_queue(maintenance, draft.iter_neighbours(maintenance), limits):
            return
        try:
            announce_maintenance(draft, maintenance, is_new=False)
        except QuietHoursConflict as error:  # there is no caller to answer; the audit log records it for the requester
            draft.apply_trigger(maintenance, Trigger.CANCEL, reason=error.message)
        return
    if maintenance.state is not MaintenanceState.SCHEDULED:
        return
    due_at = _get_due_time(draft, maintenance)
    # A maintenance that is made and starts in one decision does not depend on the clock.
    may_start = draft.may_start or maintenance.created_at == draft.now
    if due_at is not None and due_at <= draft.now and may_start:
        draft.apply_trigger(maintenance, Trigger.START)  # for all its events at once (R82, R84)
    elif due_at != maintenance.due_at:
        draft.set_due_time(maintenance, due_at)


def _get_due_time(draft: Draft, maintenance: Maintenance) -> datetime | None:
    """Return when the scheduler must check it again; None while it waits for another one to end."""
    at = get_ready_time(draft, maintenance)
    for scope in _find_coupling_scopes(draft, maintenance):
        at = max(at, draft.deletes_ready_at.get(scope) or at)
    # Coupled deletes may hold back an approved start, but not past its own NotBefore (R76, R92).
    at = min(at, maintenance.not_before or at)
    if at <= draft.now and is_held(maintenance, draft.find_on_same_vms(maintenance)):
        # Without a due time the scheduler leaves it alone; the end of the other one settles it, as one on its VMs.
        return None
    return at


def force_start(draft: Draft, maintenance: Maintenance, *, reason: str) -> Maintenance:
    """Start without waiting for votes or NotBefore, by order of an operator (invariant 4 of the design).

    Raises:
        Conflict: It is not scheduled, or another maintenance is in progress on one of its VMs.
    """
    if maintenance.state is MaintenanceState.SCHEDULED and is_held(maintenance, draft.find_on_same_vms(maintenance)):
        msg = f"maintenance {maintenance.id} cannot start: another one is in progress on one of its VMs; wait for it"
        raise Conflict(msg, id=maintenance.id)
    # Even while the clock is not trusted: an operator's command depends on no deadline (ADR 29).
    return draft.apply_trigger(maintenance, Trigger.START, reason=reason)
