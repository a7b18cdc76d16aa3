"""Results of actuator calls, and their effect on a maintenance."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from forewarn.core.fast_replace import replace
from forewarn.core.maintenance.decision import Draft
from forewarn.core.maintenance.ending import complete_maintenance, record_impact
from forewarn.core.maintenance.lifecycle import Trigger
from forewarn.core.model import EntryKind, Maintenance

__all__ = ["PAUSE_MIN", "RETRY_MAX", "ActuatorFailure", "Progress", "RetryPolicy", "apply_result", "mark_begun"]

PAUSE_MIN = timedelta(milliseconds=10)
"""Minimum pause between two calls, so that an actuator that keeps asking to be called at once blocks nothing else."""

RETRY_MAX = timedelta(minutes=5)
"""Maximum pause between two calls of an actuator that fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a maintenance.

    Attributes:
        is_impacted: The impact has happened or is happening.
        is_complete: Nothing more will happen.
        check_at: Time of the next call; None to wait until an operator reports completion.
        impact_s: Duration of the impact in seconds; reported once, by an actuator that has measured it.
    """

    is_impacted: bool = False
    is_complete: bool = False
    check_at: datetime | None = None
    impact_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActuatorFailure:
    """A failed call, and its cause.

    Attributes:
        has_begun_nothing: True if it is certain that nothing was begun, so that execution may be requested again.
        is_final: True if nothing is in progress any more, and a retry is useless.
        attempts_min: Minimum number of failed calls, this one included. An actuator that begins, does nothing and asks
            to be called again has answered in between, which would reset the count.
    """

    reason: str
    has_begun_nothing: bool = False
    is_final: bool = False
    attempts_min: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Retry policy for failed calls.

    Attributes:
        attempts_max: Consecutive failed calls after which the maintenance fails.
        pause: Pause before the second call; doubles each time, up to `RETRY_MAX`.
    """

    attempts_max: int = 10
    pause: timedelta = timedelta(seconds=5)

    def compute_pause(self, attempts: int) -> timedelta:
        """Return the pause after so many consecutive failed calls, at least 1."""
        # The exponent is capped, because a large number of attempts would overflow the timedelta.
        factor: int = 2 ** min(attempts - 1, 20)
        return min(self.pause * factor, RETRY_MAX)


def apply_result(
    draft: Draft, maintenance: Maintenance, result: Progress | ActuatorFailure, retry_policy: RetryPolicy
) -> Maintenance:
    """Apply the result of an actuator call to a started maintenance.

    Impact and completion are applied once, however often they are reported (R82).
    """
    if isinstance(result, ActuatorFailure):
        return _apply_failure(draft, maintenance, result, retry_policy)
    if result.is_impacted and maintenance.impacted_at is None:
        maintenance = record_impact(draft, maintenance)
    if result.impact_s is not None:
        _record_measured_impact(draft, maintenance, result.impact_s)
    if result.is_complete:
        return complete_maintenance(draft, replace(maintenance, attempts=0) if maintenance.attempts else maintenance)
    check_at = None if result.check_at is None else max(result.check_at, draft.now + PAUSE_MIN)
    maintenance = replace(maintenance, attempts=0, due_at=check_at)
    draft.put(maintenance)
    return maintenance


def _record_measured_impact(draft: Draft, maintenance: Maintenance, impact_s: float) -> None:
    reason = f"the impact lasted {impact_s:.1f} s; announced duration: {maintenance.duration_text}"
    draft.record(EntryKind.IMPACT_MEASURED, maintenance_id=maintenance.id, reason=reason)


def mark_begun(draft: Draft, maintenance: Maintenance) -> None:
    """Record that an actuator is about to be asked to execute it, so that no other process asks again."""
    draft.put(replace(maintenance, begun_at=draft.now))


def _apply_failure(
    draft: Draft, maintenance: Maintenance, failure: ActuatorFailure, retry_policy: RetryPolicy
) -> Maintenance:
    attempts = max(maintenance.attempts + 1, failure.attempts_min)
    if failure.has_begun_nothing:
        # Otherwise it would only be observed from now on, because execution may have begun.
        maintenance = replace(maintenance, begun_at=None)
    if failure.is_final or attempts >= retry_policy.attempts_max:
        often = "" if failure.is_final else f"the actuator failed {attempts} times; last error: "
        maintenance = replace(maintenance, attempts=attempts)
        return draft.apply_trigger(maintenance, Trigger.FAIL, reason=f"{often}{failure.reason}")
    draft.record(EntryKind.ATTEMPT_FAILED, maintenance_id=maintenance.id, reason=failure.reason)
    waiting = replace(maintenance, attempts=attempts, due_at=draft.now + retry_policy.compute_pause(attempts))
    draft.put(waiting)
    return waiting
