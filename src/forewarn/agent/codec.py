"""Conversion of values in the configuration, the state file and messages between text and types.

msgspec checks and converts; this module adds two types that are written as text: durations and weekly windows.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from forewarn.agent.window import Window
from forewarn.util.duration import format_span, parse_span

__all__ = ["Mistake", "Span", "convert", "decode", "encode"]

T = TypeVar("T")


class Mistake(ValueError):
    """A value of the right type that makes no sense.

    Attributes:
        keys: Path of the value, relative to the table whose check found it.
    """

    def __init__(self, message: str, *keys: str | int) -> None:
        super().__init__(message)
        self.keys = keys


class Span(timedelta):
    """A duration, written as ``90s``, ``15m`` or ``24h``; never negative."""

    @classmethod
    def read(cls, value: object) -> Span:
        """Parse a text, or a number of seconds.

        Raises:
            ValueError: The value is not a duration, or is negative.
        """
        # A bool is also an int, so it is excluded first.
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            msg = "expected a span of time, for example 90s, 15m, 24h or 7d"
            raise ValueError(msg)  # noqa: TRY004 - msgspec turns a ValueError into its own
        span = parse_span(value)
        if span < timedelta(0):
            msg = f"{value!r} is negative"
            raise ValueError(msg)
        return cls(seconds=span.total_seconds())


def convert(value: object, to: type[T]) -> T:
    """Convert a value of TOML or JSON to that type.

    Raises:
        msgspec.ValidationError: The value does not fit; the message says what was expected and ends with the path.
    """
    return msgspec.convert(value, to, dec_hook=_decode_value)


def decode(text: bytes, to: type[T]) -> T:
    """Decode JSON to that type.

    Raises:
        msgspec.DecodeError: The text is not JSON, or does not fit.
    """
    return msgspec.json.decode(text, type=to, dec_hook=_decode_value)


def encode(value: object) -> bytes:
    """Encode a value as JSON."""
    return msgspec.json.encode(value, enc_hook=_encode_value)


def _decode_value(kind: type, value: Any) -> Any:  # noqa: ANN401 - msgspec's hook
    if kind is Span:
        return Span.read(value)
    assert kind is Window  # noqa: S101 - there are only these two types
    if not isinstance(value, str):
        msg = "expected a time window, for example 'Mon-Fri 22:00-06:00'"
        raise ValueError(msg)  # noqa: TRY004 - msgspec turns a ValueError into its own
    return Window(value)


def _encode_value(value: object) -> str:
    if isinstance(value, Span):
        return format_span(value)
    if isinstance(value, Window):
        return value.text
    raise NotImplementedError
