"""Client library for code inside a VM: watch scheduled events, and approve them.

`Client` for threads, `AsyncClient` for asyncio; both drive one flow that does no I/O (`flow`). Nothing of the server is
imported.
"""

from __future__ import annotations

from forewarn.client.change import Change, ChangeKind, diff
from forewarn.client.client import AsyncClient, Client, StopSignal
from forewarn.client.flow import API_VERSIONS, PollAnswered, PollFailed
from forewarn.client.pace import Pace
from forewarn.client.transport import DEFAULT_URL
from forewarn.errors import BadAnswer, EndpointError, EndpointRefused, EndpointUnreachable
from forewarn.wire.document import Document, Event

__all__ = [
    "API_VERSIONS",
    "DEFAULT_URL",
    "AsyncClient",
    "BadAnswer",
    "Change",
    "ChangeKind",
    "Client",
    "Document",
    "EndpointError",
    "EndpointRefused",
    "EndpointUnreachable",
    "Event",
    "Pace",
    "PollAnswered",
    "PollFailed",
    "StopSignal",
    "diff",
]
