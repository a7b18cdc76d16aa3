"""Test a handler against Forewarn's own endpoint, which runs in the test's process, on virtual time.

With pytest, request the fixture `scheduled_events`; with unittest or anything else, use `ScheduledEvents` as a context
manager. Needs ``pip install forewarn[testing]``. `simulate`, which tests a handler or an actuator in simulated clusters
with faults, needs ``forewarn[server]``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forewarn.core.fault import InjectedFault
    from forewarn.testing.aio import AsyncScheduledEvents
    from forewarn.testing.scheduled_event import ScheduledEvent
    from forewarn.testing.simulation import simulate
    from forewarn.testing.sync import ScheduledEvents
    from forewarn.testing.values import EventTypeName, FaultName
    from forewarn.wire.advice import Advice
    from forewarn.wire.document import Document, Event
    from forewarn.wire.exchange import Exchange

__all__ = [
    "Advice",
    "AsyncScheduledEvents",
    "Document",
    "Event",
    "EventTypeName",
    "Exchange",
    "FaultName",
    "InjectedFault",
    "ScheduledEvent",
    "ScheduledEvents",
    "simulate",
]

_MODULES = {
    "Advice": "forewarn.wire.advice",
    "AsyncScheduledEvents": "forewarn.testing.aio",
    "Document": "forewarn.wire.document",
    "Event": "forewarn.wire.document",
    "EventTypeName": "forewarn.testing.values",
    "Exchange": "forewarn.wire.exchange",
    "InjectedFault": "forewarn.core.fault",
    "FaultName": "forewarn.testing.values",
    "ScheduledEvent": "forewarn.testing.scheduled_event",
    "ScheduledEvents": "forewarn.testing.sync",
    "simulate": "forewarn.testing.simulation.check",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    """Import the names that need the server's libraries on first use: recording and checking work without them."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        extra = "server" if name == "simulate" else "testing"
        msg = f"{name} needs {error.name}, which is missing: pip install 'forewarn[{extra}]'"
        raise ModuleNotFoundError(msg, name=error.name) from error
