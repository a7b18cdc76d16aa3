"""Escaping of control characters: text from others must not control the reader's terminal.

Tenants, guests and strangers write descriptions, reasons, tags, targets and headers of requests. All code that prints
them uses this module: commands (through `forewarn.cli.output`) and the logs of the service and the agent.
"""

from __future__ import annotations

import re

__all__ = ["escape_controls", "escape_json", "escape_lines", "has_controls"]

_RANGES = "\\x7f-\\x9f\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069"
"""Delete and the C1 controls, line separators, and characters that change the text direction."""

_CONTROL = re.compile(f"[\\x00-\\x1f{_RANGES}]")
_NOT_LINES = re.compile(f"[\\x00-\\x08\\x0b-\\x1f{_RANGES}]")
_NOT_JSON = re.compile(f"[{_RANGES}]")


def escape_controls(text: str) -> str:
    r"""Return the text as one line, with control characters escaped as in Python, such as ``\x1b`` and ``\n``."""
    return _CONTROL.sub(_escape_match, text)


def escape_lines(text: str) -> str:
    """Escape control characters, but keep line breaks and tabs."""
    return _NOT_LINES.sub(_escape_match, text)


def escape_json(text: str) -> str:
    """Return equivalent JSON that also escapes the control characters that JSON allows unescaped."""
    return _NOT_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def has_controls(text: str) -> bool:
    """Return True if the text holds control characters other than line breaks and tabs."""
    return _NOT_LINES.search(text) is not None


def _escape_match(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
