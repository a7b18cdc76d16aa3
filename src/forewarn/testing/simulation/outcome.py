"""Outcome of a run: what was observed, and what the database holds at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from forewarn.core.model import AuditEntry, Event, Maintenance
from forewarn.core.rollout.rollout import Rollout
from forewarn.testing.simulation.machine_clock import START
from forewarn.testing.simulation.trace import Fact
from forewarn.util.failpoint import FailPoint

__all__ = ["Outcome"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of a run.

    Attributes:
        facts: Facts of the trace, in order.
        maintenances: All maintenances.
        events: Events of each maintenance.
        entries: Audit log.
        rollouts: All rollouts.
        left: What had not come to its end.
        group_mode: Mode in which the agents of the availability set agree; ``""`` if no event names several VMs.
        visible: For each VM, the VMs whose events it may see.
        quiet_vms: VMs with quiet hours.
        quiet_from: Begin of the quiet hours.
        quiet_until: End of the quiet hours.
        has_own_actuator: False if the actuator is a user's, who decides when it is asked for its progress.
        delay_s_max: How long a request to the database, or its answer, took at most, in seconds.
        requests_per_s_max: Highest number of requests to the database by one replica in one second.
        reached: How often each failpoint was reached.
        struck: At how many of them a process was killed or halted.
    """

    facts: Sequence[Fact] = ()
    maintenances: Sequence[Maintenance] = ()
    events: Mapping[str, Sequence[Event]] = field(default_factory=dict)
    entries: Sequence[AuditEntry] = ()
    rollouts: Sequence[Rollout] = ()
    left: Sequence[str] = ()
    group_mode: str = ""
    visible: Mapping[str, frozenset[str]] = field(default_factory=dict)
    quiet_vms: frozenset[str] = frozenset()
    quiet_from: datetime = START
    quiet_until: datetime = START
    has_own_actuator: bool = True
    delay_s_max: float = 0.0
    requests_per_s_max: int = 0
    reached: Counter[FailPoint] = field(default_factory=Counter)
    struck: Counter[FailPoint] = field(default_factory=Counter)

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Kinds of faults of the run."""
        return frozenset(kind for fact in self.facts if fact.kind == "kinds" for kind in fact.details["kinds"])

    @cached_property
    def by_id(self) -> dict[str, Maintenance]:
        """The maintenances by their ids."""
        return {maintenance.id: maintenance for maintenance in self.maintenances}

    @cached_property
    def by_event(self) -> dict[str, Maintenance]:
        """The maintenance of each event."""
        return {event.id: self.by_id[key] for key, events in self.events.items() for event in events}

    @staticmethod
    def find_true_time(at_s: float) -> datetime:
        """Return the true time of a fact."""
        return START + timedelta(seconds=at_s)
