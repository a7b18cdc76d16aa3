"""One line a minute about something that may happen thousands of times in it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

__all__ = ["Tally", "Told"]

_EVERY_S = 60.0
_NAMES_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a line says.

    Attributes:
        count: How often it has happened since the line before.
        worst: The name to which it happened most often.
        worst_count: How often to that one.
    """

    count: int
    worst: str
    worst_count: int


class Tally:
    """Counts what happens by name, for a bounded number of names.

    Args:
        every_s: Seconds between two lines.
    """

    def __init__(self, every_s: float = _EVERY_S) -> None:
        self._every_s = every_s
        self._told_s = float("-inf")
        self._count = 0
        self._names: Counter[str] = Counter()

    def note(self, name: str) -> None:
        """It has happened to that name."""
        self._count += 1
        if name in self._names or len(self._names) < _NAMES_MAX:
            self._names[name] += 1

    def due(self, now_s: float) -> Told | None:
        """What is to be told now; None: nothing has happened, or the line before is not a minute old."""
        if not self._count or now_s - self._told_s < self._every_s:
            return None
        worst, worst_count = self._names.most_common(1)[0]
        told = Told(count=self._count, worst=worst, worst_count=worst_count)
        self._told_s, self._count = now_s, 0
        self._names.clear()
        return told
