"""Intervals, time-outs and retries of a client."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

__all__ = ["Pace"]

_HOLD_MAX_S = 300.0
# More digits exceed every limit of a pause, so such a `Retry-After` is ignored.
_DIGITS_MAX = 6
# After so many doublings every limit is exceeded; far more of them would overflow.
_DOUBLINGS_MAX = 30
_MAY_BE_ZERO = frozenset({"wait_s", "retry_for_s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Intervals, time-outs and retry times, all in seconds.

    Attributes:
        poll_interval_s: Interval between polls (R97); above 0.
        wait_s: Time for which the endpoint is asked to hold a long poll (X1), rounded up to whole seconds; 0 to disable
            long polls, at most 300.
        first_timeout_s: Time-out until the first answer: enabling may take two minutes (R67, R104). Also the maximum
            time-out after unanswered requests.
        timeout_s: Time-out of requests after that. For a long poll, the hold time is added.
        retry_for_s: Time for which `fetch` and `approve` retry after 408, 410, 429, 5xx or no answer (R66, R104); 0 for
            one try.
        retry_min_s: First pause after a failure; it doubles each time.
        retry_max_s: Longest pause. Short, because the notice of a Preempt is 30 s (R71).
        refresh_s: Interval at which the whole document is requested, even if the endpoint reports no change. After the
            same time, long polls are tried again on an endpoint that did not hold one.

    Raises:
        ValueError: A time is negative, infinite, or 0 where that would mean polling without a pause.
    """

    poll_interval_s: float = 1.0
    wait_s: float = 20.0
    first_timeout_s: float = 130.0
    timeout_s: float = 10.0
    retry_for_s: float = 70.0
    retry_min_s: float = 0.5
    retry_max_s: float = 8.0
    refresh_s: float = 300.0

    def __post_init__(self) -> None:
        """Refuse values that would keep a processor or an endpoint busy."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and (value > 0 or (value == 0 and field.name in _MAY_BE_ZERO))):
                least = "at least 0" if field.name in _MAY_BE_ZERO else "more than 0"
                raise ValueError(f"{field.name} is {value}: expected a finite time of {least} s")
        if self.wait_s > _HOLD_MAX_S:
            raise ValueError(f"wait_s is {self.wait_s}: expected at most {_HOLD_MAX_S:g} s")

    @property
    def hold_s(self) -> int:
        """Hold time of a long poll; the protocol knows whole seconds only (X1)."""
        return math.ceil(self.wait_s)

    def timeout_after(self, unanswered: int) -> float:
        """Return the time-out after that many unanswered requests in a row, in seconds.

        It doubles each time: short enough to notice soon that the other side is gone, and in the end long enough for an
        endpoint that has restarted and enables the service again (R67).
        """
        longest = max(self.timeout_s, self.first_timeout_s)
        return min(math.ldexp(self.timeout_s, min(unanswered, _DOUBLINGS_MAX)), longest)

    def retry_after(self, failures: int, headers: Mapping[str, str], chance: float) -> float:
        """Return the pause after that many failures in a row, in seconds.

        Args:
            failures: Number of failures; 1 for the first.
            headers: Headers of the answer; ``Retry-After`` in seconds is honoured within the limits.
            chance: Random number from 0 to 1; spreads the pauses of many clients over the upper half.
        """
        longest_s = max(self.retry_min_s, self.retry_max_s)
        asked = headers.get("retry-after", "").strip()
        if asked.isdecimal() and len(asked) < _DIGITS_MAX:
            return min(max(float(asked), self.retry_min_s), longest_s)
        pause_s = min(math.ldexp(self.retry_min_s, min(failures - 1, _DOUBLINGS_MAX)), longest_s)
        # Never less than half: with full jitter, some clients would return at once after an outage.
        return pause_s * (0.5 + 0.5 * chance)
