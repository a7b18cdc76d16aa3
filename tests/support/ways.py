"""The two ways in which a new connection of a VM is accepted (ADR 43), for tests that run over both.

A module whose tests run over both says `pytestmark = both_ways`. Every service that it starts, by a fixture or in a
test, then accepts in one way after the other. Fixtures that start a service for a whole module depend on the fixture
`way`. Other modules have the way that the platform has: on Linux, the acceptor. So have services in other processes,
which the fixture does not reach.
"""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from forewarn.endpoint import server

__all__ = ["ACCEPTOR", "EVENT_LOOP", "LOOPS", "both_ways", "choose_way"]

ACCEPTOR = "acceptor"
"""The first known request is answered before there is a transport, as on Linux."""

EVENT_LOOP = "event loop"
"""The event loop's server accepts, as on other systems."""

LOOPS = [pytest.param(uvloop.new_event_loop, id="uvloop"), pytest.param(asyncio.SelectorEventLoop, id="asyncio")]
"""For a fixture whose service runs on each of the event loops, which differ in when they read and what they know."""

both_ways = [
    pytest.mark.usefixtures("way"),
    pytest.mark.parametrize("way", [ACCEPTOR, EVENT_LOOP], indirect=True, scope="module"),
]


def choose_way(way: str, patch: pytest.MonkeyPatch) -> None:
    """Have the services that start from now on accept in that way, until the patch is undone."""
    if way == EVENT_LOOP:
        patch.setattr(server, "defer_accepting", lambda _sock: False)
