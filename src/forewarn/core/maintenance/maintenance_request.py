"""Maintenance request from an operator, a user or the platform."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from forewarn.core.model import EventSource, EventType

__all__ = ["MaintenanceRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceRequest:
    """A maintenance request. None means the default of the cause (1.12).

    Attributes:
        cause: Name of a row of `CAUSES`.
        notice: Time from announcement to NotBefore; not together with `not_before`.
        not_before: Requested NotBefore.
        impact: Actual impact, if a Reboot only freezes its VMs (R81).
        hosts: Hosts whose running VMs are affected.
        vms: Affected VMs.
        force_reason: Reason for undercutting the minimum notice and disregarding quiet hours; None to respect both.
        reason: Reason for the audit log, if nothing is forced; None if none was given.
        latest_start: Time up to which affected tenants may postpone it; None if they may not.
        is_now: Start at once instead of after the notice, if no VM can be warned (R70a). Refused if one can be, unless
            forced; not together with `notice` or `not_before`.
    """

    cause: str
    type: EventType | None = None
    source: EventSource | None = None
    description: str | None = None
    duration_s: int | None = None
    impact: EventType | None = None
    notice: timedelta | None = None
    not_before: datetime | None = None
    hosts: tuple[str, ...] = ()
    vms: tuple[str, ...] = ()
    force_reason: str | None = None
    reason: str | None = None
    latest_start: datetime | None = None
    is_now: bool = False

    @property
    def recorded_reason(self) -> str | None:
        """Reason that the audit log records; None if none was given."""
        return self.force_reason or self.reason

    @property
    def has_time(self) -> bool:
        """True if it names the time: a notice or a NotBefore."""
        return self.notice is not None or self.not_before is not None
