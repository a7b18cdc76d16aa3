"""Requests to receivers that somebody else runs: to checked addresses only, in bounded time, with bounded answers.

A name is resolved here, and the connection is made to an address that was looked at. So a name that points to this
machine's metadata service, or that points elsewhere a moment later, leads nowhere.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from socket import SOCK_STREAM, gaierror

import httpx
import structlog

from forewarn.clock import uptime_s
from forewarn.errors import ConfigError, InvalidRequest
from forewarn.net.unanswered import UNANSWERED, why

__all__ = ["Answer", "Poster", "Resolve", "Terms", "check_terms", "check_url", "origin_of", "refusal_of"]

_log = structlog.get_logger("forewarn.net.outbound")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a name and port."""

_URL_LENGTH_MAX = 2000
_ADDRESSES_MAX = 4
"""Addresses of one name that are tried."""

_WORDS_MAX = 300
_DRAIN_S = 1.0
"""For the rest of an answer, once its status is there."""

_METADATA = frozenset(
    ipaddress.ip_address(a)
    for a in ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254", "fd00:42::42")
)
"""Metadata services that have no link-local address."""

_COMPATIBLE = ipaddress.IPv6Network("::/96")
_EMBEDDING = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
"""IPv6 networks whose addresses lead to the IPv4 address in their last 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How requests are made.

    Attributes:
        deadline: For a whole request, from the name to the answer.
        answer_size_bytes_max: So much of an answer is read.
        allows_private: Whether addresses of private networks and of this machine are asked.
        proxy: URL of a proxy, which then resolves names itself; empty: none.
        ca_file: Certificates of authorities to trust beside the machine's own.
    """

    deadline: timedelta = timedelta(seconds=10)
    answer_size_bytes_max: int = 16 << 10
    allows_private: bool = True
    proxy: str = ""
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a request.

    Attributes:
        status: HTTP status; None: there was no answer.
        words: What went wrong, in one line; empty where nothing did.
        retry_after: How long the receiver wants to be left alone; None: it did not say.
        took_s: Seconds.
    """

    status: int | None
    words: str
    retry_after: timedelta | None = None
    took_s: float = 0.0

    @property
    def is_taken(self) -> bool:
        """Whether the receiver has it."""
        return self.status is not None and HTTPStatus(200) <= self.status < HTTPStatus.MULTIPLE_CHOICES

    @property
    def is_gone(self) -> bool:
        """Whether it wants nothing any more."""
        return self.status == HTTPStatus.GONE


_NOT_CONNECTED = (httpx.ConnectError, httpx.ConnectTimeout, AttributeError)  # for the last see `unanswered`


class _Refused(Exception):
    """The receiver may not be asked."""


class Poster:
    """Posts to one receiver; keeps its connections.

    Args:
        terms: How.
        resolve: Finds addresses; None for the machine's own way.
    """

    def __init__(self, terms: Terms, resolve: Resolve | None = None) -> None:
        self._terms = terms
        self._resolve = resolve or _addresses
        self._client: httpx.AsyncClient | None = None

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], now: datetime) -> Answer:
        """Post once. Never raises for what the other side does.

        Args:
            url: Checked by `check_url` before.
            body: Whole.
            headers: Beside the usual ones.
            now: What a date in ``Retry-After`` is held against.
        """
        began_s = uptime_s()
        try:
            async with asyncio.timeout(self._terms.deadline.total_seconds()) as deadline:
                status, retry_after = await self._post(httpx.URL(url), body, headers, deadline)
        except TimeoutError:
            return Answer(status=None, words=f"no answer within {self._terms.deadline.total_seconds():g} s")
        except _Refused as error:
            return Answer(status=None, words=str(error))
        except UNANSWERED as error:
            return Answer(status=None, words=_line(why(error)))
        except OSError as error:
            return Answer(status=None, words=_line(str(error)) or type(error).__name__)
        except Exception as error:  # noqa: BLE001 - whatever a library says of a connection, it is a try that failed
            _log.warning("a request ended unexpectedly", error=repr(error))
            return Answer(status=None, words=_line(f"{type(error).__name__}: {error}"))
        took_s = uptime_s() - began_s
        return Answer(status=status, words=_words(status), retry_after=_span(retry_after, now), took_s=took_s)

    async def _post(
        self, url: httpx.URL, body: bytes, headers: Mapping[str, str], deadline: asyncio.Timeout
    ) -> tuple[int, str]:
        if self._terms.proxy:
            return await self._exchange(url, body, headers, deadline, self._terms.deadline)
        found = [ipaddress.ip_address(a.partition("%")[0]) for a in await self._resolve(url.host, _port(url))]
        refusals = [refusal_of(address, url.scheme, allows_private=self._terms.allows_private) for address in found]
        allowed = [address for address, refusal in zip(found, refusals, strict=True) if refusal is None]
        if not allowed:
            words = next((refusal for refusal in refusals if refusal), "it has no address")
            msg = f"{url.host} may not be asked: {words}"
            raise _Refused(msg)
        own = dict(headers) | {"Host": url.netloc.decode("ascii")}
        name = url.raw_host.decode("ascii")
        allowed = allowed[:_ADDRESSES_MAX]
        patience = self._terms.deadline / len(allowed)  # so that one that does not answer leaves time for the next
        for number, address in enumerate(allowed, 1):
            try:
                return await self._exchange(url.copy_with(host=str(address)), body, own, deadline, patience, name)
            except _NOT_CONNECTED:
                if number == len(allowed):
                    raise
        raise AssertionError  # the last one returns or raises

    async def _exchange(  # noqa: PLR0913 - a request, and how long it may take
        self,
        url: httpx.URL,
        body: bytes,
        headers: Mapping[str, str],
        deadline: asyncio.Timeout,
        connect: timedelta,
        name: str = "",
    ) -> tuple[int, str]:
        """The status, and what ``Retry-After`` says. A receiver that has begun its answer has taken the request."""
        extensions: dict[str, object] = {"sni_hostname": name} if name else {}
        client = self._opened()
        # The deadline of the whole request comes before those of its parts, but for connecting.
        timeout = httpx.Timeout(2 * self._terms.deadline.total_seconds(), connect=connect.total_seconds())
        async with client.stream(
            "POST", url, content=body, headers=headers, extensions=extensions, timeout=timeout
        ) as response:
            deadline.reschedule(None)
            with suppress(httpx.HTTPError, TimeoutError):
                await self._drain(response)
            return response.status_code, response.headers.get("retry-after", "")

    async def _drain(self, response: httpx.Response) -> None:
        """Read a short answer to its end, so that the connection can be used again; leave a long one."""
        left = self._terms.answer_size_bytes_max
        async with asyncio.timeout(_DRAIN_S):
            async for piece in response.aiter_raw():
                left -= len(piece)
                if left < 0:
                    return

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            # What is not compressed cannot grow.
            self._client = httpx.AsyncClient(
                trust_env=False,
                follow_redirects=False,
                proxy=self._terms.proxy or None,
                headers={"Accept-Encoding": "identity", "User-Agent": "forewarn"},
                verify=_trust(self._terms.ca_file),
            )
        return self._client

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def check_terms(terms: Terms) -> None:
    """See that requests can be made so, before the first one is.

    Raises:
        ConfigError: The certificates cannot be read, or the proxy's URL is none.
    """
    _trust(terms.ca_file)
    if terms.proxy:
        try:
            httpx.Proxy(terms.proxy)
        except (httpx.InvalidURL, ValueError) as error:
            msg = "setting notify_proxy: expected a URL like http://proxy.example:3128"
            raise ConfigError(msg, setting="notify_proxy") from error


def check_url(url: str) -> None:
    """See that something can be posted to a URL.

    Raises:
        InvalidRequest: It cannot.
    """
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        parsed = httpx.URL("")
    reason = None
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        reason = "it is expected to begin with https:// or http://"
    elif parsed.userinfo:
        reason = "it may hold no user or password: notifications are signed instead"
    elif parsed.fragment:
        reason = "it may hold no '#'"
    elif len(url) > _URL_LENGTH_MAX or not url.isprintable():
        reason = f"it may have at most {_URL_LENGTH_MAX} characters, all printable"
    elif parsed.port == 0:
        reason = "port 0 is none"
    else:
        with suppress(ValueError):
            reason = refusal_of(ipaddress.ip_address(parsed.host), parsed.scheme, allows_private=True)
    if reason is not None:
        msg = f"the URL of a subscription cannot be used: {reason}"
        raise InvalidRequest(msg)


def origin_of(url: str) -> str:
    """A URL without its path and query, which may be a key to what it leads to."""
    parsed = httpx.URL(url)
    return f"{parsed.scheme}://{parsed.netloc.decode('ascii')}/…"


def refusal_of(address: Address, scheme: str, *, allows_private: bool) -> str | None:
    """Why an address may not be asked; None: it may.

    What runs this service can reach more than whoever names a receiver: metadata services give away credentials.
    """
    address = _unwrapped(address)
    if address.is_link_local or address in _METADATA:
        return f"{address} is where machines find their metadata"
    if address.is_multicast or address.is_unspecified or (address.is_reserved and not address.is_private):
        return f"{address} is no address of a receiver"
    is_private = address.is_loopback or not address.is_global
    if is_private and not allows_private:
        return f"{address} is private (notify_private_addresses)"
    if scheme == "http" and not is_private:
        return f"{address} is public: use https"
    return None


def _unwrapped(address: Address) -> Address:
    """The IPv4 address that an IPv6 address leads to, if it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
    if inner is not None:
        return inner
    if any(address in network for network in _EMBEDDING) or (address in _COMPATIBLE and int(address) > 1):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


async def _addresses(host: str, port: int) -> list[str]:
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=SOCK_STREAM)
    except (gaierror, UnicodeError) as error:
        msg = f"the name {host} is not known: {getattr(error, 'strerror', None) or error}"
        raise _Refused(msg) from error
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _port(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _trust(ca_file: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:  # ssl.SSLError is one
            msg = f"setting notify_ca_file: cannot read the certificates of {ca_file}: {error.strerror or error}"
            raise ConfigError(msg, setting="notify_ca_file") from error
    return context


def _words(status: int) -> str:
    if HTTPStatus(200) <= status < HTTPStatus.MULTIPLE_CHOICES:
        return ""
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return f"answered {status}: redirects are not followed, name the URL that it leads to"
    return f"answered {status}"


def _span(text: str, now: datetime) -> timedelta | None:
    """What ``Retry-After`` asks for: seconds, or a date."""
    if text.isascii() and text.isdecimal():
        return timedelta(seconds=min(int(text[:10]), 10**9))
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    aware = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return max(aware - now, timedelta(0))


def _line(text: str) -> str:
    """One line that is safe to print."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_WORDS_MAX]
