"""Tally that reduces frequent occurrences to one line a minute."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

__all__ = ["Tally", "TallyLine"]

_EVERY_S = 60.0
_NAMES_MAX = 1000


@dataclass(frozen=True, slots=True)
class TallyLine:
    """Number of occurrences since the previous line, the name with the most, and the number for that name."""

    count: int
    worst: str
    worst_count: int


class Tally:
    """Counter of occurrences by name, for a bounded number of names."""

    def __init__(self) -> None:
        self._last_line_s = float("-inf")
        self._count = 0
        self._names: Counter[str] = Counter()

    def count_occurrence(self, name: str) -> None:
        """Count an occurrence for this name."""
        self._count += 1
        # Clients choose the names, so beyond the limit only the total grows.
        if name in self._names or len(self._names) < _NAMES_MAX:
            self._names[name] += 1

    def take_line(self, now_s: float) -> TallyLine | None:
        """Return the next line and reset the counts; None if there were no occurrences, or it is too early."""
        if not self._count or now_s - self._last_line_s < _EVERY_S:
            return None
        line = TallyLine(self._count, *self._names.most_common(1)[0])
        self._last_line_s, self._count = now_s, 0
        self._names.clear()
        return line
