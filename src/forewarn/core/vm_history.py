"""History of one VM: a maintenance, its event and its audit log entries, combined.

Everything comes from records made at the time. A value that was not recorded is None.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from forewarn.core.model import AuditEntry, Claim, EntryKind, Event, Maintenance

__all__ = ["RecordedApproval", "VmHistoryItem", "build_history_item"]

# The measured time is stored in the reason of the entry only.
_MEASURED = re.compile(r"the impact lasted (\d+(?:\.\d+)?) s")
_ENDS = frozenset({EntryKind.COMPLETED, EntryKind.CANCELED, EntryKind.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedApproval:
    """An approval of the VM's event.

    Attributes:
        by: ``vm:NAME``, ``operator:NAME`` or ``policy``.
        source_address: Source address of the request; None unless a VM sent it.
        api_version: API version of the request; None unless a VM sent it.
    """

    at: datetime
    by: str
    source_address: str | None = None
    api_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VmHistoryItem:
    """One maintenance in the life of one VM.

    Attributes:
        claim: The VM as it was when the maintenance was made.
        event: The event that named it; None if its audience got none.
        requested_by: Actor that requested the maintenance.
        announced_at: Time at which it left the queue and its notice began; None if it never did.
        notice: Time from the announcement to NotBefore; None if it was not announced, or had happened already.
        approved: Approval of the event.
        others_pending: Number of other events of the maintenance without approval when it started or ended, or by now.
        start_reason: Reason why an operator started it without waiting.
        impact_s: Duration of the impact in seconds, as measured by an actuator; None if not measured.
        further_impacts: Number of further impacts on the VM before the end (R80).
        outcome_reason: Reason why it was canceled or failed.
    """

    maintenance: Maintenance
    claim: Claim
    event: Event | None = None
    requested_by: str | None = None
    announced_at: datetime | None = None
    notice: timedelta | None = None
    approved: RecordedApproval | None = None
    others_pending: int = 0
    start_reason: str | None = None
    impact_s: float | None = None
    further_impacts: int = 0
    outcome_reason: str | None = None


def build_history_item(
    name: str, maintenance: Maintenance, events: Sequence[Event], entries: Sequence[AuditEntry]
) -> VmHistoryItem:
    """Return the history of a VM that the maintenance claims. The audit log entries begin with the oldest."""
    event = next((event for event in events if name in event.resources), None)
    of: dict[EntryKind, list[AuditEntry]] = {kind: [] for kind in EntryKind}
    for entry in entries:
        of[entry.kind].append(entry)
    scheduled, started = of[EntryKind.SCHEDULED], of[EntryKind.STARTED]
    # Maintenance without notice is announced by its start (R73).
    announced = scheduled or started
    ended = [entry for entry in entries if entry.kind in _ENDS]
    not_before = maintenance.not_before
    return VmHistoryItem(
        maintenance=maintenance,
        claim=next(claim for claim in maintenance.claims if claim.vm == name),
        event=event,
        requested_by=entries[0].actor if entries else None,
        announced_at=announced[0].at if announced else None,
        notice=not_before - scheduled[0].at if scheduled and not_before is not None else None,
        approved=_find_approval(event, of[EntryKind.APPROVED]),
        others_pending=sum(not other.is_approved for other in events if other is not event),
        # Without a Scheduled entry it started at once, and the reason belongs to the request.
        start_reason=started[0].reason if started and scheduled else None,
        impact_s=_parse_measured_impact(of[EntryKind.IMPACT_MEASURED]),
        further_impacts=max(len(of[EntryKind.IMPACTED]) - 1, 0),
        outcome_reason=ended[-1].reason if ended else None,
    )


def _find_approval(event: Event | None, entries: list[AuditEntry]) -> RecordedApproval | None:
    if event is None or event.approved_at is None or event.approved_by is None:
        return None
    entry = next((entry for entry in entries if entry.event_id == event.id), None)
    return RecordedApproval(
        at=event.approved_at,
        by=event.approved_by,
        source_address=None if entry is None else entry.source_address,
        api_version=None if entry is None else entry.api_version,
    )


def _parse_measured_impact(entries: list[AuditEntry]) -> float | None:
    match = _MEASURED.match(entries[-1].reason or "") if entries else None
    return None if match is None else float(match[1])
