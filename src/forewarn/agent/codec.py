"""Values of configuration, state file and messages, between their text and their types.

msgspec checks and converts; this adds the two types of ours that stand in text: spans of time and weekly windows.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from forewarn.agent.window import Window
from forewarn.span import format_span, parse_span

__all__ = ["Span", "convert", "decode", "encode"]

T = TypeVar("T")


class Span(timedelta):
    """A span of time that is written ``90s``, ``15m``, ``24h``; never negative."""

    @classmethod
    def read(cls, value: object) -> Span:
        """The span of a text or a number of seconds.

        Raises:
            ValueError: It is none, or negative.
        """
        span = parse_span(value)
        if span < timedelta(0):
            msg = f"{value!r} is negative"
            raise ValueError(msg)
        return cls(seconds=span.total_seconds())


def convert(value: object, to: type[T]) -> T:
    """A value of TOML or JSON as that type.

    Raises:
        msgspec.ValidationError: It does not fit; the message says what was expected and ends with the path.
    """
    return msgspec.convert(value, to, dec_hook=_decode_value)


def decode(text: bytes, to: type[T]) -> T:
    """A value out of JSON.

    Raises:
        msgspec.DecodeError: It is not JSON, or does not fit.
    """
    return msgspec.json.decode(text, type=to, dec_hook=_decode_value)


def encode(value: object) -> bytes:
    """A value as JSON."""
    return msgspec.json.encode(value, enc_hook=_encode_value)


def _decode_value(kind: type, value: Any) -> Any:  # noqa: ANN401 - msgspec's hook
    if kind is Span:
        return Span.read(value)
    if kind is Window and isinstance(value, str):
        return Window(value)
    msg = f"Expected `{kind.__name__}`"
    raise ValueError(msg)


def _encode_value(value: object) -> str:
    if isinstance(value, Span):
        return format_span(value)
    if isinstance(value, Window):
        return value.text
    raise NotImplementedError
