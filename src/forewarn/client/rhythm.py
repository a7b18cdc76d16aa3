"""When `follow` asks next, and whether it asks to be held until something changes (X1, R97).

No endpoint has to know the extension. So a held request is an offer: where it is not taken up, refused, or left without
an answer, the endpoint is polled outright, and asked again whether it holds requests after `Pace.refresh_s`.
"""

from __future__ import annotations

from forewarn.client.exchange import Answer
from forewarn.client.pace import Pace
from forewarn.errors import EndpointError, EndpointUnreachable
from forewarn.wire.document import Document

__all__ = ["Rhythm"]

_HELD_INTERVAL_S = 1.0
"""Held requests begin at least this far apart while nothing changes, whatever the endpoint claims to do."""

_RUSHES_MAX = 10
"""So many changes in a row are each followed by the next question at once..."""

_RUSHES_PER_S = 10.0
"""...and so many a second in the long run: an endpoint that changes without end must not be asked without end."""

_BREAKS_MAX = 2
"""After so many held requests in a row that broke off, the endpoint is polled: something between does not bear them."""


class Rhythm:
    """The pauses and the conditions of one `follow`.

    Args:
        pace: How often, how long.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._rushes = float(_RUSHES_MAX)
        self._breaks = 0
        self._since_refresh_s = 0.0
        self._is_held = False

    def conditions(self, known: Document | None) -> dict[str, str]:
        """The headers of the next request; with none, it asks for the whole document at once.

        Args:
            known: The last document; None to be told what there is, whatever is known.
        """
        is_due = self._since_refresh_s >= self._pace.refresh_s
        if is_due:
            self._since_refresh_s = 0.0
            self._breaks = 0
        self._is_held = not is_due and self._may_hold and known is not None and known.incarnation is not None
        if not self._is_held or known is None:
            return {}
        return {"If-None-Match": f'"{known.incarnation}"', "Prefer": f"wait={self._pace.hold_s}"}

    def missed(self, error: EndpointError) -> None:
        """Take note that the last request failed."""
        if self._is_held:
            is_broken = isinstance(error, EndpointUnreachable) and not error.details.get("timed_out", False)
            self._breaks += 1 if is_broken else _BREAKS_MAX

    def seen(self, answer: Answer, *, is_changed: bool) -> float:
        """Take note of an answer; how long to pause after it, in seconds."""
        interval_s = self._pace.poll_interval_s
        if self._is_held and not is_changed:
            held_s = min(interval_s, _HELD_INTERVAL_S)
            if answer.headers.get("preference-applied", "").startswith("wait") or answer.elapsed_s >= held_s:
                interval_s = held_s
                self._breaks = 0
            else:
                self._breaks = _BREAKS_MAX
        # What follows on a change may come soon, and only a held request hears of it at once.
        self._rushes = min(self._rushes + answer.elapsed_s * _RUSHES_PER_S, _RUSHES_MAX)
        is_rushing = is_changed and self._may_hold and self._rushes >= 1
        self._rushes -= is_rushing
        pause_s = 0.0 if is_rushing else max(interval_s - answer.elapsed_s, 0.0)
        self._rushes = min(self._rushes + pause_s * _RUSHES_PER_S, _RUSHES_MAX)
        self._since_refresh_s += answer.elapsed_s + pause_s
        return pause_s

    @property
    def _may_hold(self) -> bool:
        return self._pace.wait_s > 0 and self._breaks < _BREAKS_MAX
