"""Login with a token, with a link from the command line, or through an OpenID Connect issuer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from forewarn.auth.signed_tokens import Seal, moment_of, who
from forewarn.control.access import identify
from forewarn.control.context import Context
from forewarn.control.login import PURPOSE
from forewarn.core.access import Principal, Revocation, Role
from forewarn.dashboard.forms import read_form
from forewarn.dashboard.issuer import IssuerLogin
from forewarn.dashboard.render import render
from forewarn.dashboard.session import Sessions, check_origin
from forewarn.errors import Forbidden, Unauthorized

__all__ = ["Login"]

_SPENT = "this link was used, or its minute is over: make a new one with 'forewarn dashboard'"

Around = Callable[[Request, str], dict[str, object]]
Answer = Callable[[Request], Awaitable[Response]]


class Login:
    """Routes that begin and end sessions.

    Args:
        context: Parts of the service.
        sessions: Sessions of the dashboard.
        around: Returns the template values common to all pages, given the page's title.
    """

    def __init__(self, context: Context, sessions: Sessions, around: Around) -> None:
        self._context = context
        self._sessions = sessions
        self._around = around
        self._links = Seal(context.tokens.operator, PURPOSE)
        issuer = context.tokens.issuer
        has_login = issuer is not None and issuer.settings.client_id
        self._issuer = IssuerLogin(issuer, context.tokens.operator) if issuer is not None and has_login else None

    def routes(self, guarded: Callable[[Answer], Answer]) -> list[Route]:
        """Return all routes, with their handlers wrapped by `guarded`."""
        found = [
            ("/login", self._page, "GET"),
            ("/login", self._by_token, "POST"),
            ("/login/link/{word}", self._link_page, "GET"),
            ("/login/link/{word}", self._by_link, "POST"),
            ("/logout", self._leave, "POST"),
        ]
        if self._issuer is not None:
            found += [
                ("/login/issuer", partial(self._to_issuer, self._issuer), "GET"),
                ("/login/back", partial(self._from_issuer, self._issuer), "GET"),
            ]
        return [Route(path, guarded(answer), methods=[method]) for path, answer, method in found]

    # With a token

    async def _page(self, request: Request) -> Response:
        return self._form(request, inside(request.query_params.get("next", "/")))

    async def _by_token(self, request: Request) -> Response:
        check_origin(request)
        form = await read_form(request)
        target = inside(form.get("next", "/"))
        header = f"Bearer {form.get('token', '').strip() or '-'}"
        try:
            caller = _person(await identify(self._context, request, header))
        except (Unauthorized, Forbidden) as error:
            self._context.refused.note(request, error)
            return self._form(request, target, error.message)
        return self._welcome(request, caller, target)

    def _form(self, request: Request, target: str, wrong: str = "") -> Response:
        values = {"next": target, "wrong": wrong, "page_live": None, "has_issuer": self._issuer is not None}
        status = HTTPStatus.UNAUTHORIZED if wrong else HTTPStatus.OK
        return Response(render("login.html", self._around(request, "Log in") | values), status, media_type="text/html")

    # By a link

    async def _link_page(self, request: Request) -> Response:
        """Show a page that asks for confirmation: link scanners that open the link must not use it up."""
        caller, _ = await self._behind(request)
        values = {"page_live": None, "who": caller.actor, "word": request.path_params["word"]}
        return Response(render("link.html", self._around(request, "Log in") | values), media_type="text/html")

    async def _by_link(self, request: Request) -> Response:
        check_origin(request)
        caller, revocation = await self._behind(request)
        if not await self._context.engine.revoke(revocation):  # another replica was faster
            raise Unauthorized(_SPENT)
        return self._welcome(request, caller, "/")

    async def _behind(self, request: Request) -> tuple[Principal, Revocation]:
        """Return the caller who made the link, and the revocation that marks it as used.

        Raises:
            Unauthorized: The link was used, has expired, or its token is no longer valid.
        """
        now = self._context.clock.now()
        content = self._links.open(request.path_params["word"], now)
        if content is not None and not await self._context.engine.is_revoked(content["nonce"]):
            caller = await who(content, self._context.engine.token_of, now)
            if caller is not None:
                until = content.get("expires_at")
                limited = caller if until is None else replace(caller, expires_at=datetime.fromtimestamp(until, UTC))
                spent = Revocation(nonce=content["nonce"], actor=caller.actor, expires_at=moment_of(content))
                return _person(limited), spent
        raise Unauthorized(_SPENT)

    # At an issuer

    async def _to_issuer(self, issuer: IssuerLogin, request: Request) -> Response:
        target = inside(request.query_params.get("next", "/"))
        return await issuer.leave(request, target, self._context.clock.now())

    async def _from_issuer(self, issuer: IssuerLogin, request: Request) -> Response:
        try:
            caller, target = await issuer.back(request, self._context.clock.now())
            caller = _person(caller)
        except (Unauthorized, Forbidden) as error:
            self._context.refused.note(request, error)
            raise
        # Show a page that leads on instead of a redirect: a redirect would still count as sent by the issuer's site,
        # and the browser withholds the SameSite=Strict session cookie from such requests.
        values = {"page_live": None, "next": inside(target)}
        response = Response(render("welcome.html", self._around(request, "Welcome") | values), media_type="text/html")
        issuer.forget(request, response)
        self._sessions.begin(caller, self._context.clock.now(), request, response)
        return response

    # Sessions

    def _welcome(self, request: Request, caller: Principal, target: str) -> Response:
        response = RedirectResponse(target, HTTPStatus.SEE_OTHER)
        self._sessions.begin(caller, self._context.clock.now(), request, response)
        return response

    async def _leave(self, request: Request) -> Response:
        check_origin(request)
        response = RedirectResponse("/login", HTTPStatus.SEE_OTHER)
        await self._sessions.end(request, response, self._context.clock.now())
        return response


def inside(target: str) -> str:
    """Return the target if it is a path of the dashboard, otherwise ``/``; prevents open redirects."""
    is_ours = target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable()
    return target if is_ours else "/"


def _person(caller: Principal) -> Principal:
    """Return the caller; raise Forbidden for the endpoint of a host, which has nothing to see here."""
    if caller.role is Role.HOST:
        msg = f"{caller.actor} may not look at the dashboard: it is not for the role {caller.role}"
        raise Forbidden(msg, role=caller.role.value)
    return caller
