"""Quiet hours as a clock on the wall shows them, said once more in other words than the core's."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from forewarn.core.policy import DAYS, QuietHours, TimeZone

__all__ = ["ALL_DAYS", "WEEKDAYS", "is_quiet", "quiet_hours", "utc"]

ALL_DAYS = " ".join(DAYS)
WEEKDAYS = " ".join(DAYS[:5])


def quiet_hours(days: str, begin: str, end: str, zone: str = "Europe/Berlin") -> QuietHours:
    """``quiet_hours("sat sun", "22:00", "06:00")``."""
    return QuietHours(
        days=tuple(DAYS.index(day) for day in days.split()),
        begin=time.fromisoformat(begin),
        end=time.fromisoformat(end),
        zone=TimeZone(name=zone, rules=ZoneInfo(zone)),
    )


def utc(text: str) -> datetime:
    """``utc("2026-03-29 01:30")``."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def is_quiet(quiet: QuietHours, moment: datetime) -> bool:
    """Whether the clock on the wall shows a time in the quiet hours, on a day that they hold for."""
    local = moment.astimezone(quiet.zone.rules)
    today, yesterday = local.weekday(), (local - timedelta(days=1)).weekday()
    if quiet.begin < quiet.end:
        return today in quiet.days and quiet.begin <= local.time() < quiet.end
    begun_today = today in quiet.days and local.time() >= quiet.begin
    return begun_today or (yesterday in quiet.days and local.time() < quiet.end)
