"""A change is answered once VMs are shown it.

Where another process answers VMs, it hears of a change a moment after the commit. So the answer to whoever asked for
the change waits for that moment: a GET that begins after the answer sees the change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Settling"]

_READING = frozenset({"GET", "HEAD", "OPTIONS"})


class Settling:
    """Holds answers to requests that may have changed something.

    Args:
        app: Answers.
        settled: Returns when what was published is shown, or after a time that is bounded.
    """

    def __init__(self, app: ASGIApp, settled: Callable[[], Awaitable[None]]) -> None:
        self._app = app
        self._settled = settled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["method"] in _READING:
            await self._app(scope, receive, send)
            return

        async def hold(message: Message) -> None:
            if message["type"] == "http.response.start":
                await self._settled()
            await send(message)

        await self._app(scope, receive, hold)
