"""Login with a token, with a link from the command line, or through an OpenID Connect issuer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from forewarn.auth.signed_tokens import TokenSigner, decode_caller, expiry_of
from forewarn.control.context import Context, identify_caller
from forewarn.control.login import PURPOSE
from forewarn.core.access import Principal, Revocation, Role
from forewarn.dashboard.forms import read_form
from forewarn.dashboard.issuer_login import IssuerLogin
from forewarn.dashboard.render import render_template
from forewarn.dashboard.request_guard import Answer
from forewarn.dashboard.session import Sessions, check_origin
from forewarn.errors import Forbidden, ForewarnError, Unauthorized

__all__ = ["LoginRoutes"]

_SPENT = "this link was used or has expired: make a new one with 'forewarn dashboard'"


class LoginRoutes:
    """Routes that begin and end sessions.

    `make_common_values` returns the template values common to all pages, by request and title.
    """

    def __init__(
        self, context: Context, sessions: Sessions, make_common_values: Callable[[Request, str], dict[str, object]]
    ) -> None:
        self._context = context
        self._sessions = sessions
        self._make_common_values = make_common_values
        self._link_signer = TokenSigner(context.authenticator.operator_token, PURPOSE)
        self._issuer: IssuerLogin | None = None
        issuer = context.authenticator.issuer
        if issuer is not None and issuer.settings.client_id:
            self._issuer = IssuerLogin(issuer, context.authenticator.operator_token)

    def make_routes(self, guard: Callable[[Answer], Answer]) -> list[Route]:
        """Return all routes, with their handlers wrapped by `guard`."""
        found = [
            ("/login", self._show_login_page, "GET"),
            ("/login", self._log_in_with_token, "POST"),
            ("/login/link/{word}", self._show_link_page, "GET"),
            ("/login/link/{word}", self._log_in_with_link, "POST"),
            ("/logout", self._log_out, "POST"),
        ]
        if self._issuer is not None:
            found += [
                ("/login/issuer", partial(self._redirect_to_issuer, self._issuer), "GET"),
                ("/login/back", partial(self._return_from_issuer, self._issuer), "GET"),
            ]
        return [Route(path, guard(answer), methods=[method]) for path, answer, method in found]

    # With a token

    async def _show_login_page(self, request: Request) -> Response:
        return self._render_form(request, sanitize_target(request.query_params.get("next", "/")))

    async def _log_in_with_token(self, request: Request) -> Response:
        check_origin(request)
        form = await read_form(request)
        target = sanitize_target(form.get("next", "/"))
        # An empty field is tried as `-`: the error for a missing token is meant for the command line.
        header = f"Bearer {form.get('token', '').strip() or '-'}"
        try:
            caller = _check_person(await identify_caller(self._context, request, header))
        except (Unauthorized, Forbidden) as error:
            self._context.refusal_log.record_refusal(request, error)
            return self._render_form(request, target, error)
        return self._begin_session(request, caller, target)

    def _render_form(self, request: Request, target: str, error: ForewarnError | None = None) -> Response:
        values = {"next": target, "error": error, "has_issuer": self._issuer is not None}
        status = HTTPStatus.UNAUTHORIZED if error is not None else HTTPStatus.OK
        return HTMLResponse(render_template("login.html", self._make_common_values(request, "Log in") | values), status)

    # By a link

    async def _show_link_page(self, request: Request) -> Response:
        """Show a page that asks for confirmation: link scanners that open the link must not use it up."""
        caller, _ = await self._open_link(request)
        values = {"who": caller.actor, "word": request.path_params["word"]}
        return HTMLResponse(render_template("link.html", self._make_common_values(request, "Log in") | values))

    async def _log_in_with_link(self, request: Request) -> Response:
        check_origin(request)
        caller, revocation = await self._open_link(request)
        if not await self._context.engine.tokens.record_revocation(revocation):  # another replica was faster
            raise Unauthorized(_SPENT)
        return self._begin_session(request, caller, "/")

    async def _open_link(self, request: Request) -> tuple[Principal, Revocation]:
        """Return the caller who made the link, and the revocation that marks it as used.

        Raises:
            Unauthorized: The link was used, has expired, or its token is no longer valid.
        """
        now = self._context.clock.now()
        content = self._link_signer.verify(request.path_params["word"], now)
        if content is not None and not await self._context.engine.tokens.is_revoked(content["nonce"]):
            # The token that made the link may have been revoked since.
            caller = await decode_caller(content, self._context.engine.tokens.find, now)
            if caller is not None:
                until = content.get("expires_at")
                limited = caller if until is None else replace(caller, expires_at=datetime.fromtimestamp(until, UTC))
                spent = Revocation(nonce=content["nonce"], actor=caller.actor, expires_at=expiry_of(content))
                return _check_person(limited), spent
        raise Unauthorized(_SPENT)

    # At an issuer

    async def _redirect_to_issuer(self, issuer: IssuerLogin, request: Request) -> Response:
        target = sanitize_target(request.query_params.get("next", "/"))
        return await issuer.redirect_to_issuer(request, target, self._context.clock.now())

    async def _return_from_issuer(self, issuer: IssuerLogin, request: Request) -> Response:
        try:
            caller, target = await issuer.finish_login(request, self._context.clock.now())
            _check_person(caller)
        except (Unauthorized, Forbidden) as error:
            self._context.refusal_log.record_refusal(request, error)
            raise
        # Show a page that leads on instead of a redirect: a redirect would still count as sent by the issuer's site,
        # and the browser withholds the SameSite=Strict session cookie from such requests.
        values = {"next": sanitize_target(target)}
        response = HTMLResponse(render_template("welcome.html", self._make_common_values(request, "Welcome") | values))
        issuer.delete_cookie(request, response)
        self._sessions.begin(caller, self._context.clock.now(), request, response)
        return response

    # Sessions

    def _begin_session(self, request: Request, caller: Principal, target: str) -> Response:
        response = RedirectResponse(target, HTTPStatus.SEE_OTHER)
        self._sessions.begin(caller, self._context.clock.now(), request, response)
        return response

    async def _log_out(self, request: Request) -> Response:
        check_origin(request)
        response = RedirectResponse("/login", HTTPStatus.SEE_OTHER)
        await self._sessions.end(request, response, self._context.clock.now())
        return response


def sanitize_target(target: str) -> str:
    """Return the target if it is a path of the dashboard, otherwise ``/``; prevents open redirects."""
    # Browsers read a backslash as a slash, so `//host` and `/\host` would both leave the site.
    is_ours = target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable()
    return target if is_ours else "/"


def _check_person(caller: Principal) -> Principal:
    """Return the caller; raise Forbidden for the endpoint of a host, which has nothing to see here."""
    if caller.role is Role.HOST:
        msg = f"{caller.actor} may not use the dashboard: not allowed for role {caller.role}"
        raise Forbidden(msg, role=caller.role.value)
    return caller
