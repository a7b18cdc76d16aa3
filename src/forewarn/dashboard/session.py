"""Who looks at the dashboard: a session begins with a token and is known by a cookie from then on.

A browser sends the cookie to this address only, never from another site's page (``SameSite=Strict``), and no script can
read it.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import json
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from forewarn.errors import Forbidden
from forewarn.secret import digest, new_token

__all__ = ["Session", "Sessions", "check_origin"]

_LASTS = timedelta(hours=12)
_MOST = 10_000
"""Sessions that were ended by hand and are remembered."""

_SEAL_BYTES = 32


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
    """The sessions of all who have logged in.

    All of a session stands in its cookie, under a seal. So it outlives a restart, and holds at every replica with the
    same operator's token; whoever replaces that token ends all sessions. Who has logged out is remembered in this
    process only: the browser has forgotten its cookie by then.

    Args:
        secret: The operator's token.
    """

    def __init__(self, secret: str) -> None:
        self._key = hmac.digest(secret.encode(), b"forewarn dashboard session", "sha256")
        self._ended: OrderedDict[str, None] = OrderedDict()

    def begin(self, actor: str, now: datetime, request: Request, response: Response) -> None:
        """Begin one, and hand the browser its cookie."""
        content = json.dumps([actor, (now + _LASTS).timestamp(), new_token()]).encode()
        word = base64.urlsafe_b64encode(self._seal(content) + content).decode()
        is_secure = request.url.scheme == "https"
        seconds = int(_LASTS.total_seconds())
        response.set_cookie(
            _name(request), word, max_age=seconds, path="/", secure=is_secure, httponly=True, samesite="strict"
        )

    def find(self, request: Request, now: datetime) -> Session | None:
        """The session of whoever sends this, if it is still good."""
        word = request.cookies.get(_name(request))
        content = None if word is None else self._opened(word)
        if content is None or digest(content.decode()) in self._ended:
            return None
        actor, until_s, _ = json.loads(content)
        found = Session(actor=actor, until=datetime.fromtimestamp(until_s, UTC))
        return found if found.until > now else None

    def end(self, request: Request, response: Response) -> None:
        """Forget it, here and in the browser."""
        word = request.cookies.get(_name(request))
        content = None if word is None else self._opened(word)
        if content is not None:
            self._ended[digest(content.decode())] = None
            while len(self._ended) > _MOST:
                self._ended.popitem(last=False)
        response.delete_cookie(_name(request), path="/")

    def _seal(self, content: bytes) -> bytes:
        return hmac.digest(self._key, content, "sha256")

    def _opened(self, word: str) -> bytes | None:
        """What stands in a cookie that we have sealed."""
        try:
            sealed = base64.b64decode(word, altchars=b"-_", validate=True)
        except ValueError:
            return None
        seal, content = sealed[:_SEAL_BYTES], sealed[_SEAL_BYTES:]
        return content if hmac.compare_digest(seal, self._seal(content)) else None


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
