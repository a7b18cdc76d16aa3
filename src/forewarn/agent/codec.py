"""Conversion of values in the configuration, the state file and messages between text and types.

msgspec checks and converts; this module adds two types that are written as text: durations and weekly windows.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from forewarn.agent.window import WeeklyWindow
from forewarn.util.duration import format_duration, parse_duration

__all__ = ["Duration", "InvalidValue", "convert", "decode_json", "encode_json"]

T = TypeVar("T")


class InvalidValue(ValueError):
    """A value of the right type that makes no sense.

    Attributes:
        keys: Path of the value, relative to the table whose check found it.
    """

    def __init__(self, message: str, *keys: str | int) -> None:
        super().__init__(message)
        self.keys = keys


class Duration(timedelta):
    """A duration, written as ``90s``, ``15m`` or ``24h``; never negative."""

    @classmethod
    def parse(cls, value: object) -> Duration:
        """Parse a text, or a number of seconds.

        Raises:
            ValueError: The value is not a duration, or is negative.
        """
        # A bool is also an int, so it is excluded first.
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            msg = "expected a duration, for example 90s, 15m, 24h or 7d"
            raise ValueError(msg)  # noqa: TRY004 - msgspec turns a ValueError into its own
        span = parse_duration(value)
        if span < timedelta(0):
            raise ValueError(f"{value!r} is negative")
        return cls(seconds=span.total_seconds())


def convert(value: object, target: type[T]) -> T:
    """Convert a value of TOML or JSON to that type.

    Raises:
        msgspec.ValidationError: The value does not fit; the message says what was expected and ends with the path.
    """
    return msgspec.convert(value, target, dec_hook=_decode_value)


def decode_json(text: bytes, target: type[T]) -> T:
    """Decode JSON to that type.

    Raises:
        msgspec.DecodeError: The text is not JSON, or does not fit.
    """
    return msgspec.json.decode(text, type=target, dec_hook=_decode_value)


def encode_json(value: object) -> bytes:
    """Encode a value as JSON."""
    return msgspec.json.encode(value, enc_hook=_encode_value)


def _decode_value(kind: type, value: Any) -> Any:  # noqa: ANN401 - msgspec's hook
    if kind is Duration:
        return Duration.parse(value)
    assert kind is WeeklyWindow  # noqa: S101 - there are only these two types
    if not isinstance(value, str):
        msg = "expected a time window, for example 'Mon-Fri 22:00-06:00'"
        raise ValueError(msg)  # noqa: TRY004 - msgspec turns a ValueError into its own
    return WeeklyWindow(value)


def _encode_value(value: object) -> str:
    if isinstance(value, Duration):
        return format_duration(value)
    if isinstance(value, WeeklyWindow):
        return value.text
    raise NotImplementedError
