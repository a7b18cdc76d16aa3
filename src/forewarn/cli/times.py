"""Parsing of values on the command line: times (``90s``, ``15m``, ``7d``, or RFC 3339), and names."""

from __future__ import annotations

import math
from collections.abc import Collection
from datetime import UTC, datetime, timedelta

import typer

__all__ = ["UNKNOWN", "as_duration_s", "as_moment_or_span", "as_span_s", "check_known", "split_names"]

UNKNOWN = "unknown"
"""Unknown duration; -1 in the API (R39)."""


def as_span_s(text: str | None, hint: str) -> float | None:
    """Parse ``90s``, ``15m``, ``24h``, ``7d`` or a number of seconds to seconds.

    Raises:
        typer.BadParameter: It is not a span of time, or negative.
    """
    if text is None:
        return None
    from forewarn.util.duration import parse_duration

    try:
        span = parse_duration(text)
    except (ValueError, OverflowError):
        span = None
    if not isinstance(span, timedelta) or span < timedelta(0):
        msg = f"{text!r} is not a span of time: expected for example 90s, 15m, 24h or 7d"
        raise typer.BadParameter(msg, param_hint=hint)
    return span.total_seconds()


def as_duration_s(text: str | None, hint: str) -> int | None:
    """Parse a span to whole seconds; -1 for `unknown`.

    Raises:
        typer.BadParameter: It is not a span of whole seconds.
    """
    if text in {UNKNOWN, "-1"}:
        return -1
    seconds = as_span_s(text, hint)
    if seconds is None:
        return None
    if not math.isfinite(seconds) or seconds != int(seconds):
        raise typer.BadParameter(f"{text!r} must be whole seconds", param_hint=hint)
    return int(seconds)


def as_moment_or_span(text: str, hint: str) -> datetime | float:
    """Parse an RFC 3339 time, or a span to seconds from now.

    Raises:
        typer.BadParameter: It is neither, or has no time zone.
    """
    try:
        # RFC 3339 allows a small z, which Python rejects.
        moment = datetime.fromisoformat(text.strip().replace("z", "Z"))
    except ValueError:
        moment = None
    # Python takes 20300131 for a date; here a bare number is seconds.
    if moment is None or text.strip().isdecimal():
        try:
            seconds = as_span_s(text, hint)
        except typer.BadParameter:
            seconds = None
        if seconds is None:
            msg = f"{text!r} is not a time: expected for example 2030-01-31T12:00:00Z, or a span such as 15m"
            raise typer.BadParameter(msg, param_hint=hint)
        return seconds
    if moment.tzinfo is None:
        msg = f"{text!r} has no time zone: expected for example {moment.isoformat()}Z"
        raise typer.BadParameter(msg, param_hint=hint)
    return moment.astimezone(UTC)


def split_names(given: list[str] | None) -> list[str]:
    """Return the names of a repeatable option that may also hold several with commas; each once, in order."""
    names = [name.strip() for text in given or [] for name in text.split(",")]
    return list(dict.fromkeys(name for name in names if name))


def check_known(word: str, known: Collection[str], what: str, hint: str) -> None:
    """Check that a word is one of those known.

    Raises:
        typer.BadParameter: It is not.
    """
    if word not in known:
        raise typer.BadParameter(f"unknown {what} {word!r}: expected one of {', '.join(known)}", param_hint=hint)
