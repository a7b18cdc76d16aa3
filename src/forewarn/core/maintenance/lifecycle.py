"""Lifecycle of a maintenance and of its events: the only place that changes a state.

Theory
======

There is one state machine, that of a maintenance. Its events have no state: what an event shows follows from the
maintenance's state (`EVENT_STATUS`) and from whether it is still listed. So the events of all tenants of a host become
Started together because there is nothing that could make them differ (R84), and no event can go back (R75).

Two rules:

1. Every change of a state is a row of `TRANSITIONS`. Any other change is refused, or is a bug.
2. A caller names the trigger, never the new state.

::

    (none) --announce--> scheduled --start--> started --complete--> completed
    (none) --enqueue---> queued --announce--> scheduled     started --fail--> failed
    (none) --strike----> started
    queued, scheduled --cancel--> canceled

Invariants, checked at each step by `check_invariants`:

- scheduled and later states have a NotBefore, queued has none; started_at is set from started on, ended_at at the end
  only;
- a start is at or after NotBefore, unless every vote is in, or it was forced with a reason (invariant 4 of the
  design);
- nothing leaves a final state.

Spec: R35, R75 to R79
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from forewarn.core.fast_replace import replace
from forewarn.core.model import ACTIVE_STATES, EntryKind, Event, EventStatus, Maintenance, MaintenanceState
from forewarn.errors import Conflict, IllegalTransition

__all__ = [
    "EVENT_STATUS",
    "TRANSITIONS",
    "Trigger",
    "apply_trigger",
    "check_invariants",
    "get_event_status",
    "is_allowed",
]


class Trigger(StrEnum):
    """Trigger of a transition."""

    ENQUEUE = "enqueue"
    ANNOUNCE = "announce"
    STRIKE = "strike"
    START = "start"
    CANCEL = "cancel"
    COMPLETE = "complete"
    FAIL = "fail"


_S = MaintenanceState

TRANSITIONS: dict[tuple[MaintenanceState | None, Trigger], MaintenanceState] = {
    (None, Trigger.ENQUEUE): _S.QUEUED,
    (None, Trigger.ANNOUNCE): _S.SCHEDULED,
    (None, Trigger.STRIKE): _S.STARTED,
    (_S.QUEUED, Trigger.ANNOUNCE): _S.SCHEDULED,
    (_S.QUEUED, Trigger.CANCEL): _S.CANCELED,
    (_S.SCHEDULED, Trigger.START): _S.STARTED,
    (_S.SCHEDULED, Trigger.CANCEL): _S.CANCELED,
    # There is no cancel from here: the impact may have happened already (R82).
    (_S.STARTED, Trigger.COMPLETE): _S.COMPLETED,
    (_S.STARTED, Trigger.FAIL): _S.FAILED,
}
"""Next state by state and trigger. The diagram in the docs is drawn from this table."""

_BEGUN = frozenset({_S.STARTED, _S.COMPLETED, _S.FAILED})
_ANNOUNCED = _BEGUN | {_S.SCHEDULED}

EVENT_STATUS = {
    _S.SCHEDULED: EventStatus.SCHEDULED,
    _S.STARTED: EventStatus.STARTED,
    _S.COMPLETED: EventStatus.COMPLETED,
    _S.CANCELED: EventStatus.CANCELED,
    _S.FAILED: EventStatus.FAILED,
}
"""Status shown by the events of a maintenance in that state. A queued maintenance has no events."""

AUDIT_LOG_KIND = {state: EntryKind(state.value) for state in MaintenanceState}
"""Audit log entry recorded when a state is reached."""


def get_event_status(event: Event, maintenance: Maintenance) -> EventStatus:
    """Return the status that `event` shows, given its maintenance. Spec: R35, R70, X4."""
    if not event.is_listed and maintenance.is_active:
        return EventStatus.WITHDRAWN
    return EVENT_STATUS[maintenance.state]


def is_allowed(state: MaintenanceState, trigger: Trigger) -> bool:
    """Return True if the table has that transition."""
    return (state, trigger) in TRANSITIONS


def apply_trigger(
    maintenance: Maintenance, state: MaintenanceState | None, trigger: Trigger, now: datetime
) -> Maintenance:
    """Take one transition from `state` (None: newly created), and set the times that belong to the new state.

    Raises:
        Conflict: The operator asked for something that this state does not allow (cancel or start in the wrong state).
        IllegalTransition: Any other missing transition; a bug.
    """
    target = TRANSITIONS.get((state, trigger))
    if target is None:
        msg = f"maintenance {maintenance.id} is {state}: {_HINTS.get(trigger, f'{trigger} is not possible')}"
        # Only these triggers come from an operator, so for any other one the program is at fault.
        if trigger in _HINTS:
            raise Conflict(msg, id=maintenance.id, state=str(state))
        raise IllegalTransition(msg)
    if target is _S.STARTED:  # its actuator is due at once
        # Maintenance without notice was never scheduled, so its start becomes its NotBefore.
        not_before = maintenance.not_before or now
        changed = replace(maintenance, state=target, started_at=now, not_before=not_before, due_at=now)
    elif target not in ACTIVE_STATES:
        # Without a due time, the scheduler never loads it again.
        changed = replace(maintenance, state=target, ended_at=now, due_at=None)
    else:
        changed = replace(maintenance, state=target)
    check_invariants(changed)
    return changed


_HINTS = {
    Trigger.CANCEL: "only a queued or scheduled one can be canceled",
    Trigger.START: "only a scheduled one can be started",
    Trigger.COMPLETE: "only a started one can be completed",
}


def check_invariants(maintenance: Maintenance) -> None:
    """Raise `IllegalTransition` if the fields contradict the state."""
    state = maintenance.state
    is_wrong = (
        (state is _S.QUEUED and maintenance.not_before is not None)
        or (state in _ANNOUNCED and maintenance.not_before is None)
        or (state in _BEGUN) != (maintenance.started_at is not None)
        or (state in ACTIVE_STATES) != (maintenance.ended_at is None)
    )
    if is_wrong:
        raise IllegalTransition(f"maintenance {maintenance.id} has times that do not fit its state {state}")
