"""Logging in at an OpenID Connect issuer: the browser goes there with a question, and comes back with a code.

The authorization code flow with PKCE (RFC 6749, RFC 7636, OpenID Connect Core 1.0). What belongs to one question, the
browser keeps under a seal for ten minutes; nothing is kept here. The code is worth nothing without it.
"""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from forewarn.auth.oidc import Issuer
from forewarn.auth.signed_tokens import Seal
from forewarn.core.access import Principal
from forewarn.errors import Unauthorized

__all__ = ["IssuerLogin"]

_LASTS = timedelta(minutes=10)
_VERIFIER_LENGTH = 64
_TARGET_LENGTH_MAX = 1000
_BACK = "/login/back"


class IssuerLogin:
    """The way to the issuer and back.

    Args:
        issuer: Where people log in; its settings have a `client_id`.
        secret: The operator's token.
    """

    def __init__(self, issuer: Issuer, secret: str) -> None:
        from oauthlib.oauth2 import WebApplicationClient  # noqa: PLC0415 - only where people log in at an issuer

        self._issuer = issuer
        self._settings = issuer.settings
        self._seal = Seal(secret, "question to the issuer")
        self._client = WebApplicationClient(issuer.settings.client_id)

    async def leave(self, request: Request, target: str, now: datetime) -> Response:
        """Send the browser to the issuer.

        Args:
            request: Of the browser.
            target: Where it goes when it has come back, a path of ours.
            now: The time.

        Raises:
            IssuerUnreachable: The issuer does not say where that is.
        """
        state, nonce = secrets.token_urlsafe(), secrets.token_urlsafe()
        verifier = self._client.create_code_verifier(_VERIFIER_LENGTH)
        address = await self._issuer.place("authorization_endpoint", now)
        url = self._client.prepare_request_uri(
            _spoken_of_as_https(address),
            redirect_uri=self._back(request),
            scope=self._settings.scope,
            state=state,
            code_challenge=self._client.create_code_challenge(verifier, "S256"),
            code_challenge_method="S256",
            nonce=nonce,
        )
        asked = {"state": state, "question": nonce, "verifier": verifier, "next": target[:_TARGET_LENGTH_MAX]}
        response = RedirectResponse(
            _with_scheme(url, urlsplit(address).scheme), HTTPStatus.SEE_OTHER, {"referrer-policy": "no-referrer"}
        )
        # Lax, since the way back begins at the issuer's site. Nothing but this one question hangs on it.
        response.set_cookie(
            self._cookie(request),
            self._seal.close(asked, now + _LASTS),
            max_age=int(_LASTS.total_seconds()),
            path=_BACK,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="lax",
        )
        return response

    async def back(self, request: Request, now: datetime) -> tuple[Principal, str]:
        """Who has come back, and where they wanted to go.

        Raises:
            Unauthorized: The issuer has not let them in, or this is not the answer to the browser's own question.
            Forbidden: No grant is for them.
            IssuerUnreachable: The issuer does not answer.
        """
        word = request.cookies.get(self._cookie(request))
        asked = None if word is None else self._seal.open(word, now)
        if asked is None:
            msg = "this answer of the issuer belongs to no question of this browser, or came too late: log in again"
            raise Unauthorized(msg)
        code = self._code(request, asked["state"])
        claims = await self._issuer.claims(
            await self._exchange(request, code, asked["verifier"], now), now, audience=self._settings.client_id
        )
        if not secrets.compare_digest(str(claims.get("nonce", "")).encode(), asked["question"].encode()):
            msg = "the issuer has answered another question: log in again"
            raise Unauthorized(msg)
        return self._issuer.principal_of_claims(claims), asked["next"]

    def forget(self, request: Request, response: Response) -> None:
        """The question is answered."""
        response.delete_cookie(self._cookie(request), path=_BACK)

    def _code(self, request: Request, state: str) -> str:
        from oauthlib.oauth2 import MismatchingStateError, OAuth2Error  # noqa: PLC0415 - as above

        named = request.query_params.get("iss", self._settings.issuer)
        try:
            answer = self._client.parse_request_uri_response(_spoken_of_as_https(str(request.url)), state=state)
        except MismatchingStateError as error:
            msg = "this answer of the issuer belongs to another question, or to none: log in again"
            raise Unauthorized(msg) from error
        except OAuth2Error as error:
            msg = f"the issuer did not let you in: {' '.join((error.description or error.error or '').split())[:300]}"
            raise Unauthorized(msg) from error
        if named != self._settings.issuer:  # RFC 9207: another issuer's answer, mixed up with this one's
            msg = "another issuer has answered: log in again"
            raise Unauthorized(msg)
        return str(answer["code"])

    async def _exchange(self, request: Request, code: str, verifier: str, now: datetime) -> str:
        """The signed token for the code."""
        secret = self._settings.client_secret()
        body = self._client.prepare_request_body(
            code=code, redirect_uri=self._back(request), code_verifier=verifier, include_client_id=secret is None
        )
        auth = None if secret is None else (quote(self._settings.client_id, safe=""), quote(secret, safe=""))
        answer: dict[str, Any] = await self._issuer.send(await self._issuer.place("token_endpoint", now), body, auth)
        token = answer.get("id_token")
        if not isinstance(token, str):
            why = " ".join(str(answer.get("error_description") or answer.get("error") or "no id_token").split())[:300]
            msg = f"the issuer did not say who you are: {why}"
            raise Unauthorized(msg)
        return token

    def _back(self, request: Request) -> str:
        """Where the issuer sends the browser; it has to be told of that address beforehand."""
        url = self._settings.dashboard_url or str(request.base_url)
        return url.rstrip("/") + _BACK

    def _cookie(self, request: Request) -> str:
        return f"forewarn-login-{request.url.port or 0}"


def _spoken_of_as_https(url: str) -> str:
    """The library refuses all but https, on loopback too; which URLs are safe is decided in `forewarn.auth.oidc`."""
    return _with_scheme(url, "https")


def _with_scheme(url: str, scheme: str) -> str:
    return urlunsplit(urlsplit(url)._replace(scheme=scheme))
