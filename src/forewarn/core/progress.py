"""What an actuator answers, and what that does to a maintenance."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from forewarn.core.decision import Draft
from forewarn.core.ending import complete, fail, impact
from forewarn.core.model import EntryKind, Maintenance
from forewarn.core.value import replace

__all__ = ["PAUSE_MIN", "RETRY_MAX", "Failure", "Progress", "Retry", "advance", "claim"]

PAUSE_MIN = timedelta(milliseconds=10)
"""Least pause between two calls: an actuator that says "now" again and again must not hold up everything else."""

RETRY_MAX = timedelta(minutes=5)
"""Longest pause between two calls of an actuator that fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a maintenance is.

    Attributes:
        is_impacted: The impact has happened or is happening.
        is_complete: Nothing more will happen.
        check_at: When to ask again; None: not before an operator says that it is complete.
        impact_s: How many seconds the impact has lasted; said once, by an actuator that has measured it.
    """

    is_impacted: bool = False
    is_complete: bool = False
    check_at: datetime | None = None
    impact_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A call that failed, and why.

    Attributes:
        has_begun_nothing: It is sure that nothing was begun, so that it may be told to execute again.
        is_final: Nothing goes on any more, and to ask again is of no use.
        tries: Least number of failed calls that this is the last of. An actuator that begins, does nothing and asks to
            be called again has answered in between, which would set the count back.
    """

    reason: str
    has_begun_nothing: bool = False
    is_final: bool = False
    tries: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often and how soon a failed call is repeated.

    Attributes:
        attempts_max: Failed calls in a row until the maintenance has failed.
        pause: Before the second call; doubles each time, up to `RETRY_MAX`.
    """

    attempts_max: int = 10
    pause: timedelta = timedelta(seconds=5)


def advance(draft: Draft, maintenance: Maintenance, result: Progress | Failure, retry: Retry) -> Maintenance:
    """Take over what an actuator answered about a started maintenance.

    Impact and completion are taken over once, however often they are reported (R82).
    """
    if isinstance(result, Failure):
        return _after_failure(draft, maintenance, result, retry)
    if result.is_impacted and maintenance.impacted_at is None:
        maintenance = impact(draft, maintenance)
    if result.impact_s is not None:
        _note_impact(draft, maintenance, result.impact_s)
    if result.is_complete:
        return complete(draft, replace(maintenance, attempts=0) if maintenance.attempts else maintenance)
    check_at = None if result.check_at is None else max(result.check_at, draft.now + PAUSE_MIN)
    maintenance = replace(maintenance, attempts=0, due_at=check_at)
    draft.put(maintenance)
    return maintenance


def _note_impact(draft: Draft, maintenance: Maintenance, impact_s: float) -> None:
    said = "unknown" if maintenance.duration_s < 0 else f"{maintenance.duration_s} s"
    reason = f"the impact lasted {impact_s:.1f} s; announced was {said}"
    draft.note(EntryKind.IMPACT_MEASURED, maintenance_id=maintenance.id, reason=reason)


def claim(draft: Draft, maintenance: Maintenance) -> None:
    """Note that an actuator is going to be told to execute it, so that nobody else tells it again."""
    draft.put(replace(maintenance, begun_at=draft.now))


def _after_failure(draft: Draft, maintenance: Maintenance, failure: Failure, retry: Retry) -> Maintenance:
    attempts = max(maintenance.attempts + 1, failure.tries)
    if failure.has_begun_nothing:
        maintenance = replace(maintenance, begun_at=None)
    if failure.is_final or attempts >= retry.attempts_max:
        often = "" if failure.is_final else f"the actuator failed {attempts} times, at last: "
        return fail(draft, replace(maintenance, attempts=attempts), reason=f"{often}{failure.reason}")
    pause = min(retry.pause * 2 ** min(attempts - 1, 20), RETRY_MAX)
    draft.note(EntryKind.ATTEMPT_FAILED, maintenance_id=maintenance.id, reason=failure.reason)
    waiting = replace(maintenance, attempts=attempts, due_at=draft.now + pause)
    draft.put(waiting)
    return waiting
