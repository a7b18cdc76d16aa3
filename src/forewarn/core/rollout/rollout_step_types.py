"""Steps that a rollout requests, and the facts needed to decide them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeAlias

from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import Maintenance
from forewarn.core.rollout.rollout import HealthResult
from forewarn.core.rollout.rollout_lifecycle import RolloutTrigger

__all__ = [
    "CancelMaintenance",
    "CheckHealth",
    "FinishRollout",
    "OwnStep",
    "PauseRollout",
    "RolloutFacts",
    "ScheduleHost",
    "SkipHost",
    "Step",
    "WaitForChange",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFacts:
    """Current facts outside of the rollout.

    Attributes:
        maintenances: Maintenances that `Rollout.watched_maintenance_ids` names; None if the store no longer has one.
            A missing key counts as unchanged.
        others: Active maintenances that are not of this rollout, newest first. Those that hold no VM, scope or host of
            `list_candidates` may be left out.
        health: Result of the last health check; None if there is none.
    """

    maintenances: Mapping[str, Maintenance | None] = field(default_factory=dict)
    others: tuple[Maintenance, ...] = ()
    health: HealthResult | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleHost:
    """Request the maintenance of a host, and store the result in the same transaction."""

    host: str
    request: MaintenanceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelMaintenance:
    """Cancel a maintenance that has not started. If it has started meanwhile, do nothing."""

    host: str
    maintenance_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckHealth:
    """Run the health command, once for each number, and report the result in `RolloutFacts.health`.

    Attributes:
        number: Number of the check in the rollout, from 1. A check that is running already must not be run again;
            one cut off by a restart must be.
        batch: Batch after which it is made, from 0.
    """

    number: int
    batch: int
    command: tuple[str, ...]
    timeout: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipHost:
    """Skip a host that cannot be maintained."""

    host: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRollout:
    """Pause the rollout until a person has looked at something."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishRollout:
    """End the rollout: every host is over, and nothing is in flight."""

    trigger: RolloutTrigger


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitForChange:
    """Change nothing now.

    Attributes:
        until: Time at which to decide again; None if only an event can change the decision.
        reason: Reason for the wait, for a person.
    """

    until: datetime | None
    reason: str


OwnStep: TypeAlias = SkipHost | PauseRollout | FinishRollout
"""Steps that change the rollout and nothing else."""

Step: TypeAlias = ScheduleHost | CancelMaintenance | CheckHealth | OwnStep | WaitForChange
