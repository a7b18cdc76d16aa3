"""Whether a wall clock jumps: held against the seconds that pass however it is set.

NTP slews a clock: it runs a little faster or slower until it is right. A step of more than a limit is something else:
what was promised for 10:15 would begin at once, or hours late. Machines that sleep are no jump, for the seconds of the
other reading go on meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

__all__ = ["Jump", "Steadiness", "observe"]

_SLEW_MAX = 0.1
"""Most that a clock gains or loses by slewing; chrony's default is 0.083."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jump:
    """A step of the wall clock.

    Attributes:
        by: How far; negative: back.
        at: What it shows since.
    """

    by: timedelta
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Steadiness:
    """What the readings so far say.

    Attributes:
        start: What the wall clock would have shown at second 0, as far as it is trusted.
        uptime_s: The second of the last reading.
    """

    start: datetime
    uptime_s: float


def observe(
    known: Steadiness | None, now: datetime, uptime_s: float, jump_max: timedelta
) -> tuple[Steadiness, Jump | None]:
    """Take a reading of both.

    Small steps add up, unless they are slow enough to be slewing. So neither many small ones nor one long silence
    between two readings hides a jump.

    Args:
        known: What was known before; None: this is the first reading.
        now: The wall clock.
        uptime_s: Seconds since some moment, which nobody sets.
        jump_max: Larger steps are jumps.

    Returns:
        What is known now, and the jump, if there was one: the clock is trusted anew from there on.
    """
    start = now - timedelta(seconds=uptime_s)
    if known is None:
        return Steadiness(start=start, uptime_s=uptime_s), None
    by = start - known.start
    if abs(by) > jump_max:
        return Steadiness(start=start, uptime_s=uptime_s), Jump(by=by, at=now)
    slewed = min(timedelta(seconds=_SLEW_MAX * max(uptime_s - known.uptime_s, 0.0)), jump_max)
    followed = min(max(by, -slewed), slewed)
    return Steadiness(start=known.start + followed, uptime_s=uptime_s), None
