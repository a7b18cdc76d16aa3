"""The history of a VM, as the control API shows it."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from forewarn.core.maintenance.lifecycle import get_event_status
from forewarn.core.model import EventSource, EventStatus, EventType, MaintenanceState
from forewarn.core.vm_history import VmHistoryItem
from forewarn.wire.json_types import Moment, ResponseModel

__all__ = ["EpisodeOut", "RecordedApprovalOut", "Seen"]

Seen = tuple[datetime, Literal["request", "approval"]]
"""Latest moment at which the VM has seen its event, and the evidence for it."""


class RecordedApprovalOut(ResponseModel):
    """An approval."""

    at: Moment
    by: str
    source_address: str | None
    api_version: str | None


class EpisodeOut(ResponseModel):
    """One maintenance from the view of one VM. Values that were not recorded are null."""

    vm: str
    maintenance_id: str
    state: MaintenanceState
    cause: str
    type: EventType
    impact: EventType = Field(
        description="Type of the actual impact: Freeze if a Reboot only froze the VMs, else `type`."
    )
    source: EventSource
    description: str
    host: str = Field(description="Host of the VM when the maintenance was created.")
    scope: str | None
    hosts: list[str] = Field(description="Hosts for which the maintenance was requested. Empty if requested for VMs.")
    vms_count: int = Field(description="Number of affected VMs.")
    requested_by: str | None
    created_at: Moment
    announced_at: Moment | None = Field(
        description="Start of the notice. Later than `created_at` if the maintenance was queued."
    )
    not_before: Moment | None
    notice_s: float | None = Field(description="Seconds from announcement to NotBefore. Null: there was no notice.")
    event_id: str | None = Field(description="Id of the event that named the VM. Null: no event named the VM.")
    event_status: EventStatus | None
    seen_at: Moment | None = Field(description="Time by which the VM had seen its event.")
    seen_by: Literal["request", "approval"] | None = Field(
        description="Evidence for `seen_at`: a request that is still recorded, or the VM's own approval."
    )
    approved: RecordedApprovalOut | None
    others_pending: int = Field(description="Number of the maintenance's other events that have no approval.")
    force_reason: str | None
    start_reason: str | None = Field(description="Reason given by the operator who forced the start.")
    started_at: Moment | None
    impacted_at: Moment | None
    duration_s: int = Field(description="Announced duration of the impact in seconds. -1: unknown.")
    impact_s: float | None = Field(description="Measured duration of the impact in seconds. Null: not measured.")
    further_impacts: int
    ended_at: Moment | None
    outcome_reason: str | None

    @classmethod
    def from_model(cls, episode: VmHistoryItem, seen: Seen | None) -> EpisodeOut:
        """Build from the model."""
        m, event, approved = episode.maintenance, episode.event, episode.approved
        return cls.copy_from(
            m,
            vm=episode.claim.vm,
            maintenance_id=m.id,
            host=episode.claim.host,
            scope=episode.claim.scope,
            vms_count=len(m.claims),
            requested_by=episode.requested_by,
            announced_at=episode.announced_at,
            notice_s=None if episode.notice is None else episode.notice.total_seconds(),
            event_id=None if event is None else event.id,
            event_status=None if event is None else get_event_status(event, m),
            seen_at=None if seen is None else seen[0],
            seen_by=None if seen is None else seen[1],
            approved=None if approved is None else RecordedApprovalOut.copy_from(approved),
            others_pending=episode.others_pending,
            start_reason=episode.start_reason,
            impact_s=episode.impact_s,
            further_impacts=episode.further_impacts,
            outcome_reason=episode.outcome_reason,
        )
