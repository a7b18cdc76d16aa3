"""Watches the clock that decisions are made by, and remembers a jump until an operator has confirmed it."""

from __future__ import annotations

from datetime import datetime, timedelta

import structlog

from forewarn.core.clock_jump import Jump, Steadiness, observe
from forewarn.util.duration import format_span

__all__ = ["ClockGuard", "describe_jump"]

_log = structlog.get_logger("forewarn")


class ClockGuard:
    """Says whether the clock may be trusted with starting what is due.

    Args:
        jump_max: Larger steps of the clock are jumps.

    Attributes:
        jump: The first jump that no operator has confirmed; None: the clock is trusted.
        jumps: How many there were.
        is_kept: Whether the database knows of it.
    """

    def __init__(self, jump_max: timedelta = timedelta(seconds=30)) -> None:
        self.jump: Jump | None = None
        self.jumps = 0
        self.is_kept = False
        self._jump_max = jump_max
        self._known: Steadiness | None = None

    def observe(self, now: datetime, uptime_s: float) -> None:
        """Take a reading of the clock that decisions are made by, and of the seconds that nobody sets."""
        self._known, jump = observe(self._known, now, uptime_s, self._jump_max)
        if jump is None:
            return
        self.jumps += 1
        if self.jump is None:
            self.hold(jump)
            self.is_kept = False
            _log.error(
                "the clock has jumped: nothing that is due starts until it is confirmed", by_s=jump.by.total_seconds()
            )

    def follows(self, newest: datetime, now: datetime) -> None:
        """After a start: a clock behind what the ledger tells was set back meanwhile."""
        if now < newest - self._jump_max and self.jump is None:
            self.jumps += 1
            self.hold(Jump(by=now - newest, at=now))
            self.is_kept = False
            _log.error("the clock is behind the ledger: nothing that is due starts until it is confirmed")

    def hold(self, jump: Jump) -> None:
        """Trust the clock no more; the database knows."""
        self.jump, self.is_kept = jump, True

    def release(self) -> None:
        """Trust the clock again, as it goes now."""
        self.jump, self.is_kept = None, False


def describe_jump(jump: Jump) -> str:
    """One line for people."""
    way = "ahead" if jump.by > timedelta(0) else "back"
    return f"the clock jumped {format_span(abs(jump.by))} {way}, to {jump.at:%Y-%m-%d %H:%M:%SZ}"
