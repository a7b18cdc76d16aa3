"""Timing of the requests of `follow`, and the choice between long polls and plain polls (X1, R97).

An endpoint need not support long polls. If one is ignored, refused or not answered, the endpoint is polled; long polls
are tried again after `Pace.refresh_s`.
"""

from __future__ import annotations

from forewarn.client.exchange import HttpAnswer
from forewarn.client.pace import Pace
from forewarn.errors import EndpointError, EndpointUnreachable
from forewarn.wire.document import Document

__all__ = ["PollTiming"]

_HELD_INTERVAL_S = 1.0
"""Minimum interval between long polls while nothing changes, whatever the endpoint claims to support."""

_RUSHES_MAX = 10
"""Burst size: number of changes in a row that are each followed by a request without a pause."""

_RUSHES_PER_S = 10.0
"""Long-term rate of such requests per second; bounds the load if an endpoint changes all the time."""

_BREAKS_MAX = 2
"""Number of broken long polls in a row after which the endpoint is polled: a middlebox probably cuts them."""


class PollTiming:
    """Pauses and conditional headers of one `follow`.

    Args:
        pace: Intervals, time-outs and retries.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._burst_tokens = float(_RUSHES_MAX)
        self._broken_polls = 0
        self._since_refresh_s = 0.0
        self._is_held = False

    def build_conditional_headers(self, known: Document | None) -> dict[str, str]:
        """Return the headers of the next request; none means a request for the whole document without waiting.

        Args:
            known: Last document; None to request the current one in any case.
        """
        is_due = self._since_refresh_s >= self._pace.refresh_s
        if is_due:
            self._since_refresh_s = 0.0
            # The endpoint may have been upgraded, or the middlebox replaced, so long polls get another chance.
            self._broken_polls = 0
        self._is_held = not is_due and self._may_long_poll and known is not None and known.incarnation is not None
        if not self._is_held or known is None:
            return {}
        return {"If-None-Match": f'"{known.incarnation}"', "Prefer": f"wait={self._pace.hold_s}"}

    def record_failure(self, error: EndpointError) -> None:
        """Record that the last request failed."""
        if self._is_held:
            # One cut may be a restart of the endpoint; a refusal or a time-out shows that long polls do not work.
            is_broken = isinstance(error, EndpointUnreachable) and not error.details.get("timed_out", False)
            self._broken_polls += 1 if is_broken else _BREAKS_MAX

    def record_answer(self, answer: HttpAnswer, *, is_changed: bool) -> float:
        """Record an answer, and return the pause after it, in seconds."""
        interval_s = self._pace.poll_interval_s
        if self._is_held and not is_changed:
            # An answer without a change that came at once was not held: the endpoint ignores `Prefer`.
            held_s = min(interval_s, _HELD_INTERVAL_S)
            # RFC 7240 makes `Preference-Applied` optional, so the duration alone may show that the request was held.
            if answer.headers.get("preference-applied", "").startswith("wait") or answer.elapsed_s >= held_s:
                interval_s = held_s
                self._broken_polls = 0
            else:
                self._broken_polls = _BREAKS_MAX
        # Further changes may follow soon, and only a long poll receives them immediately.
        self._burst_tokens = min(self._burst_tokens + answer.elapsed_s * _RUSHES_PER_S, _RUSHES_MAX)
        # A token bucket: an endpoint that changes with each request must not be asked in a tight loop.
        is_rushing = is_changed and self._may_long_poll and self._burst_tokens >= 1
        self._burst_tokens -= is_rushing
        pause_s = 0.0 if is_rushing else max(interval_s - answer.elapsed_s, 0.0)
        self._burst_tokens = min(self._burst_tokens + pause_s * _RUSHES_PER_S, _RUSHES_MAX)
        self._since_refresh_s += answer.elapsed_s + pause_s
        return pause_s

    @property
    def _may_long_poll(self) -> bool:
        return self._pace.wait_s > 0 and self._broken_polls < _BREAKS_MAX
