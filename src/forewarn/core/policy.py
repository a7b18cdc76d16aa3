"""What the owner of a scope, or of a VM that stands alone, has declared about maintenance: its policy.

Values only. A time zone is one of them: whoever reads a policy, from a file or a database, loads its rules, and the
core asks them and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta, tzinfo

__all__ = ["ALL_APPROVERS", "DAYS", "NO_POLICY", "Extension", "Policy", "QuietHours", "Zone"]

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
"""Names of the days; the place of one is its `date.weekday`."""

ALL_APPROVERS = ("vm", "operator", "tenant")
"""Kinds of actors that may approve where a policy says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """A time zone; two of the same name are the same.

    Attributes:
        name: As the IANA database calls it: ``Europe/Berlin``.
        rules: What knows its offsets; loaded whole, so that asking it reads nothing.
    """

    name: str
    rules: tzinfo = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietHours:
    """A part of the week that platform maintenance is kept out of.

    Attributes:
        days: On which days it begins, as `date.weekday` counts them.
        begin: Local time.
        end: Local time; of the next day where it is not later than `begin`. The same as `begin`: a whole day.
    """

    days: tuple[int, ...]
    begin: time
    end: time
    zone: Zone

    def span(self, midnight: datetime) -> tuple[datetime, datetime]:
        """From when until when it is quiet, when it begins on the day of that local midnight.

        When clocks are set back, an hour comes twice; when they are set forward, one never comes. A bound in such an
        hour is taken so that the quiet hours are the longer ones.

        Args:
            midnight: Without a time zone.
        """
        end_day = midnight if self.end > self.begin else midnight + timedelta(days=1)
        return min(self._moments(midnight, self.begin)), max(self._moments(end_day, self.end))

    def _moments(self, day: datetime, at: time) -> tuple[datetime, datetime]:
        local = datetime.combine(day, at, self.zone.rules)
        return _utc(local), _utc(local.replace(fold=1))


def _utc(local: datetime) -> datetime:
    """The same moment, plainly in UTC: two times of one zone compare without their offsets, so they are not kept."""
    return local.astimezone(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """More time to prepare, for the asking.

    Attributes:
        max: Most of it, in sum over the life of a maintenance.
        times: How often it may be asked for.
    """

    max: timedelta
    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a tenant wants; the default is that nothing is wanted.

    Attributes:
        approves_user_operations: User restarts and redeployments go straight to Started (X5).
        approves_freezes_up_to: A Freeze by the platform with a known duration of at most that is approved when it is
            announced; None: none is.
        quiet_hours: Kept free of platform maintenance, as far as the limits of its notice allow.
        user_operations_max: Most operations that users have asked for and that are not over; None: no limit here.
        approvers: Whose approvals count: kinds of actors, or ``vm:NAME`` for a VM.
        extension: How much more time to prepare is granted; None: none is.
    """

    approves_user_operations: bool = False
    approves_freezes_up_to: timedelta | None = None
    quiet_hours: tuple[QuietHours, ...] = ()
    user_operations_max: int | None = None
    approvers: tuple[str, ...] = ALL_APPROVERS
    extension: Extension | None = None

    def takes_approval_of(self, actor: str) -> bool:
        """Whether an approval by that actor counts: ``vm:NAME``, ``operator:NAME``, ``tenant:NAME``."""
        return actor.partition(":")[0] in self.approvers or actor in self.approvers


NO_POLICY = Policy()
"""Of who has declared none."""
