"""An event as a test holds it: the announcement and its current state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

from forewarn.core.maintenance.lifecycle import EVENT_STATUS, get_event_status
from forewarn.core.model import Event, MaintenanceState
from forewarn.errors import ForewarnError
from forewarn.testing.lab import Announced
from forewarn.testing.values import EventTypeName

__all__ = ["ScheduledEvent"]


@dataclass(frozen=True, slots=True, repr=False)
class ScheduledEvent:
    """Maintenance that a test has scheduled, with its state, as one scope (or a VM without a scope) sees it.

    Attributes:
        id: EventId, in upper case; empty if nothing was announced because no VM of the scope had sent a request (R67).
            Once one does, the document shows its event (R70b) and this object reports it, but its id stays empty.
        type: EventType.
        resources: Names of the affected VMs.
        not_before: Time at which it starts unless approved earlier, announced or not; None if it started at once.
        maintenance_id: Id of the operation.
    """

    id: str
    type: EventTypeName
    resources: tuple[str, ...]
    not_before: datetime | None
    maintenance_id: str
    _fetch_maintenance: Callable[[str], Announced] = field(compare=False)

    @classmethod
    def from_announcement(cls, announced: Announced, fetch_maintenance: Callable[[str], Announced]) -> list[Self]:
        """Return an item for each audience of an operation; one without an id if it announced nothing."""
        maintenance, events = announced
        not_before = maintenance.not_before if maintenance.state is MaintenanceState.SCHEDULED else None
        shown = [(event.id, event.resources) for event in events] or [("", maintenance.vms)]
        return [
            cls(name, maintenance.type.value, vms, not_before, maintenance.id, fetch_maintenance) for name, vms in shown
        ]

    @property
    def status(self) -> str:
        """Current status: ``Scheduled``, ``Started``, ``Completed``, ``Canceled`` or ``Failed``.

        If nothing was announced, the status of the operation. ``Withdrawn``: its scope was disabled (R70).
        """
        maintenance, events = self._fetch_maintenance(self.maintenance_id)
        event = self._find_event(events)
        return (EVENT_STATUS[maintenance.state] if event is None else get_event_status(event, maintenance)).value

    def __repr__(self) -> str:
        """Return type, VMs, current status and id, for the report of a failing test."""
        words = [f"{self.type} of {', '.join(self.resources)}", self._describe_state(), self.id or "without an id"]
        return f"<ScheduledEvent {', '.join(words)}>"

    def _describe_state(self) -> str:
        """Return the status with its NotBefore and its approver, as far as they apply."""
        try:
            status, approver = self.status, self.approved_by
        except ForewarnError as error:  # the service may have ended
            return f"status unknown ({type(error).__name__})"
        is_ahead = status == "Scheduled" and self.not_before is not None
        words = f"{status} for {self.not_before:%Y-%m-%d %H:%M:%S}Z" if is_ahead else status
        return words if approver is None else f"{words}, approved by {approver}"

    @property
    def is_approved(self) -> bool:
        """True if it has been approved."""
        return self._current_event is not None and self._current_event.is_approved

    @property
    def approved_by(self) -> str | None:
        """``vm:NAME`` or ``operator:NAME``; None if no one has approved it."""
        return None if self._current_event is None else self._current_event.approved_by

    @property
    def approved_at(self) -> datetime | None:
        """Time of the approval, on the service's clock; None if no one has approved it."""
        return None if self._current_event is None else self._current_event.approved_at

    @property
    def _current_event(self) -> Event | None:
        return self._find_event(self._fetch_maintenance(self.maintenance_id)[1])

    def _find_event(self, events: Sequence[Event]) -> Event | None:
        """Return its event; without an id, the event that its VMs were shown later."""
        if self.id:
            return next((event for event in events if event.id == self.id), None)
        return next((event for event in events if set(event.resources) & set(self.resources)), None)
