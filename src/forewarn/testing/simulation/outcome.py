"""Outcome of a run: what was observed, and what the database holds at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from forewarn.core.model import AuditEntry, Event, Maintenance
from forewarn.testing.simulation.machine_clock import START
from forewarn.testing.simulation.trace import Fact

__all__ = ["Outcome"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of a run.

    Attributes:
        facts: Facts of the trace, in order.
        maintenances: All maintenances.
        events: Events of each maintenance.
        entries: Audit log.
        left: What had not come to its end.
        visible: For each VM, the VMs whose events it may see.
    """

    facts: Sequence[Fact] = ()
    maintenances: Sequence[Maintenance] = ()
    events: Mapping[str, Sequence[Event]] = field(default_factory=dict)
    entries: Sequence[AuditEntry] = ()
    left: Sequence[str] = ()
    visible: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @cached_property
    def by_event(self) -> dict[str, Maintenance]:
        """The maintenance of each event."""
        by_id = {maintenance.id: maintenance for maintenance in self.maintenances}
        return {event.id: by_id[key] for key, events in self.events.items() for event in events}

    @staticmethod
    def find_true_time(at_s: float) -> datetime:
        """Return the true time of a fact."""
        return START + timedelta(seconds=at_s)
