"""Try a handler of scheduled events in a test: a real endpoint in this process, on virtual time.

With pytest, ask for the fixture `scheduled_events`; with unittest or anything else, use `ScheduledEvents` as a context
manager. Needs ``pip install forewarn[testing]``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forewarn.testing.aio import AsyncScheduledEvents
    from forewarn.testing.event import ScheduledEvent
    from forewarn.testing.sync import ScheduledEvents

__all__ = ["AsyncScheduledEvents", "ScheduledEvent", "ScheduledEvents"]

_MODULES = {"AsyncScheduledEvents": "aio", "ScheduledEvent": "event", "ScheduledEvents": "sync"}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module holds
    """What needs the server's libraries is imported when it is asked for: recording and checking do without."""
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    try:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        msg = f"{name} needs {error.name}, which is missing: pip install 'forewarn[testing]'"
        raise ModuleNotFoundError(msg, name=error.name) from error
