"""What follows by itself: announcing what has waited its turn, starting what is ready.

Every command ends here. `settle` looks at each maintenance in focus until nothing changes any more:

- queued, and nobody older excludes it: announced, with its full notice from now on;
- scheduled, and its time has come: started, all its events together (R84); but not while the clock that says so is not
  trusted.

"Its time" is `ready_at`: NotBefore, or once every vote is in, the last approval plus the configured delay (R76, R83,
A24). An event has a vote as long as it is listed; a withdrawn one has none (R70, R86). What a policy has approved is
shown as Scheduled for a moment all the same, and does not begin in the quiet hours of that policy.
"""

from __future__ import annotations

from datetime import datetime

from forewarn.core.announcement import announce
from forewarn.core.conflicts import coupled_deletes, is_held, must_queue
from forewarn.core.decision import Draft
from forewarn.core.lifecycle import Trigger
from forewarn.core.model import POLICY, Event, Maintenance, MaintenanceState
from forewarn.core.tenancy import PASSED_CAUSES, next_allowed_start, tenant_of
from forewarn.core.value import replace
from forewarn.errors import Conflict, IllegalTransition, QuietHoursConflict

__all__ = ["force_start", "is_approved_by_all", "ready_at", "settle", "start"]


def is_approved_by_all(events: list[Event]) -> bool:
    """Whether there is a vote, and none is missing."""
    votes = [event for event in events if event.is_listed]
    return bool(votes) and all(event.is_approved for event in votes)


def ready_at(draft: Draft, maintenance: Maintenance) -> datetime:
    """The moment from which a scheduled maintenance may start, as far as notice and votes go."""
    if maintenance.not_before is None:
        msg = f"maintenance {maintenance.id} is {maintenance.state} and has no NotBefore"
        raise IllegalTransition(msg)
    events = draft.events_of(maintenance.id)
    if not is_approved_by_all(events):
        return maintenance.not_before
    votes = [event for event in events if event.is_listed]
    by_policy = [event for event in votes if event.approved_by == POLICY]
    if by_policy and maintenance.cause in PASSED_CAUSES:  # never shown as Scheduled (X5)
        return max(event.approved_at for event in votes if event.approved_at is not None)
    agreed_at = max(_counts_from(draft, event) for event in votes)
    if by_policy:
        # A policy agrees to what is outside of its quiet hours. Who wants it at once, approves by hand.
        policies = [tenant_of(draft, event, maintenance)[1] for event in by_policy]
        agreed_at = (
            next_allowed_start(maintenance, policies, agreed_at, maintenance.not_before) or maintenance.not_before
        )
    return min(maintenance.not_before, agreed_at)


def _counts_from(draft: Draft, event: Event) -> datetime:
    """From when its approval lets it start (A24)."""
    rules = draft.rules
    delay = max(rules.start_delay, rules.policy_delay) if event.approved_by == POLICY else rules.start_delay
    return (event.approved_at or draft.now) + delay


def settle(draft: Draft) -> None:
    """Announce and start what is due, oldest first, until nothing changes."""
    has_changed = True
    while has_changed:
        has_changed = False
        for maintenance in sorted((draft.maintenances[i] for i in draft.focus), key=_order):
            has_changed |= _settle_one(draft, draft.maintenances[maintenance.id])


def _order(maintenance: Maintenance) -> tuple[datetime, int]:
    """What fell due first starts first, however late we are."""
    return (maintenance.not_before or maintenance.created_at, maintenance.sequence)


def _settle_one(draft: Draft, maintenance: Maintenance) -> bool:
    if maintenance.state is MaintenanceState.QUEUED and not must_queue(maintenance, draft.neighbours(maintenance)):
        try:
            announce(draft, maintenance, is_new=False)
        except QuietHoursConflict as error:  # nobody is there to be told; whoever asked for it finds it in the ledger
            draft.step(maintenance, Trigger.CANCEL, reason=error.message)
        return True
    if maintenance.state is not MaintenanceState.SCHEDULED:
        return False
    due_at = _due_at(draft, maintenance)
    # What is made and starts in one decision has waited for no clock.
    may_start = draft.may_start or maintenance.created_at == draft.now
    if due_at is not None and due_at <= draft.now and may_start:
        start(draft, maintenance)
        return True
    if due_at != maintenance.due_at:
        draft.put(replace(maintenance, due_at=due_at))
    return False


def _due_at(draft: Draft, maintenance: Maintenance) -> datetime | None:
    """When the scheduler must look at it again; None while it waits for another one to end."""
    neighbours = draft.neighbours(maintenance)
    coupled = {name for name, scope in draft.scopes.items() if scope.couples_deletes}
    others = coupled_deletes(maintenance, neighbours, coupled)
    at = max(ready_at(draft, m) for m in (maintenance, *others))
    at = min(at, maintenance.not_before or at)
    if at <= draft.now and is_held(maintenance, neighbours):
        return None
    return at


def start(draft: Draft, maintenance: Maintenance, *, reason: str | None = None) -> Maintenance:
    """Scheduled to Started, for all its events at once (R82, R84)."""
    return draft.step(maintenance, Trigger.START, reason=reason)


def force_start(draft: Draft, maintenance: Maintenance, *, reason: str) -> Maintenance:
    """Start without waiting for votes or NotBefore, because an operator says so (invariant 4 of the design).

    Raises:
        Conflict: It is not scheduled, or another maintenance is going on at one of its VMs.
    """
    if maintenance.state is MaintenanceState.SCHEDULED and is_held(maintenance, draft.neighbours(maintenance)):
        msg = f"maintenance {maintenance.id} shares a VM with a started one: wait until that is over"
        raise Conflict(msg, id=maintenance.id)
    return start(draft, maintenance, reason=reason)
