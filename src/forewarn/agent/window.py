"""Times of the week: ``Mon-Fri 22:00-06:00``."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta

__all__ = ["WeeklyWindow"]

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY = "|".join(_DAYS)
_WINDOW = re.compile(rf"(?:((?:{_DAY})(?:[-,](?:{_DAY}))*)\s+)?(\d\d):(\d\d)-(\d\d):(\d\d)", re.ASCII)
_MIDNIGHT = ("24", "00")


class WeeklyWindow:
    """A part of the week, in local time: ``22:00-06:00``, ``Sat,Sun 00:00-24:00`` or ``Mon-Fri 22:00-06:00``.

    Args:
        text: The window as written in the configuration.

    Raises:
        ValueError: The text is not a window.
    """

    __slots__ = ("_begin", "_days", "_end", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        match = _WINDOW.fullmatch(text.strip())
        days = None if match is None else _parse_days(match[1])
        try:
            if match is None or days is None:
                raise ValueError  # noqa: TRY301 - one message for all three reasons
            self._begin = time(int(match[2]), int(match[3]))
            # 24:00 is the midnight that ends a day.
            self._end = time(0) if match.group(4, 5) == _MIDNIGHT else time(int(match[4]), int(match[5]))
        except ValueError:
            raise ValueError(f"{text!r} is not a time window: expected for example 'Mon-Fri 22:00-06:00'") from None
        self._days = days

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WeeklyWindow) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Window({self.text!r})"

    def contains_time(self, moment: datetime) -> bool:
        """Return True if that local time is in the window; one that passes midnight belongs to the day it begins on."""
        clock = moment.time()
        if self._begin < self._end:
            return moment.weekday() in self._days and self._begin <= clock < self._end
        if clock >= self._begin:
            return moment.weekday() in self._days
        # After midnight, the window belongs to the day before.
        return clock < self._end and (moment - timedelta(days=1)).weekday() in self._days


def _parse_days(text: str | None) -> frozenset[int] | None:
    """Return the named days, given singly or as ranges; None if the text is invalid."""
    if text is None:
        return frozenset(range(len(_DAYS)))
    days: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if dash and last not in _DAYS:
            return None
        begin, end = _DAYS.index(first), _DAYS.index(last or first)
        # A range may pass the end of the week, such as Fri-Mon.
        days.update(day % len(_DAYS) for day in range(begin, end + 1 + (len(_DAYS) if end < begin else 0)))
    return frozenset(days)
