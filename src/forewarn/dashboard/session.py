"""Sessions of the dashboard, which begin with a login and are identified by a cookie.

A browser sends the cookie to this address only, never from another site's page (``SameSite=Strict``), and no script can
read it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from forewarn.auth.signed_tokens import TokenSigner, decode_caller, encode_caller, expiry_of
from forewarn.clock import uptime_s
from forewarn.control.gate import is_cross_origin
from forewarn.core.access import Principal, Revocation, Token
from forewarn.engine.tokens import TokenCommands
from forewarn.errors import Forbidden
from forewarn.net.listen_address import is_loopback_name

__all__ = ["DashboardSession", "Sessions", "check_origin", "is_rebound"]

_MOST = 10_000
"""Maximum number of cached tokens, and of cached sessions."""

_FRESH_S = 1.0
"""Lifetime of a cached answer of the database, so that live pages do not query it for each piece they send."""

_COOKIE_LENGTH_MAX = 3800
"""Maximum length of the value: browsers limit a cookie to 4096 bytes, including its name and attributes."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSession:
    """A session of a caller who has logged in, and its end."""

    caller: Principal
    until: datetime


class Sessions:
    """Begins, finds and ends sessions.

    The signed cookie holds the whole session. So a session survives restarts, and is valid at every replica with the
    same operator's token; replacing that token ends all sessions. A session that began with a token from the database
    ends when that token is revoked. A logout is kept in the database until the session would have expired, so that no
    replica accepts its cookie again; other replicas notice it within a second.

    Args:
        secret: Operator's token, used to sign cookies.
        lifetime: Maximum duration of a session.
        store: Tokens, used links and ended sessions of the database.
    """

    def __init__(self, secret: str, lifetime: timedelta, store: TokenCommands) -> None:
        self._signer = TokenSigner(secret, "session of the dashboard")
        self._lifetime = lifetime
        self._store = store
        self._revoked: OrderedDict[str, tuple[float, bool]] = OrderedDict()
        self._tokens: OrderedDict[str, tuple[float, Token | None]] = OrderedDict()

    def begin(self, caller: Principal, now: datetime, request: Request, response: Response) -> None:
        """Begin a session, and set its cookie in the response.

        Raises:
            Forbidden: The caller has more scopes and VMs than a cookie can hold.
        """
        until = now + self._lifetime
        if caller.expires_at is not None:
            until = min(until, caller.expires_at)
        word = self._signer.sign(encode_caller(caller), until)
        if len(word) > _COOKIE_LENGTH_MAX:
            msg = f"{caller.actor} has too many scopes for a session cookie: log in with a token created by Forewarn"
            raise Forbidden(msg)
        seconds = max(int((until - now).total_seconds()), 0)
        is_secure = request.url.scheme == "https"
        response.set_cookie(
            _cookie_name(request), word, max_age=seconds, path="/", secure=is_secure, httponly=True, samesite="strict"
        )

    async def find(self, request: Request, now: datetime) -> DashboardSession | None:
        """Return the session of the request's sender; None if there is none or it is no longer valid."""
        word = request.cookies.get(_cookie_name(request))
        content = None if word is None else self._signer.verify(word, now)
        if content is None or await self._is_revoked(content["nonce"]):
            return None
        caller = await decode_caller(content, self._find_token, now)
        return None if caller is None else DashboardSession(caller=caller, until=expiry_of(content))

    async def end(self, request: Request, response: Response, now: datetime) -> None:
        """End the session at every replica and in the browser.

        Raises:
            StoreUnavailable: The database accepts no changes; the session continues.
        """
        word = request.cookies.get(_cookie_name(request))
        content = None if word is None else self._signer.verify(word, now)
        if content is not None:
            caller = await decode_caller(content, self._store.find, now)
            if caller is not None:  # otherwise its token is no longer valid, and the session is refused anyway
                nonce = content["nonce"]
                # The database first: if it fails, the cookie stays and the user sees an error instead of only seeming
                # logged out.
                await self._store.record_revocation(
                    Revocation(nonce=nonce, actor=caller.actor, expires_at=expiry_of(content))
                )
                _cache_result(self._revoked, nonce, (uptime_s(), True))
        response.delete_cookie(_cookie_name(request), path="/")

    async def _find_token(self, token_id: str) -> Token | None:
        looked_s, token = self._tokens.get(token_id, (float("-inf"), None))
        if uptime_s() - looked_s > _FRESH_S:
            token = await self._store.find(token_id)
            _cache_result(self._tokens, token_id, (uptime_s(), token))
        return token

    async def _is_revoked(self, nonce: str) -> bool:
        looked_s, is_revoked = self._revoked.get(nonce, (float("-inf"), False))
        # A revocation is final; only the answer that there is none becomes outdated.
        if not is_revoked and uptime_s() - looked_s > _FRESH_S:
            is_revoked = await self._store.is_revoked(nonce)
            _cache_result(self._revoked, nonce, (uptime_s(), is_revoked))
        return is_revoked


def _cache_result(found: OrderedDict[str, T], key: str, value: T) -> None:
    found[key] = value
    found.move_to_end(key)
    while len(found) > _MOST:
        found.popitem(last=False)


def _cookie_name(request: Request) -> str:
    """Return the name of the cookie; over TLS with ``__Host-``, so that other hosts of the domain cannot set it.

    Cookies are not separated by port, so the name contains it: two services on one machine would otherwise log each
    other out.
    """
    port = request.url.port or 0
    return f"__Host-forewarn-{port}" if request.url.scheme == "https" else f"forewarn-{port}"


def check_origin(request: Request) -> None:
    """Check that a form was sent from one of our own pages.

    Raises:
        Forbidden: The form was sent from another site, or the browser does not say from where.
    """
    site = request.headers.get("sec-fetch-site")
    # Browsers that do not send Sec-Fetch-Site send Origin with forms.
    is_ours = site == "same-origin" or (site is None and "origin" in request.headers)
    if not is_ours or is_cross_origin(request.headers):
        raise Forbidden("this form was not sent from a page of this service: send it from the dashboard")


def is_rebound(request: Request) -> bool:
    """Return True if a service on loopback is called by a name other than this machine's (DNS rebinding attack)."""
    # A page can point its own host name at 127.0.0.1, and would then count as of the same origin.
    client = request.scope.get("server")
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    return client is not None and is_loopback_name(client[0]) and not is_loopback_name(host)
