"""What somebody asks for: an operator, a user, the platform."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from forewarn.core.model import EventType, Source

__all__ = ["Request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What somebody asks for. None means the default of the cause (1.12).

    Attributes:
        cause: Name of a row of `CAUSES`.
        notice: From announcement to NotBefore; not together with `not_before`.
        not_before: A moment for NotBefore.
        impact: What will really happen, where a Reboot turns out as a Freeze (R81).
        hosts: Every running VM of these hosts is meant.
        vms: These VMs are meant.
        force_reason: Why the minimum notice may be undercut, and quiet hours disregarded.
        latest_start: Up to when those whom it hits may put it off; None: they may not.
        is_now: Start at once instead of after the notice, where no VM can be warned (R70a). Refused where one can be,
            unless forced; not together with `notice` or `not_before`.
    """

    cause: str
    type: EventType | None = None
    source: Source | None = None
    description: str | None = None
    duration_s: int | None = None
    impact: EventType | None = None
    notice: timedelta | None = None
    not_before: datetime | None = None
    hosts: tuple[str, ...] = ()
    vms: tuple[str, ...] = ()
    force_reason: str | None = None
    latest_start: datetime | None = None
    is_now: bool = False

    @property
    def has_time(self) -> bool:
        """Whether it names the time: a notice or a NotBefore."""
        return self.notice is not None or self.not_before is not None
