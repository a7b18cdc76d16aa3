"""Objects of an inventory as YAML, as `as_yaml` prints them, in a tenth of its time.

PyYAML takes 75 microseconds for a VM, so several seconds for 100,000. Nearly all values in an inventory are names,
addresses and numbers, which are printed as they are. PyYAML formats the others.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from forewarn.cli.output import as_yaml

__all__ = ["format_yaml_item"]

_PLAIN = re.compile(
    r"""(?!(?:yes|no|true|false|on|off|null)\Z)[a-z][a-z0-9_.-]*    # a name; but not a word with a meaning in YAML
    | [0-9]+\.[0-9]+\.[0-9]+\.[0-9]+                                # an IPv4 address
    | [0-9a-f]+(?::[0-9a-f]+)*::[0-9a-f]+(?::[0-9a-f]+)*            # an IPv6 address; one without :: may be a number
    | [0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}                   # a UUID
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_FOLDED_LENGTH_MIN = 60
"""Texts from this length may be folded, depending on where they are."""


def format_yaml_item(item: dict[str, Any]) -> str:
    """Return an object as an item of a YAML list."""
    lines: list[str] = []
    for name, value in item.items():
        if isinstance(value, list):
            values = [_format_scalar(each) for each in value]
            if not values or None in values:
                return as_yaml([item])
            lines.append(f"{name}:")
            lines += [f"- {text}" for text in values]
        elif isinstance(value, dict):
            pairs = [(_format_scalar(key), _format_scalar(each)) for key, each in value.items()]
            if not pairs or any(None in pair for pair in pairs):
                return as_yaml([item])
            lines.append(f"{name}:")
            lines += [f"  {key}: {text}" for key, text in pairs]
        else:
            text = _format_scalar(value)
            if text is None:
                return as_yaml([item])
            lines.append(f"{name}: {text}")
    return "- " + "\n  ".join(lines) + "\n"


def _format_scalar(value: object) -> str | None:
    """Return a text or number as YAML; None if that depends on where it is."""
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and len(value) < _FOLDED_LENGTH_MIN else _format_text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else None


@lru_cache(maxsize=4096)
def _format_text(value: str) -> str | None:
    if len(value) >= _FOLDED_LENGTH_MIN or not value.isascii() or not value.isprintable():
        return None
    return as_yaml([value])[len("- ") :].rstrip("\n")
