"""Durations in human notation: ``90s``, ``15m``, ``24h``, ``7d``, ``250ms``."""

from __future__ import annotations

import re
from datetime import timedelta

__all__ = ["format_duration", "parse_duration"]

_SPAN = re.compile(r"(-?[0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)?")
_UNIT_US = {"ms": 1000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_SPAN_MAX = timedelta(days=36_525)


def parse_duration(value: object) -> timedelta:
    """Parse ``90s``, ``15m``, ``24h``, ``7d``, ``250ms``, or a number of seconds; a hundred years at most.

    Raises:
        ValueError: The value is in no such form, or too large.
    """
    if isinstance(value, timedelta):
        return value
    # `str` would write small and large floats with an exponent, which the pattern does not allow.
    text = f"{value:f}" if isinstance(value, float) else str(value).strip()
    match = _SPAN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a span of time: expected for example 90s, 15m, 24h or 7d")
    us = float(match[1]) * _UNIT_US[match[2] or "s"]
    if abs(us) > _SPAN_MAX // timedelta(microseconds=1):
        raise ValueError(f"{text!r} is more than a hundred years")
    return timedelta(microseconds=round(us))


def format_duration(span: timedelta) -> str:
    """Return a short form that `parse_duration` can read."""
    us = span // timedelta(microseconds=1)
    for unit in ("d", "h", "m"):
        if us and us % _UNIT_US[unit] == 0:
            return f"{us // _UNIT_US[unit]}{unit}"
    seconds, rest = divmod(abs(us), _UNIT_US["s"])
    digits = f"{seconds}.{rest:06d}".rstrip("0").rstrip(".")
    return f"{'-' if us < 0 else ''}{digits}s"
