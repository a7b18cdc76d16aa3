"""Arithmetic of quiet hours over weeks, nights and clock changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice

from forewarn.core.policy import QuietHours

__all__ = ["QuietPeriod", "find_free_start", "list_next_quiet_periods", "overlaps_quiet_hours"]

_DAY = timedelta(days=1)
_INSTANT = timedelta(microseconds=1)
_LASTS_MAX = timedelta(days=8)
"""Maximum duration to check: quiet hours repeat every week, so any longer duration meets them anyway."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class QuietPeriod:
    """One occurrence of quiet hours.

    Attributes:
        begin: Time in UTC.
        end: Time in UTC.
        quiet_hours: Quiet hours that recur.
    """

    begin: datetime
    end: datetime
    quiet_hours: QuietHours = field(compare=False)


def list_next_quiet_periods(quiet: Iterable[QuietHours], now: datetime, limit: int) -> list[QuietPeriod]:
    """Return the first `limit` occurrences that are not over, each only once, by begin."""
    found: set[QuietPeriod] = set()
    for each in set(quiet):
        # Quiet hours recur every week, so `limit` weeks hold that many; the current ones began up to two days ago.
        day = now.astimezone(each.zone.rules).replace(tzinfo=None, hour=0, minute=0, second=0, microsecond=0) - 2 * _DAY
        periods = (
            QuietPeriod(begin=begin, end=end, quiet_hours=each)
            for days in range(7 * limit + 3)
            if (day + days * _DAY).weekday() in each.days
            for begin, end in [each.get_interval(day + days * _DAY)]
            if end > now
        )
        found.update(islice(periods, limit))
    return sorted(found)[:limit]


def find_free_start(
    quiet: Iterable[QuietHours], at: datetime, until: datetime, duration: timedelta = timedelta(0)
) -> datetime | None:
    """Return the first moment from `at` on at which something can begin and end outside of all quiet hours.

    None if there is none until `until`; `at` itself may be later than that. A duration of 0 or less is a single moment.
    """
    # Hundreds of tenants on a host may have the same quiet hours.
    distinct = set(quiet)
    # An interval without length would overlap nothing, so a single moment counts as the shortest one.
    length = min(max(duration, _INSTANT), _LASTS_MAX)
    moment = at
    # This ends: each round moves on to a later end of quiet hours, and `until` bounds it.
    while True:
        free_from = max((end for each in distinct for end in _find_ends(each, moment, moment + length)), default=moment)
        if free_from == moment:
            return moment
        if free_from > until:
            return None
        # This end may lie in other quiet hours, so look again from there.
        moment = free_from


def overlaps_quiet_hours(quiet: Iterable[QuietHours], at: datetime, duration: timedelta) -> bool:
    """Return True if any of these quiet hours overlap the period that begins `at` and lasts that long."""
    end = at + min(max(duration, _INSTANT), _LASTS_MAX)
    return any(True for each in set(quiet) for _ in _find_ends(each, at, end))


def _find_ends(quiet_hours: QuietHours, begin: datetime, end: datetime) -> Iterable[datetime]:
    """Yield the ends of the quiet hours that overlap the period from `begin` to `end`."""
    # Quiet hours that began two days ago may still last: a whole day, and an hour more when clocks are set back.
    day = (
        begin.astimezone(quiet_hours.zone.rules).replace(tzinfo=None, hour=0, minute=0, second=0, microsecond=0)
        - 2 * _DAY
    )
    last = end.astimezone(quiet_hours.zone.rules).replace(tzinfo=None) + _DAY
    while day <= last:
        if day.weekday() in quiet_hours.days:
            quiet_from, quiet_until = quiet_hours.get_interval(day)
            if quiet_from < end and quiet_until > begin:
                yield quiet_until
        day += _DAY
