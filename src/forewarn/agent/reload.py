"""What of a configuration that was read again takes effect while the agent runs."""

from __future__ import annotations

import msgspec

from forewarn.agent.configuration import Configuration

__all__ = ["LIVE_KEYS", "merge"]

LIVE_KEYS = ("rule", "timezone", "margin", "events_max", "history_max", "log_level")
"""What takes effect at once. The rest is bound up with connections, files or peers, and waits for a restart."""


def merge(running: Configuration, read: Configuration) -> tuple[Configuration, tuple[str, ...]]:
    """The configuration that holds from now on, and the keys that differ but wait for a restart.

    Args:
        running: The one in effect.
        read: The one in the file.
    """
    merged = msgspec.structs.replace(running, **{key: getattr(read, key) for key in LIVE_KEYS})
    keys = tuple(key for key in Configuration.__struct_fields__ if getattr(merged, key) != getattr(read, key))
    return merged, keys
