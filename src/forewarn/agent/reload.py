"""Rules for a reload: which settings take effect while the agent runs."""

from __future__ import annotations

import msgspec

from forewarn.agent.configuration import Configuration

__all__ = ["LIVE_KEYS", "merge_live_settings"]

LIVE_KEYS = ("rule", "timezone", "margin", "events_max", "history_max", "log_level")
"""Settings that take effect at once. The others affect connections, files or peers, and wait for a restart."""


def merge_live_settings(current: Configuration, loaded: Configuration) -> tuple[Configuration, tuple[str, ...]]:
    """Return the configuration in effect from now on, and the keys that differ but wait for a restart.

    Args:
        current: Configuration in effect.
        loaded: Configuration in the file.
    """
    merged = msgspec.structs.replace(current, **{key: getattr(loaded, key) for key in LIVE_KEYS})
    keys = tuple(key for key in Configuration.__struct_fields__ if getattr(merged, key) != getattr(loaded, key))
    return merged, keys
