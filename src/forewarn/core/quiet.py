"""When it is quiet, and when it is not: arithmetic over weeks, nights and changed clocks."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from forewarn.core.policy import QuietHours

__all__ = ["first_calm", "is_disturbed"]

_DAY = timedelta(days=1)
_INSTANT = timedelta(microseconds=1)
_LASTS_MAX = timedelta(days=8)
"""Quiet hours come back every week: what is longer than that meets them anyway."""


def first_calm(
    quiet: Iterable[QuietHours], at: datetime, until: datetime, lasts: timedelta = timedelta(0)
) -> datetime | None:
    """The first moment at which something may begin that is to be over before the next quiet hours.

    Args:
        quiet: What is kept free; of several tenants, everything that one of them keeps free.
        at: Not before that moment.
        until: Not after that one, unless it is `at` itself.
        lasts: How long it takes; 0 or less: a moment.

    Returns:
        That moment; None: there is none until then.
    """
    distinct = set(quiet)
    length = min(max(lasts, _INSTANT), _LASTS_MAX)
    moment = at
    while True:
        free_from = max((end for each in distinct for end in _ends(each, moment, moment + length)), default=moment)
        if free_from == moment:
            return moment
        if free_from > until:
            return None
        moment = free_from


def is_disturbed(quiet: Iterable[QuietHours], at: datetime, lasts: timedelta) -> bool:
    """Whether some of these quiet hours meet the time that begins `at` and lasts so long."""
    end = at + min(max(lasts, _INSTANT), _LASTS_MAX)
    return any(True for each in set(quiet) for _ in _ends(each, at, end))


def _ends(quiet: QuietHours, begin: datetime, end: datetime) -> Iterable[datetime]:
    """Where those quiet hours end that meet the time from `begin` to `end`."""
    # What began two days ago may go on: a whole day, and an hour more when clocks are set back.
    day = begin.astimezone(quiet.zone.rules).replace(tzinfo=None, hour=0, minute=0, second=0, microsecond=0) - 2 * _DAY
    last = end.astimezone(quiet.zone.rules).replace(tzinfo=None) + _DAY
    while day <= last:
        if day.weekday() in quiet.days:
            quiet_from, quiet_until = quiet.span(day)
            if quiet_from < end and quiet_until > begin:
                yield quiet_until
        day += _DAY
