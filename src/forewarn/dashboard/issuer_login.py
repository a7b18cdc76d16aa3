"""Login through an OpenID Connect issuer: the browser is redirected there, and returns with a code.

The authorization code flow with PKCE (RFC 6749, RFC 7636, OpenID Connect Core 1.0). The state of one login is in a
signed cookie for ten minutes; the server keeps nothing. The code is worthless without that cookie.
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
from forewarn.auth.signed_tokens import TokenSigner
from forewarn.core.access import Principal
from forewarn.errors import Unauthorized

__all__ = ["IssuerLogin"]

_LASTS = timedelta(minutes=10)
_VERIFIER_LENGTH = 64
_TARGET_LENGTH_MAX = 1000
"""Maximum length of the path to show after the login; browsers limit a cookie to 4096 bytes."""

_BACK = "/login/back"


class IssuerLogin:
    """Redirects browsers to the issuer, and logs in those that return.

    Args:
        issuer: Issuer at which people log in; its settings have a `client_id`.
        secret: Operator's token, used to sign the cookie.
    """

    def __init__(self, issuer: Issuer, secret: str) -> None:
        from oauthlib.oauth2 import WebApplicationClient  # noqa: PLC0415 - only where people log in at an issuer

        self._issuer = issuer
        self._settings = issuer.settings
        self._signer = TokenSigner(secret, "question to the issuer")
        self._client = WebApplicationClient(issuer.settings.client_id)

    async def redirect_to_issuer(self, request: Request, target: str, now: datetime) -> Response:
        """Send the browser to the issuer; `target` is the path of the dashboard to show after the login.

        Raises:
            IssuerUnreachable: The issuer does not return its authorization endpoint.
        """
        state, nonce = secrets.token_urlsafe(), secrets.token_urlsafe()
        verifier = self._client.create_code_verifier(_VERIFIER_LENGTH)
        address = await self._issuer.find_endpoint("authorization_endpoint", now)
        url = self._client.prepare_request_uri(
            _as_https(address),
            redirect_uri=self._make_redirect_uri(request),
            scope=self._settings.scope,
            state=state,
            code_challenge=self._client.create_code_challenge(verifier, "S256"),
            code_challenge_method="S256",
            nonce=nonce,
        )
        asked = {"state": state, "question": nonce, "verifier": verifier, "next": target[:_TARGET_LENGTH_MAX]}
        response = RedirectResponse(
            _replace_scheme(url, urlsplit(address).scheme), HTTPStatus.SEE_OTHER, {"referrer-policy": "no-referrer"}
        )
        # Lax, since the redirect back comes from the issuer's site. The cookie serves only this one login.
        response.set_cookie(
            self._make_cookie_name(request),
            self._signer.sign(asked, now + _LASTS),
            max_age=int(_LASTS.total_seconds()),
            path=_BACK,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="lax",
        )
        return response

    async def finish_login(self, request: Request, now: datetime) -> tuple[Principal, str]:
        """Return the person who has logged in at the issuer, and the path to show.

        Raises:
            Unauthorized: The issuer refused the login, or its answer does not belong to the login of this browser.
            Forbidden: No grant matches the person.
            IssuerUnreachable: The issuer does not respond.
        """
        word = request.cookies.get(self._make_cookie_name(request))
        asked = None if word is None else self._signer.verify(word, now)
        if asked is None:
            raise Unauthorized("the response does not match a login of this browser, or came too late: log in again")
        code = self._read_code(request, asked["state"])
        claims = await self._issuer.verify_token(
            await self._exchange_code(request, code, asked["verifier"], now), now, audience=self._settings.client_id
        )
        # The nonce ties the ID token to this browser: a token stolen from another login is refused.
        if not secrets.compare_digest(str(claims.get("nonce", "")).encode(), asked["question"].encode()):
            raise Unauthorized("the ID token belongs to another login: log in again")
        return self._issuer.principal_from_claims(claims), asked["next"]

    def delete_cookie(self, request: Request, response: Response) -> None:
        """Delete the cookie of the login."""
        response.delete_cookie(self._make_cookie_name(request), path=_BACK)

    def _read_code(self, request: Request, state: str) -> str:
        from oauthlib.oauth2 import MismatchingStateError, OAuth2Error  # noqa: PLC0415 - as above

        named = request.query_params.get("iss", self._settings.issuer)
        try:
            answer = self._client.parse_request_uri_response(_as_https(str(request.url)), state=state)
        except MismatchingStateError as error:
            raise Unauthorized("the response belongs to another login, or to none: log in again") from error
        except OAuth2Error as error:
            msg = f"the issuer refused the login: {' '.join((error.description or error.error or '').split())[:300]}"
            raise Unauthorized(msg) from error
        if named != self._settings.issuer:  # RFC 9207: mix-up of this issuer with another one
            raise Unauthorized("the response comes from another issuer: log in again")
        return str(answer["code"])

    async def _exchange_code(self, request: Request, code: str, verifier: str, now: datetime) -> str:
        """Exchange the code for the signed ID token."""
        secret = self._settings.read_client_secret()
        body = self._client.prepare_request_body(
            code=code,
            redirect_uri=self._make_redirect_uri(request),
            code_verifier=verifier,
            include_client_id=secret is None,
        )
        # RFC 6749, section 2.3.1: id and secret are URL-encoded before they become user name and password.
        auth = None if secret is None else (quote(self._settings.client_id, safe=""), quote(secret, safe=""))
        answer: dict[str, Any] = await self._issuer.post_form(
            await self._issuer.find_endpoint("token_endpoint", now), body, auth
        )
        token = answer.get("id_token")
        if not isinstance(token, str):
            why = " ".join(str(answer.get("error_description") or answer.get("error") or "no id_token").split())[:300]
            raise Unauthorized(f"the issuer returned no ID token: {why}")
        return token

    def _make_redirect_uri(self, request: Request) -> str:
        """Return the redirect URI, which has to be registered with the issuer."""
        url = self._settings.dashboard_url or str(request.base_url)
        return url.rstrip("/") + _BACK

    def _make_cookie_name(self, request: Request) -> str:
        return f"forewarn-login-{request.url.port or 0}"


def _as_https(url: str) -> str:
    """Return the URL with https, since the library refuses http even on loopback; `forewarn.auth.oidc` checks URLs."""
    return _replace_scheme(url, "https")


def _replace_scheme(url: str, scheme: str) -> str:
    return urlunsplit(urlsplit(url)._replace(scheme=scheme))
