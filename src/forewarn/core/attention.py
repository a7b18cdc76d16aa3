"""Check of one maintenance: record once that a VM has not seen it, or that it is late."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from forewarn.core.decision import Draft
from forewarn.core.look import Look, look_after
from forewarn.core.model import EntryKind, Maintenance, MaintenanceState

__all__ = ["take_look"]


def take_look(draft: Draft, look: Look, asked: Mapping[str, datetime]) -> Look | None:
    """Record in the audit log what is wrong with a maintenance now.

    Args:
        draft: Decision that holds the maintenance and its events.
        look: The check that is due.
        asked: Time of the last known request of each audience.

    Returns:
        The next check; None if none is needed.
    """
    maintenance = draft.maintenances.get(look.maintenance_id)
    if maintenance is None or not maintenance.is_active:
        return None
    alert_thresholds = draft.rules.alert_thresholds
    if maintenance.state is MaintenanceState.SCHEDULED and maintenance.not_before is not None:
        if draft.now < maintenance.not_before:
            _note_unseen(draft, maintenance, look, asked)
        elif _is_late(maintenance.not_before, alert_thresholds.late_start_after, draft.now):
            late = _words(draft.now - maintenance.not_before)
            draft.note(EntryKind.LATE, maintenance_id=maintenance.id, reason=f"due {late} ago, and not started")
    elif maintenance.started_at is not None:
        took = _words(draft.now - maintenance.started_at)
        said = "its duration is unknown" if maintenance.duration_s < 0 else f"announced were {maintenance.duration_s} s"
        draft.note(EntryKind.LATE, maintenance_id=maintenance.id, reason=f"started {took} ago, and not over: {said}")
    return look_after(maintenance, look.announced_at, draft.now, alert_thresholds)


def _note_unseen(draft: Draft, maintenance: Maintenance, look: Look, asked: Mapping[str, datetime]) -> None:
    left = _words((maintenance.not_before or draft.now) - draft.now)
    for event in draft.events_of(maintenance.id):
        seen_at = asked.get(event.audience)
        if event.is_listed and not event.is_approved and (seen_at is None or seen_at < look.announced_at):
            draft.note(
                EntryKind.UNSEEN,
                maintenance_id=maintenance.id,
                event_id=event.id,
                audience=event.audience,
                reason=f"nobody has asked since it was announced; {left} are left",
            )


def _words(span: timedelta) -> str:
    return f"{int(span.total_seconds())} s"


def _is_late(not_before: datetime, after: timedelta | None, now: datetime) -> bool:
    return after is not None and now >= not_before + after
