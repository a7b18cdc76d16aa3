"""Checks of requests to the dashboard before a handler runs, and the headers of every response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeAlias
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from forewarn.control.context import Context
from forewarn.control.gate import is_cross_origin
from forewarn.core.access import Principal, Role
from forewarn.core.usage_limits import UseKind
from forewarn.dashboard.session import Sessions, check_origin, is_rebound
from forewarn.errors import Forbidden, ForewarnError, Unauthorized

__all__ = ["HEADERS", "Answer", "PageAnswer", "PageRequest", "RequestGuard", "format_address"]

HEADERS = {
    "content-security-policy": (
        # Nothing from other sites and no inline code. Images as `data:` are those of Swagger UI's style sheet.
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every response."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Request from a caller who has logged in."""

    request: Request
    caller: Principal


Answer: TypeAlias = Callable[[Request], Awaitable[Response]]
"""Handler of a request from anyone."""

PageAnswer: TypeAlias = Callable[[PageRequest], Awaitable[Response]]
"""Handler of a request from a caller who has logged in."""


class RequestGuard:
    """Wraps the handlers of the dashboard with checks."""

    def __init__(
        self,
        context: Context,
        sessions: Sessions,
        render_error: Callable[[Request, ForewarnError], Awaitable[Response]],
    ) -> None:
        self._context = context
        self._sessions = sessions
        self._render_error = render_error

    def guard(self, answer: Answer) -> Answer:
        """Wrap a handler: render errors as pages, and add the headers that every response has."""

        async def guarded(request: Request) -> Response:
            try:
                if is_rebound(request):
                    raise Forbidden("the Host header does not name this machine: use localhost")
                if request.method == "GET" and is_cross_origin(request.headers):  # forms have a separate check
                    raise Forbidden("cross-site request refused: open the dashboard directly")
                response = await answer(request)
            except ForewarnError as error:
                if isinstance(error, Forbidden):
                    self._context.refusal_log.record_refusal(request, error)
                response = await self._render_error(request, error)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return guarded

    def require_session(self, answer: PageAnswer, roles: frozenset[Role] = frozenset(Role)) -> Answer:
        """Wrap a handler: redirect callers without a session to the login page, and refuse callers of other roles.

        The request is charged to the caller's account until the response has ended.
        """

        async def visited(request: Request) -> Response:
            session = await self._sessions.find(request, self._context.clock.now())
            if session is not None:
                request.state.caller = session.caller
                if session.caller.role not in roles:
                    msg = f"{session.caller.actor} may not view this page: not allowed for role {session.caller.role}"
                    raise Forbidden(msg, role=session.caller.role.value)
                self._charge_request(request, session.caller)
                return await answer(PageRequest(request, session.caller))
            if request.url.path.startswith("/live/"):
                raise Unauthorized("the session has ended: log in again")
            return RedirectResponse(f"/login?{urlencode({'next': format_address(request)})}", HTTPStatus.SEE_OTHER)

        return self.guard(visited)

    def _charge_request(self, request: Request, caller: Principal) -> None:
        admission = self._context.admission
        is_live = request.url.path.startswith("/live/")
        account = admission.charge_request(request, caller, UseKind.LIVE_PAGES if is_live else UseKind.REQUESTS)
        if request.method == "POST":
            admission.charge_change(request, account)
            # The limit was that of an unknown caller until now.
            request.state.exchange.size_bytes_max = self._context.settings.body_size_bytes_max

    def require_same_origin(self, answer: PageAnswer) -> Answer:
        """Wrap a handler of a form: as `require_session`, and refuse forms of other sites."""

        async def sent(visit: PageRequest) -> Response:
            check_origin(visit.request)
            return await answer(visit)

        return self.require_session(sent)


def format_address(request: Request) -> str:
    """Return the path and query of a request, encoded."""
    # Starlette's URL holds the decoded path, where a question mark in a name would end the path.
    return quote(request.scope["path"]) + (f"?{request.url.query}" if request.url.query else "")
