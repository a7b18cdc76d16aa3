"""Detection of wall clock jumps, by comparison with a monotonic clock.

NTP slews a clock: it runs a little faster or slower until it is right. A step beyond a limit is different: maintenance
announced for 10:15 would begin at once, or hours late. Suspending the machine is no jump, because the monotonic clock
used here counts that time too.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

__all__ = ["ClockComparison", "ClockJump", "compare_clocks"]

_SLEW_MAX = 0.1
"""Maximum rate at which slewing gains or loses time; chrony's default is 0.083."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockJump:
    """A step of the wall clock.

    Attributes:
        by: Size of the step; negative for a step back.
        at: Wall clock after the step.
    """

    by: timedelta
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockComparison:
    """State of the clock comparison after a reading.

    Attributes:
        start: Trusted wall clock time at second 0 of the monotonic clock.
        uptime_s: Second of the last reading.
    """

    start: datetime
    uptime_s: float


def compare_clocks(
    previous: ClockComparison | None, now: datetime, uptime_s: float, jump_max: timedelta
) -> tuple[ClockComparison, ClockJump | None]:
    """Compare a reading of both clocks with the earlier ones.

    Small steps add up, unless they are slow enough to be slewing. Therefore neither many small steps nor one long
    interval between two readings hides a jump.

    Args:
        previous: Result of the previous reading; None for the first.
        now: The wall clock.
        uptime_s: Seconds since some fixed moment, from a clock that no one sets.
        jump_max: Maximum step that is not a jump.

    Returns:
        The new state, and the jump, if there was one: the new time is trusted from then on.
    """
    start = now - timedelta(seconds=uptime_s)
    if previous is None:
        return ClockComparison(start=start, uptime_s=uptime_s), None
    by = start - previous.start
    if abs(by) > jump_max:
        return ClockComparison(start=start, uptime_s=uptime_s), ClockJump(by=by, at=now)
    # Only this part of the difference can be slewing. The rest is kept, so that small steps add up to a jump.
    slewed = timedelta(seconds=_SLEW_MAX * max(uptime_s - previous.uptime_s, 0.0))
    followed = min(max(by, -slewed), slewed)
    return ClockComparison(start=previous.start + followed, uptime_s=uptime_s), None
