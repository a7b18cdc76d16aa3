"""How a receiver is treated that fails: whatever it is told, it is left alone for a while."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from forewarn.core.subscription import Backoff

__all__ = ["Patience"]

_DOWN_AFTER = 3
"""Failures in a row before a receiver is taken to be down."""

_REST_MAX = timedelta(minutes=1)
"""Longest rest of a receiver that did not ask for one: what failed may be a few things that it never takes."""


@dataclass(slots=True, kw_only=True)
class Patience:
    """What the last tries say of a receiver.

    Attributes:
        backoff: How long it rests when it is down.
        failures: In a row, whatever it was told.
        rests_until: Before that nothing is sent; None: it may be at once.
    """

    backoff: Backoff = field(default_factory=Backoff)
    failures: int = 0
    rests_until: datetime | None = None

    @property
    def is_down(self) -> bool:
        """Whether it seems to take nothing at all."""
        return self.failures >= _DOWN_AFTER

    def may_ask(self, now: datetime) -> bool:
        """Whether anything may be sent now."""
        return self.rests_until is None or self.rests_until <= now

    def note_taken(self) -> None:
        """It took something."""
        self.failures = 0
        self.rests_until = None

    def note_failed(self, now: datetime, luck: float, asked: timedelta | None) -> None:
        """It did not; `luck` and `asked` are those of `core.subscription.failed`."""
        self.failures += 1
        if asked is not None:
            self.failures = max(self.failures, _DOWN_AFTER)
        if self.is_down:
            pause = min(self.backoff.pause(self.failures - _DOWN_AFTER + 1, luck), _REST_MAX)
            if asked is not None:
                pause = max(pause, min(asked, self.backoff.longest))
            self.rests_until = max(now + pause, self.rests_until or now)
