"""Lifecycle of a rollout and of its hosts: the only place that changes their states.

As in `core.maintenance.lifecycle`, every change is a row of a table, and a caller names the trigger, never the new
state.

::

    (none) --create--> planned --start--> running --complete--> completed
                                          running --fail--> failed
                       running --pause--> paused --resume--> running
                       paused --complete--> completed, --fail--> failed     (nothing was left to do)
    planned --abort--> aborted
    running, paused --abort--> aborting --end--> aborted

    a host: (none) --create--> pending --schedule--> waiting --start--> started --finish--> done
            pending, waiting, started --fail--> failed, --skip--> skipped
            waiting --finish--> done     (it started and ended between two checks)

Invariants, checked at each step:

- started_at is set from running on, ended_at at the end only; when a rollout has ended every host is over, and none is
  open;
- a host that waits or has started is open, one that is pending, done or skipped is not; ended_at is set exactly when
  the host is over;
- nothing leaves a final state.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from forewarn.core.fast_replace import replace
from forewarn.core.rollout.rollout import (
    ENDED_STATES,
    OVER_STATES,
    Rollout,
    RolloutHost,
    RolloutHostState,
    RolloutState,
)
from forewarn.errors import Conflict, IllegalTransition

__all__ = [
    "HOST_TRANSITIONS",
    "TRANSITIONS",
    "HostTrigger",
    "RolloutTrigger",
    "apply_host_trigger",
    "apply_rollout_trigger",
    "check_host",
    "check_rollout",
]


class RolloutTrigger(StrEnum):
    """Trigger of a transition of a rollout."""

    CREATE = "create"
    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    ABORT = "abort"
    END = "end"
    COMPLETE = "complete"
    FAIL = "fail"


class HostTrigger(StrEnum):
    """Trigger of a transition of a host."""

    CREATE = "create"
    SCHEDULE = "schedule"
    START = "start"
    FINISH = "finish"
    FAIL = "fail"
    SKIP = "skip"


_R = RolloutState
_T = RolloutTrigger

TRANSITIONS: dict[tuple[RolloutState | None, RolloutTrigger], RolloutState] = {
    (None, _T.CREATE): _R.PLANNED,
    (_R.PLANNED, _T.START): _R.RUNNING,
    (_R.PLANNED, _T.ABORT): _R.ABORTED,
    (_R.RUNNING, _T.PAUSE): _R.PAUSED,
    (_R.RUNNING, _T.ABORT): _R.ABORTING,
    (_R.RUNNING, _T.COMPLETE): _R.COMPLETED,
    (_R.RUNNING, _T.FAIL): _R.FAILED,
    (_R.PAUSED, _T.RESUME): _R.RUNNING,
    (_R.PAUSED, _T.ABORT): _R.ABORTING,
    (_R.PAUSED, _T.COMPLETE): _R.COMPLETED,
    (_R.PAUSED, _T.FAIL): _R.FAILED,
    (_R.ABORTING, _T.END): _R.ABORTED,
}
"""Next state of a rollout by state and trigger."""

_H = RolloutHostState

HOST_TRANSITIONS: dict[tuple[RolloutHostState | None, HostTrigger], RolloutHostState] = {
    (None, HostTrigger.CREATE): _H.PENDING,
    (_H.PENDING, HostTrigger.SCHEDULE): _H.WAITING,
    # Its maintenance was refused, so the host never waited.
    (_H.PENDING, HostTrigger.FAIL): _H.FAILED,
    (_H.PENDING, HostTrigger.SKIP): _H.SKIPPED,
    (_H.WAITING, HostTrigger.START): _H.STARTED,
    (_H.WAITING, HostTrigger.FINISH): _H.DONE,
    (_H.WAITING, HostTrigger.FAIL): _H.FAILED,
    (_H.WAITING, HostTrigger.SKIP): _H.SKIPPED,
    (_H.STARTED, HostTrigger.FINISH): _H.DONE,
    (_H.STARTED, HostTrigger.FAIL): _H.FAILED,
    # Possible with several maintenances: one has started, and another one was canceled.
    (_H.STARTED, HostTrigger.SKIP): _H.SKIPPED,
}
"""Next state of a host by state and trigger."""

_HINTS = {
    _T.START: "only a planned one can be started",
    _T.PAUSE: "only a running one can be paused",
    _T.RESUME: "only a paused one can be resumed",
    _T.ABORT: "it has ended or is being aborted already",
}
"""Hints for operators, by trigger, for commands that the state does not allow."""

_BEGUN = frozenset({_R.RUNNING, _R.PAUSED, _R.ABORTING, _R.COMPLETED, _R.FAILED})


def apply_rollout_trigger(
    rollout: Rollout, trigger: RolloutTrigger, now: datetime, *, reason: str | None = None
) -> Rollout:
    """Take one transition of a rollout.

    Without a reason the old one is cleared, except that an aborted rollout keeps that of the abort.

    Raises:
        Conflict: The operator asked for something that this state does not allow.
        IllegalTransition: Any other missing transition, or hosts that do not fit the new state; a bug.
    """
    target = TRANSITIONS.get((rollout.state, trigger))
    if target is None:
        hint = _HINTS.get(trigger, f"{trigger} is not possible")
        msg = f"rollout {rollout.spec.name!r} is {rollout.state}: {hint}"
        if trigger in _HINTS:
            raise Conflict(msg, rollout=rollout.spec.name, state=rollout.state.value)
        raise IllegalTransition(msg)
    changed = replace(
        rollout,
        state=target,
        started_at=now if trigger is _T.START else rollout.started_at,
        ended_at=now if target in ENDED_STATES else None,
        reason=reason or (rollout.reason if target is _R.ABORTED else None),
    )
    check_rollout(changed)
    return changed


def apply_host_trigger(
    host: RolloutHost,
    trigger: HostTrigger,
    now: datetime,
    *,
    is_open: bool = False,
    reason: str | None = None,
) -> RolloutHost:
    """Take one transition of a host; see `RolloutHost` for `is_open` and `reason`.

    Raises:
        IllegalTransition: There is no such transition, or the host does not fit its new state; a bug.
    """
    target = HOST_TRANSITIONS.get((host.state, trigger))
    if target is None:
        raise IllegalTransition(f"host {host.name} of a rollout is {host.state}: {trigger} is not possible")
    changed = replace(
        host,
        state=target,
        is_open=is_open,
        scheduled_at=now if trigger is HostTrigger.SCHEDULE else host.scheduled_at,
        ended_at=now if target in OVER_STATES else None,
        reason=reason,
    )
    check_host(changed)
    return changed


def check_rollout(rollout: Rollout) -> None:
    """Raise `IllegalTransition` if a rollout contradicts its state."""
    is_wrong = (
        (rollout.state in ENDED_STATES) != (rollout.ended_at is not None)
        or (rollout.state in _BEGUN and rollout.started_at is None)
        or (rollout.state is _R.PLANNED and rollout.started_at is not None)
        or (rollout.is_ended and any(host.is_open or not host.is_over for host in rollout.hosts))
        or (rollout.state is _R.COMPLETED and rollout.failure_count > 0)
    )
    if is_wrong:
        raise IllegalTransition(f"rollout {rollout.id} has hosts or times that do not fit its state {rollout.state}")


_OPEN = {_H.PENDING: False, _H.WAITING: True, _H.STARTED: True, _H.DONE: False, _H.SKIPPED: False}
"""True for states in which a host is open. A failed host may be either."""


def check_host(host: RolloutHost) -> None:
    """Raise `IllegalTransition` if a host contradicts its state."""
    is_wrong = (
        host.is_open != _OPEN.get(host.state, host.is_open)
        or (host.ended_at is not None) != host.is_over
        or (host.is_open and host.scheduled_at is None)
    )
    if is_wrong:
        raise IllegalTransition(f"host {host.name} of a rollout has values that do not fit its state {host.state}")
