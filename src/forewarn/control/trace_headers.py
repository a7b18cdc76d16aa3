"""Trace headers of requests: only operators and read-only callers may join a trace.

The id of a maintenance's trace follows from the maintenance's id, which tenants know. A caller who may name a trace can
write into it, and can have all its requests sampled. FastAPI begins a span before the caller is known, so trace
headers of all other callers are removed before FastAPI sees the request.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from forewarn.control.context import Context
from forewarn.core.access import Role
from forewarn.errors import ForewarnError

__all__ = ["TraceHeaderFilter"]

_TRUSTED = frozenset({Role.OPERATOR, Role.READ_ONLY})
"""Roles that may see everything anyway."""


class TraceHeaderFilter:
    """Removes trace headers from requests unless the caller's role is in `_TRUSTED`.

    If a request carries such a header, its token is looked up twice: here and at the route.

    The names of these headers are in lower case.
    """

    def __init__(self, app: ASGIApp, context: Context, names: frozenset[str]) -> None:
        self._app = app
        self._context = context
        self._names = frozenset(name.encode() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http":
            kept = [(name, value) for name, value in scope["headers"] if name not in self._names]
            # The token is looked up only if there is something to remove; most requests carry no trace.
            if len(kept) < len(scope["headers"]) and not await self._is_trusted(Headers(scope=scope)):
                scope = {**scope, "headers": kept}
        await self._app(scope, receive, send)

    async def _is_trusted(self, headers: Headers) -> bool:
        context = self._context
        header = headers.get("authorization")
        try:
            caller = await context.authenticator.authenticate(
                header, context.engine.tokens.find_by_digest, context.clock.now()
            )
        except ForewarnError:  # the route reports and counts it
            return False
        return caller.role in _TRUSTED
