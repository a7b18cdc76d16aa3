"""A lease: a row that one replica holds for some seconds, by the database's clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

__all__ = ["Lease"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who holds it.

    Attributes:
        holder: The replica.
        term: How often it has changed hands; a holder that finds another number has lost it.
        expires_at: Until when, by the database's clock.
        now: What the database's clock showed.
    """

    holder: str
    term: int
    expires_at: datetime
    now: datetime

    @property
    def is_over(self) -> bool:
        """Whether anybody may take it."""
        return self.expires_at <= self.now
