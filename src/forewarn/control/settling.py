"""Responses to changes, held until VMs see the change.

If another process answers VMs, it receives a change a moment after the commit. The response to the caller waits for
that, so that a GET of a VM that begins after the response sees the change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["SettlingMiddleware"]

_READING = frozenset({"GET", "HEAD", "OPTIONS"})


class SettlingMiddleware:
    """Holds the responses to requests that may have changed something.

    `wait_until_settled` returns when VMs are shown everything published so far, or after a bounded time.
    """

    def __init__(self, app: ASGIApp, wait_until_settled: Callable[[], Awaitable[None]]) -> None:
        self._app = app
        self._wait_until_settled = wait_until_settled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] in _READING:
            await self._app(scope, receive, send)
            return

        async def hold(message: Message) -> None:
            # Only the headers wait: the change is committed by then, and later parts follow at once.
            if message["type"] == "http.response.start":
                await self._wait_until_settled()
            await send(message)

        await self._app(scope, receive, hold)
