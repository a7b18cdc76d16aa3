"""Arithmetic of quiet hours over weeks, nights and clock changes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from forewarn.core.policy import QuietHours

__all__ = ["first_calm", "is_disturbed"]

_DAY = timedelta(days=1)
_INSTANT = timedelta(microseconds=1)
_LASTS_MAX = timedelta(days=8)
"""Maximum duration to check: quiet hours repeat every week, so any longer duration meets them anyway."""


def first_calm(
    quiet: Iterable[QuietHours], at: datetime, until: datetime, lasts: timedelta = timedelta(0)
) -> datetime | None:
    """Return the first moment at which something can begin and end outside of all quiet hours.

    Args:
        quiet: Quiet hours of all tenants concerned.
        at: Earliest moment.
        until: Latest moment, unless `at` itself is free.
        lasts: Duration; 0 or less for a single moment.

    Returns:
        The moment; None if there is none until then.
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
        # This end may lie in other quiet hours, so look again from there.
        moment = free_from


def is_disturbed(quiet: Iterable[QuietHours], at: datetime, lasts: timedelta) -> bool:
    """Return True if any of these quiet hours overlap the period that begins `at` and lasts that long."""
    end = at + min(max(lasts, _INSTANT), _LASTS_MAX)
    return any(True for each in set(quiet) for _ in _ends(each, at, end))


def _ends(quiet: QuietHours, begin: datetime, end: datetime) -> Iterable[datetime]:
    """Yield the ends of the quiet hours that overlap the period from `begin` to `end`."""
    # Quiet hours that began two days ago may still last: a whole day, and an hour more when clocks are set back.
    day = begin.astimezone(quiet.zone.rules).replace(tzinfo=None, hour=0, minute=0, second=0, microsecond=0) - 2 * _DAY
    last = end.astimezone(quiet.zone.rules).replace(tzinfo=None) + _DAY
    while day <= last:
        if day.weekday() in quiet.days:
            quiet_from, quiet_until = quiet.span(day)
            if quiet_from < end and quiet_until > begin:
                yield quiet_until
        day += _DAY
