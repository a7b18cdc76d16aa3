"""Rules for a reload: which settings take effect while the agent runs."""

from __future__ import annotations

import msgspec

from forewarn.agent.configuration import Configuration

__all__ = ["LIVE_KEYS", "merge"]

LIVE_KEYS = ("rule", "timezone", "margin", "events_max", "history_max", "log_level")
"""Settings that take effect at once. The others affect connections, files or peers, and wait for a restart."""


def merge(running: Configuration, read: Configuration) -> tuple[Configuration, tuple[str, ...]]:
    """Return the configuration in effect from now on, and the keys that differ but wait for a restart.

    Args:
        running: Configuration in effect.
        read: Configuration in the file.
    """
    merged = msgspec.structs.replace(running, **{key: getattr(read, key) for key in LIVE_KEYS})
    keys = tuple(key for key in Configuration.__struct_fields__ if getattr(merged, key) != getattr(read, key))
    return merged, keys
