"""Check of one maintenance: record once that a VM has not seen it, or that it is late."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from forewarn.core.maintenance.alert_schedule import AlertCheck, find_unseen_events, get_next_check, is_late
from forewarn.core.maintenance.decision import Draft
from forewarn.core.model import EntryKind, Maintenance, MaintenanceState

__all__ = ["run_alert_check"]


def run_alert_check(draft: Draft, check: AlertCheck, last_polled_at: Mapping[str, datetime]) -> AlertCheck | None:
    """Record in the audit log what is wrong with a maintenance now, and return its next check; None if none is needed.

    `last_polled_at` has the time of the last known request of each audience.
    """
    maintenance = draft.maintenances.get(check.maintenance_id)
    # It may have ended or been deleted since the check was scheduled.
    if maintenance is None or not maintenance.is_active:
        return None
    alert_thresholds = draft.rules.alert_thresholds
    if maintenance.state is MaintenanceState.SCHEDULED and maintenance.not_before is not None:
        # Before NotBefore only the check for unseen events can be due, and afterwards only the one for a late start.
        if draft.now < maintenance.not_before:
            _record_unseen_events(draft, maintenance, last_polled_at)
        elif is_late(maintenance, draft.now, alert_thresholds):
            late = _format_seconds(draft.now - maintenance.not_before)
            draft.record(EntryKind.LATE, maintenance_id=maintenance.id, reason=f"not started {late} after NotBefore")
    # The impact may have begun since the check was scheduled, and the announced duration counts from there.
    elif maintenance.started_at is not None and is_late(maintenance, draft.now, alert_thresholds):
        took = _format_seconds(draft.now - maintenance.started_at)
        reason = f"not completed {took} after the start; announced duration: {maintenance.duration_text}"
        draft.record(EntryKind.LATE, maintenance_id=maintenance.id, reason=reason)
    return get_next_check(maintenance, draft.now, alert_thresholds)


def _record_unseen_events(draft: Draft, maintenance: Maintenance, last_polled_at: Mapping[str, datetime]) -> None:
    left = _format_seconds((maintenance.not_before or draft.now) - draft.now)
    events, thresholds = draft.get_events(maintenance.id), draft.rules.alert_thresholds
    for event in find_unseen_events(maintenance, events, last_polled_at.get, draft.now, thresholds):
        reason = f"not polled since the announcement; {left} left until NotBefore"
        draft.record_event(EntryKind.UNSEEN, event, reason=reason)


def _format_seconds(span: timedelta) -> str:
    return f"{int(span.total_seconds())} s"
