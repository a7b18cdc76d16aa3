"""Who looks at the dashboard: a session begins with a log-in and is known by a cookie from then on.

A browser sends the cookie to this address only, never from another site's page (``SameSite=Strict``), and no script can
read it.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from forewarn.auth.signed_tokens import Seal, moment_of, pack, who
from forewarn.clock import uptime_s
from forewarn.core.access import Principal, Revocation, Token
from forewarn.errors import Forbidden

__all__ = ["Known", "Session", "Sessions", "check_origin", "is_rebound"]

_MOST = 10_000
"""Tokens, and sessions, that were looked up and are remembered."""

_FRESH_S = 1.0
"""How long an answer of the database holds: a live page need not ask it for each piece that it sends."""

_COOKIE_LENGTH_MAX = 3800
"""Browsers keep no more than 4096 bytes of a cookie, its name and attributes among them."""

T = TypeVar("T")


class Known(Protocol):
    """What the database knows of tokens, links and sessions."""

    async def token_of(self, token_id: str) -> Token | None:
        """The token of that id."""
        ...

    async def is_revoked(self, nonce: str) -> bool:
        """Whether the link was used, or the session logged out of."""
        ...

    async def revoke(self, revocation: Revocation) -> bool:
        """Take it no more; hands back whether it was not revoked before."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Somebody who has logged in.

    Attributes:
        caller: Who it is, and what they may.
        until: When it ends.
    """

    caller: Principal
    until: datetime


class Sessions:
    """The sessions of all who have logged in.

    All of a session stands in its cookie, under a seal. So it outlives a restart, and holds at every replica with the
    same operator's token; whoever replaces that token ends all sessions. One that began with a token of the table ends
    when that token is revoked. A session that was logged out of is kept in the database until it would have expired, so
    no replica takes its cookie again: the others within a second.

    Args:
        secret: The operator's token.
        lasts: How long a session lasts.
        known: What the database knows.
    """

    def __init__(self, secret: str, lasts: timedelta, known: Known) -> None:
        self._seal = Seal(secret, "session of the dashboard")
        self._lasts = lasts
        self._known = known
        self._revoked: OrderedDict[str, tuple[float, bool]] = OrderedDict()
        self._tokens: OrderedDict[str, tuple[float, Token | None]] = OrderedDict()

    def begin(self, caller: Principal, now: datetime, request: Request, response: Response) -> None:
        """Begin one, and hand the browser its cookie.

        Raises:
            Forbidden: There is more to say of the caller than a cookie holds.
        """
        until = now + self._lasts
        if caller.expires_at is not None:
            until = min(until, caller.expires_at)
        word = self._seal.close(pack(caller), until)
        if len(word) > _COOKIE_LENGTH_MAX:
            msg = f"{caller.actor} has too many scopes for a browser's cookie: log in with a token of Forewarn's own"
            raise Forbidden(msg)
        seconds = max(int((until - now).total_seconds()), 0)
        is_secure = request.url.scheme == "https"
        response.set_cookie(
            _name(request), word, max_age=seconds, path="/", secure=is_secure, httponly=True, samesite="strict"
        )

    async def find(self, request: Request, now: datetime) -> Session | None:
        """The session of whoever sends this, if it is still good."""
        word = request.cookies.get(_name(request))
        content = None if word is None else self._seal.open(word, now)
        if content is None or await self._is_revoked(content["nonce"]):
            return None
        caller = await who(content, self._token, now)
        return None if caller is None else Session(caller=caller, until=moment_of(content))

    async def end(self, request: Request, response: Response, now: datetime) -> None:
        """End it, at every replica and in the browser.

        Raises:
            StoreUnavailable: The database takes no changes; the session goes on.
        """
        word = request.cookies.get(_name(request))
        content = None if word is None else self._seal.open(word, now)
        if content is not None:
            caller = await who(content, self._known.token_of, now)
            if caller is not None:  # of a token that is not taken any more, no session is taken either
                nonce = content["nonce"]
                await self._known.revoke(Revocation(nonce=nonce, actor=caller.actor, expires_at=moment_of(content)))
                _remember(self._revoked, nonce, (uptime_s(), True))
        response.delete_cookie(_name(request), path="/")

    async def _token(self, token_id: str) -> Token | None:
        looked_s, token = self._tokens.get(token_id, (float("-inf"), None))
        if uptime_s() - looked_s > _FRESH_S:
            token = await self._known.token_of(token_id)
            _remember(self._tokens, token_id, (uptime_s(), token))
        return token

    async def _is_revoked(self, nonce: str) -> bool:
        looked_s, is_revoked = self._revoked.get(nonce, (float("-inf"), False))
        if not is_revoked and uptime_s() - looked_s > _FRESH_S:
            is_revoked = await self._known.is_revoked(nonce)
            _remember(self._revoked, nonce, (uptime_s(), is_revoked))
        return is_revoked


def _remember(found: OrderedDict[str, T], key: str, value: T) -> None:
    found[key] = value
    found.move_to_end(key)
    while len(found) > _MOST:
        found.popitem(last=False)


def _name(request: Request) -> str:
    """Over TLS with the prefix that keeps other hosts of the domain from setting it.

    Cookies do not know ports: two services on one machine would log each other out.
    """
    port = request.url.port or 0
    return f"__Host-forewarn-{port}" if request.url.scheme == "https" else f"forewarn-{port}"


def check_origin(request: Request) -> None:
    """A form may be sent from our own pages only.

    Raises:
        Forbidden: It comes from elsewhere.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    is_ours = site in (None, "same-origin") and (origin is None or _is_same(origin, request))
    if not is_ours or (site is None and origin is None):
        msg = "this form was not sent from a page of this service: open the dashboard, and send it from there"
        raise Forbidden(msg)


def _is_same(origin: str, request: Request) -> bool:
    return urlsplit(origin).netloc == request.headers.get("host", "")


def is_rebound(request: Request) -> bool:
    """Whether a service on loopback is called by a name that is not of this machine: some page's trick with DNS."""
    client = request.scope.get("server")
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    if client is None or not _is_loopback(client[0]):
        return False
    return not (host == "localhost" or _is_loopback(host))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
