"""Durations as settings."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

from forewarn.util.duration import format_duration, parse_duration

__all__ = ["Span", "limit_seconds"]

Span = Annotated[timedelta, BeforeValidator(parse_duration), PlainSerializer(format_duration)]
"""Duration, written as ``90s``, ``15m``, ``24h``, ``7d`` or a number of seconds."""


def limit_seconds(seconds_max: int) -> dict[str, Any]:
    """Return arguments of `pydantic.Field` that limit a duration to between 0 and this many seconds."""
    return {"ge": timedelta(0), "le": timedelta(seconds=seconds_max)}
