"""Who looks at the dashboard: a session begins with a token and is known by a cookie from then on.

The cookie is a random word, of which only the digest is kept. A browser sends it to this address only, never from
another site's page (``SameSite=Strict``), and no script can read it.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from forewarn.errors import Forbidden
from forewarn.secret import digest, new_token

__all__ = ["Session", "Sessions", "check_origin"]

_LASTS = timedelta(hours=12)
_MOST = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Somebody who has logged in.

    Attributes:
        actor: As the ledger names them.
        until: When it ends.
    """

    actor: str
    until: datetime


class Sessions:
    """The sessions of this process; the oldest goes when there are too many."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def begin(self, actor: str, now: datetime, request: Request, response: Response) -> None:
        """Begin one, and hand the browser its cookie."""
        word = new_token()
        self._sessions[digest(word)] = Session(actor=actor, until=now + _LASTS)
        while len(self._sessions) > _MOST:
            self._sessions.popitem(last=False)
        is_secure = request.url.scheme == "https"
        seconds = int(_LASTS.total_seconds())
        response.set_cookie(
            _name(request), word, max_age=seconds, path="/", secure=is_secure, httponly=True, samesite="strict"
        )

    def find(self, request: Request, now: datetime) -> Session | None:
        """The session of whoever sends this, if it is still good."""
        word = request.cookies.get(_name(request))
        found = None if word is None else self._sessions.get(digest(word))
        return found if found is not None and found.until > now else None

    def end(self, request: Request, response: Response) -> None:
        """Forget it, here and in the browser."""
        word = request.cookies.get(_name(request))
        if word is not None:
            self._sessions.pop(digest(word), None)
        response.delete_cookie(_name(request), path="/")


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
