"""Whose trace a request may join: the one that an operator names.

The trace of a maintenance is named by its id, which tenants know. Whoever may name a trace may write into it, and may
have everything of its own sampled. So what anybody else says of a trace is taken off the request before FastAPI, which
begins a span before anybody knows who calls, gets to see it.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from forewarn.control.context import Context
from forewarn.core.access import Role
from forewarn.errors import ForewarnError

__all__ = ["OwnTraces"]

_TRUSTED = frozenset({Role.OPERATOR, Role.READ_ONLY})
"""Those who see everything anyway."""


class OwnTraces:
    """Takes the headers that name a trace off the requests of everybody but `_TRUSTED`.

    The token of a request that carries such a header is looked up twice: here, and where the route is.

    Args:
        app: The control API.
        context: Its parts.
        names: Of the headers, in lower case.
    """

    def __init__(self, app: ASGIApp, context: Context, names: frozenset[str]) -> None:
        self._app = app
        self._context = context
        self._names = frozenset(name.encode() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http":
            kept = [(name, value) for name, value in scope["headers"] if name not in self._names]
            if len(kept) < len(scope["headers"]) and not await self._is_trusted(Headers(scope=scope)):
                scope = {**scope, "headers": kept}
        await self._app(scope, receive, send)

    async def _is_trusted(self, headers: Headers) -> bool:
        context = self._context
        header = headers.get("authorization")
        try:
            caller = await context.tokens.principal(header, context.engine.token, context.clock.now())
        except ForewarnError:  # which the route tells, and counts
            return False
        return caller.role in _TRUSTED
