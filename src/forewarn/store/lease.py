"""A lease: a row that one replica holds for some seconds, by the database's clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

__all__ = ["Lease"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease, as read from or written to the database.

    Attributes:
        holder: The replica.
        term: Number of times the lease was taken anew; a holder that finds another number has lost it.
        expires_at: End of the lease, by the database's clock.
        now: Time of the database's clock when the lease was read.
    """

    holder: str
    term: int
    expires_at: datetime
    now: datetime

    @property
    def is_over(self) -> bool:
        """True if any replica may take it."""
        return self.expires_at <= self.now
