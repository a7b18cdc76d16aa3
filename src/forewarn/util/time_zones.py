"""Time zones by name; the only module that reads their rules, from the system or the package tzdata."""

from __future__ import annotations

from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo

__all__ = ["load_zone"]

_NAME_LENGTH_MAX = 64


def load_zone(name: str) -> tzinfo:
    """Return the rules of a time zone. UTC needs neither the system's files nor the package.

    Args:
        name: IANA name, such as ``Europe/Berlin``.

    Raises:
        ValueError: No time zone has that name.
    """
    try:
        if len(name) > _NAME_LENGTH_MAX:
            raise LookupError  # noqa: TRY301 - one message for all reasons
        rules = UTC if name == "UTC" else ZoneInfo(name)
    except (ValueError, OSError, LookupError) as error:
        shown = name[:_NAME_LENGTH_MAX]
        msg = f"{shown!r} is not a time zone that this machine has: expected for example 'Europe/Berlin'"
        raise ValueError(msg) from error
    return rules
