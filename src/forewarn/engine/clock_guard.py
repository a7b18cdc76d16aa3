"""Detection of clock jumps; a jump blocks what is due until an operator confirms it."""

from __future__ import annotations

from datetime import datetime, timedelta

import structlog

from forewarn.core.clock_jump import ClockComparison, ClockJump, compare_clocks
from forewarn.util.duration import format_duration

__all__ = ["ClockGuard", "describe_jump"]

_log = structlog.get_logger("forewarn")


class ClockGuard:
    """Decides whether the clock can be trusted to start what is due.

    Args:
        jump_max: Largest step of the clock that is not a jump.

    Attributes:
        jump: First unconfirmed jump; None if the clock is trusted.
        jumps: Number of jumps detected.
        is_stored: True if the jump is stored in the database.
    """

    def __init__(self, jump_max: timedelta = timedelta(seconds=30)) -> None:
        self.jump: ClockJump | None = None
        self.jumps = 0
        self.is_stored = False
        self._jump_max = jump_max
        self._known: ClockComparison | None = None

    def observe(self, now: datetime, uptime_s: float) -> None:
        """Compare a reading of the decision clock with a monotonic one, and detect a jump."""
        self._known, jump = compare_clocks(self._known, now, uptime_s, self._jump_max)
        if jump is None:
            return
        self.jumps += 1
        # Keep the first jump: a second one, such as a step back, does not make the clock trustworthy again.
        if self.jump is None:
            self.distrust(jump, is_stored=False)
            _log.error("the clock has jumped: due work is held until it is confirmed", by_s=jump.by.total_seconds())

    def detect_setback(self, newest: datetime, now: datetime) -> None:
        """Detect, after a start, a clock that was set back: it is behind the newest audit log entry."""
        # No monotonic clock spans a restart, so the audit log is the only witness of the time before.
        if now < newest - self._jump_max and self.jump is None:
            self.jumps += 1
            self.distrust(ClockJump(by=now - newest, at=now), is_stored=False)
            _log.error("the clock is behind the audit log: due work is held until it is confirmed")

    def distrust(self, jump: ClockJump, *, is_stored: bool = True) -> None:
        """Stop trusting the clock.

        Args:
            jump: The jump.
            is_stored: True if it is stored in the database.
        """
        # In this order: a jump taken for stored while it is not would be forgotten by the next look at the database.
        self.is_stored = is_stored
        self.jump = jump

    def trust_again(self) -> None:
        """Trust the clock again, as it is now."""
        self.jump, self.is_stored = None, False


def describe_jump(jump: ClockJump) -> str:
    """Describe a jump in one line for people."""
    way = "ahead" if jump.by > timedelta(0) else "back"
    return f"the clock jumped {format_duration(abs(jump.by))} {way}, to {jump.at:%Y-%m-%d %H:%M:%SZ}"
