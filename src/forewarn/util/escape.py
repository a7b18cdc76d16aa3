"""Control characters made visible: what others wrote must not steer the terminal of whoever reads it.

Descriptions, reasons, tags, targets and headers of requests are written by tenants, guests and strangers. Everything
that prints them goes through here: commands (by `forewarn.cli.output`) and the logs of service and agent.
"""

from __future__ import annotations

import re

__all__ = ["escape_controls", "escape_json", "escape_lines", "has_controls"]

_RANGES = "\\x7f-\\x9f\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069"
"""Delete and the second set of controls, separators of lines, and what changes the direction of a text."""

_CONTROL = re.compile(f"[\\x00-\\x1f{_RANGES}]")
_NOT_LINES = re.compile(f"[\\x00-\\x08\\x0b-\\x1f{_RANGES}]")
_NOT_JSON = re.compile(f"[{_RANGES}]")


def escape_controls(text: str) -> str:
    r"""The text as one line: control characters as Python writes them, such as ``\x1b`` and ``\n``."""
    return _CONTROL.sub(_visible, text)


def escape_lines(text: str) -> str:
    """The same, but lines and tabs stay."""
    return _NOT_LINES.sub(_visible, text)


def escape_json(text: str) -> str:
    """JSON that says the same without the characters that it need not escape."""
    return _NOT_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def has_controls(text: str) -> bool:
    """Whether there is anything but lines and tabs to escape."""
    return _NOT_LINES.search(text) is not None


def _visible(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
