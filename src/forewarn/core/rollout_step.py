"""What a rollout asks for next, and what it has to know for that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeAlias

from forewarn.core.model import Maintenance
from forewarn.core.request import Request
from forewarn.core.rollout import Health
from forewarn.core.rollout_lifecycle import RolloutTrigger

__all__ = ["Cancel", "CheckHealth", "Facts", "Finish", "OwnStep", "Pause", "Schedule", "Skip", "Step", "Wait"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """How things stand outside of the rollout.

    Attributes:
        maintenances: The maintenances that `Rollout.watched` names; None where the store does not know one any more.
            What is left out is taken for unchanged.
        others: Active maintenances that are not of this rollout. Those that share no VM, scope or host with it may be
            left out.
        health: The outcome of the last health check; None while there is none.
    """

    maintenances: Mapping[str, Maintenance | None] = field(default_factory=dict)
    others: tuple[Maintenance, ...] = ()
    health: Health | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Ask for the maintenance of a host, and keep in the same transaction what came of it.

    Attributes:
        key: The same for the same host of the same rollout, whenever it is asked for: where asking and keeping cannot
            be one transaction, it tells a repetition.
    """

    host: str
    request: Request
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Take a maintenance back that has not started. If it has meanwhile, nothing is to be done."""

    host: str
    maintenance_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckHealth:
    """Run the health command, once for each number, and tell the outcome in `Facts.health`.

    Attributes:
        number: Which check of the rollout it is, from 1. One that is running already is not to be run again; one that
            was cut off by a restart is.
        batch: After which batch, from 0.
    """

    number: int
    batch: int
    command: tuple[str, ...]
    timeout: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A host cannot have its turn."""

    host: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Something must be looked at by a person before it goes on."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Every host has had its turn, and nothing is in flight."""

    trigger: RolloutTrigger


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """There is nothing to change now.

    Attributes:
        until: When time alone will have changed that; None: only something that happens can.
        reason: What is waited for, for a person.
    """

    until: datetime | None
    reason: str


OwnStep: TypeAlias = Skip | Pause | Finish
"""Steps that change the rollout and nothing else."""

Step: TypeAlias = Schedule | Cancel | CheckHealth | OwnStep | Wait
