"""Recent attempts of this process to deliver notifications, and counts of their outcomes; kept in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

__all__ = ["DeliveryAttempt", "DeliveryLog"]

_RECENT_MAX = 20
"""Maximum number of attempts kept for each subscription."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryAttempt:
    """One request that carried a notification.

    Attributes:
        at: Time of the attempt.
        id: Id of the notification.
        kind: Kind of the notification.
        is_accepted: True if the receiver accepted it.
        status: HTTP status; None if there was no response.
        error: Error in one line; empty on success.
    """

    at: datetime
    id: str
    kind: str
    is_accepted: bool
    status: int | None
    error: str


class DeliveryLog:
    """Attempts and outcomes of each subscription, by its name.

    Attributes:
        counts: Outcomes so far, by subscription and outcome: ``delivered``, ``failed``, ``dead``.
    """

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        self._recent: dict[str, deque[DeliveryAttempt]] = {}
        self._delivered_at: dict[str, datetime] = {}

    def record_attempt(self, name: str, attempt: DeliveryAttempt) -> None:
        """Record an attempt and its outcome."""
        self._count(name, "delivered" if attempt.is_accepted else "failed")
        self._recent.setdefault(name, deque(maxlen=_RECENT_MAX)).append(attempt)
        if attempt.is_accepted:
            self._delivered_at[name] = attempt.at

    def count_dead(self, name: str) -> None:
        """Count a delivery that was given up."""
        self._count(name, "dead")

    def list_recent(self, name: str) -> list[DeliveryAttempt]:
        """Return the last attempts for a subscription, newest first."""
        return list(self._recent.get(name, ()))[::-1]

    def last_delivered_at(self, name: str) -> datetime | None:
        """Return the time of the last accepted notification of a subscription; None if there was none."""
        return self._delivered_at.get(name)

    def keep_only(self, names: Collection[str]) -> None:
        """Forget all other subscriptions, or those that were deleted would be kept for ever."""
        self.counts = {key: count for key, count in self.counts.items() if key[0] in names}
        self._recent = {name: kept for name, kept in self._recent.items() if name in names}
        self._delivered_at = {name: at for name, at in self._delivered_at.items() if name in names}

    def _count(self, name: str, outcome: str) -> None:
        self.counts[name, outcome] = self.counts.get((name, outcome), 0) + 1
