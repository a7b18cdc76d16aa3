"""Maintenance policy, as declared by the owner of a scope or of a standalone VM.

Values only. This includes time zones: the code that reads a policy, from a file or a database, loads the rules of its
zone completely, so the core does no I/O to use them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta, tzinfo

__all__ = ["ALL_APPROVERS", "DAYS", "NO_POLICY", "ExtensionAllowance", "Policy", "QuietHours", "TimeZone"]

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
"""Names of the days, indexed by `date.weekday`."""

ALL_APPROVERS = ("vm", "operator", "tenant")
"""Kinds of actors that may approve by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeZone:
    """A time zone, compared by name only.

    Attributes:
        name: Name in the IANA database, such as ``Europe/Berlin``.
        rules: Offsets of the zone, completely loaded, so that using them reads nothing.
    """

    name: str
    rules: tzinfo = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietHours:
    """A part of the week that is kept free of platform maintenance.

    Attributes:
        days: Days on which it begins, numbered as by `date.weekday`.
        begin: Local time.
        end: Local time; on the next day if not later than `begin`. If equal to `begin`, it lasts a whole day.
    """

    days: tuple[int, ...]
    begin: time
    end: time
    zone: TimeZone

    def get_interval(self, midnight: datetime) -> tuple[datetime, datetime]:
        """Return the begin and end of the quiet hours that begin on the day of that local midnight.

        When clocks are set back, an hour comes twice; when they are set forward, one never comes. A bound in such an
        hour is chosen so that the quiet hours are longer. `midnight` is a naive local time.
        """
        end_day = midnight if self.end > self.begin else midnight + timedelta(days=1)
        return min(self._list_candidates(midnight, self.begin)), max(self._list_candidates(end_day, self.end))

    def _list_candidates(self, day: datetime, at: time) -> tuple[datetime, datetime]:
        local = datetime.combine(day, at, self.zone.rules)
        # These differ only where clocks change: the two readings of a repeated hour, or both sides of a skipped one.
        return _to_utc(local), _to_utc(local.replace(fold=1))


def _to_utc(local: datetime) -> datetime:
    """Convert to UTC, because Python compares two times of one zone without their offsets."""
    return local.astimezone(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionAllowance:
    """Additional time to prepare, granted on request.

    Attributes:
        max: Maximum total over the life of a maintenance.
        times: Maximum number of requests.
    """

    max: timedelta
    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Policy of a tenant; the default asks for nothing.

    Attributes:
        approves_user_operations: User restarts and redeployments go straight to Started (X5).
        approves_freezes_up_to: Maximum known duration of a platform Freeze that is approved when it is announced; None
            to approve none.
        quiet_hours: Hours kept free of platform maintenance, as far as the limits of its notice allow.
        user_operations_max: Maximum number of active user operations; None for no limit here.
        unavailable_max: Maximum number of VMs of the scope that routine maintenance makes unavailable at the same time,
            together with those under any other maintenance; at least 1; None for no limit. Not for a standalone VM.
        approvers: Actors whose approvals count: kinds of actors, or ``vm:NAME`` for a VM.
        extension: Additional time to prepare; None to grant none.
    """

    approves_user_operations: bool = False
    approves_freezes_up_to: timedelta | None = None
    quiet_hours: tuple[QuietHours, ...] = ()
    user_operations_max: int | None = None
    unavailable_max: int | None = None
    approvers: tuple[str, ...] = ALL_APPROVERS
    extension: ExtensionAllowance | None = None

    def accepts_approval_of(self, actor: str) -> bool:
        """Return True if an approval by that actor counts: ``vm:NAME``, ``operator:NAME``, ``tenant:NAME``."""
        return actor.partition(":")[0] in self.approvers or actor in self.approvers


NO_POLICY = Policy()
"""Policy of an owner that has declared none."""
