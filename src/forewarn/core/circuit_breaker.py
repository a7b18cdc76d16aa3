"""Circuit breaker for one receiver of notifications."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from forewarn.core.subscription import DeliveryBackoff

__all__ = ["CircuitBreaker"]

_OPEN_AFTER = 3
"""Consecutive failures after which the circuit opens."""

_OPEN_MAX = timedelta(minutes=1)
"""Maximum time that the circuit stays open, unless the receiver asked for more. Short, because the failures may come
from a few notifications that the receiver will never accept, and all others wait meanwhile.
"""


@dataclass(slots=True, kw_only=True)
class CircuitBreaker:
    """Circuit breaker for one receiver, judged by the latest attempts.

    Attributes:
        backoff: Pauses between retries while the circuit is open.
        failures: Consecutive failures, of any delivery.
        open_until: Time before which nothing is sent; None if requests may be sent now.
    """

    backoff: DeliveryBackoff = field(default_factory=DeliveryBackoff)
    failures: int = 0
    open_until: datetime | None = None

    @property
    def is_open(self) -> bool:
        """True if the receiver has failed so often that it is considered down."""
        return self.failures >= _OPEN_AFTER

    def allows_request(self, now: datetime) -> bool:
        """Return True if a request may be sent now."""
        return self.open_until is None or self.open_until <= now

    def record_success(self) -> None:
        """Close the circuit after a notification was accepted."""
        self.failures = 0
        self.open_until = None

    def record_failure(self, now: datetime, jitter: float, retry_after: timedelta | None) -> None:
        """Count a failure, and open the circuit if there were too many, or if the receiver asked for a pause.

        For `jitter` and `retry_after` see `core.subscription.record_failed_attempt`.
        """
        self.failures += 1
        if retry_after is not None:
            # A receiver that names a pause means all requests, so there is no need to wait for more failures.
            self.failures = max(self.failures, _OPEN_AFTER)
        if self.is_open:
            # Counted from the failure that opened the circuit, so that the first pause is the shortest.
            pause = min(self.backoff.compute_pause(self.failures - _OPEN_AFTER + 1, jitter), _OPEN_MAX)
            if retry_after is not None:
                pause = max(pause, min(retry_after, self.backoff.pause_max))
            # A request sent before the circuit opened may fail late; it must not shorten a longer pause.
            self.open_until = max(now + pause, self.open_until or now)
