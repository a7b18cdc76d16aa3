"""The history of a VM, as the control API shows it."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from forewarn.core.history import Approved, Episode
from forewarn.core.lifecycle import event_status
from forewarn.core.model import EventStatus, EventType, MaintenanceState, Source
from forewarn.wire.control import Moment

__all__ = ["ApprovedOut", "EpisodeOut", "Seen"]

Seen = tuple[datetime, Literal["request", "approval"]]
"""Latest moment at which the VM has seen its event, and the evidence for it."""


class ApprovedOut(BaseModel):
    """An approval."""

    model_config = ConfigDict(frozen=True)

    at: Moment
    by: str
    source_address: str | None
    api_version: str | None

    @classmethod
    def of(cls, approved: Approved) -> ApprovedOut:
        """Build from the model."""
        return cls(
            at=approved.at,
            by=approved.by,
            source_address=approved.source_address,
            api_version=approved.api_version,
        )


class EpisodeOut(BaseModel):
    """One maintenance from the view of one VM. Values that were not recorded are null."""

    model_config = ConfigDict(frozen=True)

    vm: str
    maintenance_id: str
    state: MaintenanceState
    cause: str
    type: EventType
    impact: EventType = Field(description="What really happens; differs where a Reboot turns out as a Freeze.")
    source: Source
    description: str
    host: str = Field(description="Where the VM was when the maintenance was made.")
    scope: str | None
    hosts: list[str] = Field(description="Hosts that it was asked for; none where it was asked for VMs.")
    vms_count: int = Field(description="How many VMs it was for.")
    requested_by: str | None
    created_at: Moment
    announced_at: Moment | None = Field(description="When its notice began; later than its making where it was queued.")
    not_before: Moment | None
    notice_s: float | None = Field(description="From the announcement to NotBefore; null for what came without notice.")
    event_id: str | None = Field(description="Of the event that named the VM; null: its scope did not ask for events.")
    event_status: EventStatus | None
    seen_at: Moment | None = Field(description="The VM saw its event at this moment at the latest.")
    seen_by: Literal["request", "approval"] | None = Field(
        description="How that is known: a request that the journal still has, or the VM's own approval."
    )
    approved: ApprovedOut | None
    others_pending: int = Field(description="Events of others in the same maintenance that nobody has approved.")
    force_reason: str | None
    start_reason: str | None = Field(description="Why an operator started it without waiting.")
    started_at: Moment | None
    impacted_at: Moment | None
    duration_s: int = Field(description="Announced seconds; -1 unknown.")
    impact_s: float | None = Field(description="Measured seconds; null where the actuator measures nothing.")
    further_impacts: int
    ended_at: Moment | None
    outcome_reason: str | None

    @classmethod
    def of(cls, episode: Episode, seen: Seen | None) -> EpisodeOut:
        """Build from the model."""
        m, event = episode.maintenance, episode.event
        return cls(
            vm=episode.claim.vm,
            maintenance_id=m.id,
            state=m.state,
            cause=m.cause,
            type=m.type,
            impact=m.impact,
            source=m.source,
            description=m.description,
            host=episode.claim.host,
            scope=episode.claim.scope,
            hosts=list(m.hosts),
            vms_count=len(m.claims),
            requested_by=episode.requested_by,
            created_at=m.created_at,
            announced_at=episode.announced_at,
            not_before=m.not_before,
            notice_s=None if episode.notice is None else episode.notice.total_seconds(),
            event_id=None if event is None else event.id,
            event_status=None if event is None else event_status(event, m),
            seen_at=None if seen is None else seen[0],
            seen_by=None if seen is None else seen[1],
            approved=None if episode.approved is None else ApprovedOut.of(episode.approved),
            others_pending=episode.others_pending,
            force_reason=m.force_reason,
            start_reason=episode.start_reason,
            started_at=m.started_at,
            impacted_at=m.impacted_at,
            duration_s=m.duration_s,
            impact_s=episode.impact_s,
            further_impacts=episode.further_impacts,
            ended_at=m.ended_at,
            outcome_reason=episode.outcome_reason,
        )
