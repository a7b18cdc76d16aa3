"""Circuit breaker for one receiver of notifications."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from forewarn.core.subscription import Backoff

__all__ = ["CircuitBreaker"]

_OPEN_AFTER = 3
"""Failures in a row after which the circuit opens."""

_OPEN_MAX = timedelta(minutes=1)
"""Longest time that the circuit stays open, unless the receiver asked for more. Short, because the failures may come
from a few notifications that the receiver will never accept, and all others wait meanwhile."""


@dataclass(slots=True, kw_only=True)
class CircuitBreaker:
    """Whether a receiver may be sent anything, judged by the last tries.

    Attributes:
        backoff: Pauses between tries while the circuit is open.
        failures: Failures in a row, of any delivery.
        open_until: Moment before which nothing is sent; None if requests may be sent now.
    """

    backoff: Backoff = field(default_factory=Backoff)
    failures: int = 0
    open_until: datetime | None = None

    @property
    def is_open(self) -> bool:
        """Whether the receiver has failed so often that it is taken to be down."""
        return self.failures >= _OPEN_AFTER

    def allows_request(self, now: datetime) -> bool:
        """Return whether anything may be sent now."""
        return self.open_until is None or self.open_until <= now

    def record_success(self) -> None:
        """Close the circuit: the receiver has accepted a notification."""
        self.failures = 0
        self.open_until = None

    def record_failure(self, now: datetime, jitter: float, retry_after: timedelta | None) -> None:
        """Count a failure, and open the circuit where there were too many.

        Args:
            now: The time.
            jitter: From 0 to 1, as in `core.subscription.failed`.
            retry_after: How long the receiver asked to be left alone; None if it did not ask. It opens the circuit
                at once.
        """
        self.failures += 1
        if retry_after is not None:
            self.failures = max(self.failures, _OPEN_AFTER)
        if self.is_open:
            pause = min(self.backoff.pause(self.failures - _OPEN_AFTER + 1, jitter), _OPEN_MAX)
            if retry_after is not None:
                pause = max(pause, min(retry_after, self.backoff.longest))
            self.open_until = max(now + pause, self.open_until or now)
