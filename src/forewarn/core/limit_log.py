"""VMs and addresses that met a limit of the metadata endpoint, by name, for operators.

Kept in memory. The process that meets the limits passes on new counts (`take_counts`), and the service adds them to
those it has (`add_counts`). If that process ends, the counts that it has passed on remain.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

__all__ = ["CallerKind", "CallerLimitHits", "LimitLog"]


class CallerKind(StrEnum):
    """A kind of caller of the metadata endpoint."""

    VM = "vm"
    """A VM of the inventory."""

    ADDRESS = "address"
    """A source address that belongs to no VM."""


_KEPT_MAX = {CallerKind.VM: 1000, CallerKind.ADDRESS: 100}
"""Maximum number of names kept of each kind. Callers with many addresses cannot push out the VMs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerLimitHits:
    """Counts of the limits that one caller met.

    Attributes:
        name: The VM's name, or the address.
        limited: Refusals, by setting.
        limited_at: Time of the last one.
    """

    guest: CallerKind
    name: str
    limited: dict[str, int]
    limited_at: datetime


class LimitLog:
    """Counts of refusals by caller and limit; of each kind, callers whose last refusal is oldest are dropped first."""

    def __init__(self) -> None:
        self._met: dict[CallerKind, OrderedDict[str, CallerLimitHits]] = {guest: OrderedDict() for guest in CallerKind}

    def __iter__(self) -> Iterator[CallerLimitHits]:
        """Iterate over the callers, one kind after the other; within a kind, the latest to meet a limit comes last."""
        return (met for kept in self._met.values() for met in kept.values())

    def count_refusal(self, caller_kind: CallerKind, name: str, limit: str, now: datetime) -> None:
        """Count one refusal."""
        self.add_counts([CallerLimitHits(guest=caller_kind, name=name, limited={limit: 1}, limited_at=now)])

    def add_counts(self, hits: Iterable[CallerLimitHits]) -> None:
        """Add counts to those kept."""
        for new in hits:
            kept = self._met[new.guest]
            # Removed and inserted again, so that the oldest refusals stay at the front.
            old = kept.pop(new.name, None)
            kept[new.name] = new if old is None else replace(new, limited=Counter(old.limited) + Counter(new.limited))
            if len(kept) > _KEPT_MAX[new.guest]:
                kept.popitem(last=False)

    def take_counts(self) -> list[CallerLimitHits]:
        """Return all counts and reset them."""
        found = list(self)
        for kept in self._met.values():
            kept.clear()
        return found
