"""Requests to external receivers: checked addresses only, limited time, limited response size.

Names are resolved here, and the connection is made to an address that passed the check. So a name that points to this
machine's metadata service, or is changed to do so after the check, is of no use to an attacker.
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
from forewarn.net.httpx_errors import UNANSWERED, describe_error

__all__ = [
    "OutboundClient",
    "OutboundOptions",
    "PostOutcome",
    "Resolve",
    "check_options",
    "check_receiver_url",
    "explain_refusal",
    "redact_url",
]

_log = structlog.get_logger("forewarn.net.outbound")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a name and port."""

_URL_LENGTH_MAX = 2000
_ADDRESSES_MAX = 4
"""Maximum number of addresses tried for one name."""

_WORDS_MAX = 300
_DRAIN_S = 1.0
"""Time limit for reading the rest of a response after its status."""

# Azure's wire server, Alibaba Cloud, Oracle Cloud Classic, AWS, Google Cloud, Scaleway.
_METADATA = frozenset(
    ipaddress.ip_address(a)
    for a in ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254", "fd00:42::42")
)
"""Addresses of metadata services that are not link-local."""

_COMPATIBLE = ipaddress.IPv6Network("::/96")
_EMBEDDING = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
"""IPv6 networks whose addresses lead to the IPv4 address in their last 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboundOptions:
    """Options for outbound requests.

    Attributes:
        deadline: Time limit for a whole request, from name resolution to the response status.
        answer_size_bytes_max: Maximum number of response bytes to read.
        allows_private: True if addresses of private networks and of this machine are allowed.
        proxy: URL of a proxy, which then resolves the names; empty for none.
        ca_file: CA certificates to trust in addition to the system's; None if none.
    """

    deadline: timedelta = timedelta(seconds=10)
    answer_size_bytes_max: int = 16 << 10
    allows_private: bool = True
    proxy: str = ""
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PostOutcome:
    """Outcome of a request.

    Attributes:
        status: HTTP status; None if there was no response.
        error: Error in one line; empty on success.
        retry_after: Delay that the receiver asked for; None if it did not.
        took_s: Duration in seconds; 0 if there was no response.
    """

    status: int | None
    error: str
    retry_after: timedelta | None = None
    took_s: float = 0.0

    @property
    def is_accepted(self) -> bool:
        """True if the receiver has accepted the request."""
        return self.status is not None and httpx.codes.is_success(self.status)

    @property
    def is_gone(self) -> bool:
        """True if the receiver wants no further requests."""
        return self.status == HTTPStatus.GONE


_NOT_CONNECTED = (httpx.ConnectError, httpx.ConnectTimeout, AttributeError)  # for the last one see `httpx_errors`


class _NoAllowedAddress(Exception):
    """Raised when the receiver has no allowed address."""


class OutboundClient:
    """Client that posts to one receiver and keeps its connections open; `resolve` replaces the system's resolver."""

    def __init__(self, options: OutboundOptions, resolve: Resolve | None = None) -> None:
        self._options = options
        self._resolve = resolve or _resolve_addresses
        self._client: httpx.AsyncClient | None = None

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], now: datetime) -> PostOutcome:
        """Post once. Never raises for a fault of the receiver.

        The URL has passed `check_receiver_url`; the headers are added to the default ones. `now` is needed for a date
        in ``Retry-After``.
        """
        began_s = uptime_s()
        try:
            async with asyncio.timeout(self._options.deadline.total_seconds()) as deadline:
                status, retry_after = await self._post_to_allowed_address(httpx.URL(url), body, headers, deadline)
        except TimeoutError:
            return PostOutcome(status=None, error=f"no answer within {self._options.deadline.total_seconds():g} s")
        except _NoAllowedAddress as error:
            return PostOutcome(status=None, error=str(error))
        except UNANSWERED as error:
            return PostOutcome(status=None, error=_clean_line(describe_error(error)))
        except OSError as error:
            return PostOutcome(status=None, error=_clean_line(str(error)) or type(error).__name__)
        except Exception as error:  # noqa: BLE001 - any library error about a connection is a failed attempt
            _log.warning("a request ended unexpectedly", error=repr(error))
            return PostOutcome(status=None, error=_clean_line(f"{type(error).__name__}: {error}"))
        took_s = uptime_s() - began_s
        return PostOutcome(
            status=status,
            error=_describe_status(status),
            retry_after=_parse_retry_after(retry_after, now),
            took_s=took_s,
        )

    async def _post_to_allowed_address(
        self, url: httpx.URL, body: bytes, headers: Mapping[str, str], deadline: asyncio.Timeout
    ) -> tuple[int, str]:
        # The proxy resolves the name, so there is no address to check; operators restrict the proxy instead.
        if self._options.proxy:
            return await self._send_request(url, body, headers, deadline, self._options.deadline)
        found = [ipaddress.ip_address(a.partition("%")[0]) for a in await self._resolve(url.host, _find_port(url))]
        refusals = [
            explain_refusal(address, url.scheme, allows_private=self._options.allows_private) for address in found
        ]
        allowed = [address for address, refusal in zip(found, refusals, strict=True) if refusal is None]
        if not allowed:
            words = next((refusal for refusal in refusals if refusal), "it has no address")
            raise _NoAllowedAddress(f"requests to {url.host} are not allowed: {words}")
        # httpx would take the header from the URL below, which has an address in place of the name.
        own = dict(headers) | {"Host": url.netloc.decode("ascii")}
        name = url.raw_host.decode("ascii")
        allowed = allowed[:_ADDRESSES_MAX]
        patience = self._options.deadline / len(allowed)  # an address that does not answer must leave time for the next
        for number, address in enumerate(allowed, 1):
            try:
                return await self._send_request(url.copy_with(host=str(address)), body, own, deadline, patience, name)
            except _NOT_CONNECTED:
                # Only now is another address tried: once connected, the receiver may have got the request.
                if number == len(allowed):
                    raise
        raise AssertionError  # the last one returns or raises

    async def _send_request(  # noqa: PLR0913 - a request and its time limits
        self,
        url: httpx.URL,
        body: bytes,
        headers: Mapping[str, str],
        deadline: asyncio.Timeout,
        connect: timedelta,
        name: str = "",
    ) -> tuple[int, str]:
        """Return the status and ``Retry-After``. A receiver that has begun its response has received the request."""
        # The URL has the checked address in place of the name, which TLS must still verify.
        extensions: dict[str, object] = {"sni_hostname": name} if name else {}
        client = self._get_client()
        # Only the connect timeout applies; for the rest the deadline of the whole request comes first.
        timeout = httpx.Timeout(2 * self._options.deadline.total_seconds(), connect=connect.total_seconds())
        async with client.stream(
            "POST", url, content=body, headers=headers, extensions=extensions, timeout=timeout
        ) as response:
            # The status is known, so the deadline must not turn a delivery into a failure; reading the rest has its own
            # limit.
            deadline.reschedule(None)
            # A rest that cannot be read costs only the connection.
            with suppress(httpx.HTTPError, TimeoutError):
                await self._drain_response(response)
            return response.status_code, response.headers.get("retry-after", "")

    async def _drain_response(self, response: httpx.Response) -> None:
        """Read a short response to its end, so that the connection can be reused; abandon a long one."""
        left = self._options.answer_size_bytes_max
        async with asyncio.timeout(_DRAIN_S):
            async for piece in response.aiter_raw():
                left -= len(piece)
                if left < 0:
                    return

    def _get_client(self) -> httpx.AsyncClient:
        if self._client is None:
            # Identity encoding: a compressed response could expand beyond the size limit.
            self._client = httpx.AsyncClient(
                trust_env=False,
                # A redirect could lead to an address that was not checked.
                follow_redirects=False,
                proxy=self._options.proxy or None,
                headers={"Accept-Encoding": "identity", "User-Agent": "forewarn"},
                verify=_create_tls_context(self._options.ca_file),
            )
        return self._client

    async def close(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def check_options(options: OutboundOptions) -> None:
    """Validate the options before the first request.

    Raises:
        ConfigError: The certificates cannot be read, or the proxy's URL is invalid.
    """
    _create_tls_context(options.ca_file)
    if options.proxy:
        try:
            httpx.Proxy(options.proxy)
        except (httpx.InvalidURL, ValueError) as error:
            msg = "setting notify_proxy: expected a URL like http://proxy.example:3128"
            raise ConfigError(msg, setting="notify_proxy") from error


def check_receiver_url(url: str) -> None:
    """Validate the URL of a receiver.

    Raises:
        InvalidRequest: The URL cannot be used.
    """
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        parsed = httpx.URL("")
    reason = None
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        reason = "it is expected to begin with https:// or http://"
    elif parsed.userinfo:
        reason = "it must not contain a user or password: notifications are signed instead"
    elif parsed.fragment:
        reason = "it must not contain '#'"
    elif len(url) > _URL_LENGTH_MAX or not url.isprintable():
        reason = f"it must have at most {_URL_LENGTH_MAX} characters, all printable"
    elif parsed.port == 0:
        reason = "port 0 is invalid"
    else:
        with suppress(ValueError):
            reason = explain_refusal(ipaddress.ip_address(parsed.host), parsed.scheme, allows_private=True)
    if reason is not None:
        raise InvalidRequest(f"invalid URL of a subscription: {reason}")


def redact_url(url: str) -> str:
    """Return the URL without its path and query, which may hold a secret."""
    parsed = httpx.URL(url)
    return f"{parsed.scheme}://{parsed.netloc.decode('ascii')}/…"


def explain_refusal(address: Address, scheme: str, *, allows_private: bool) -> str | None:
    """Return the reason why an address is not allowed; None if it is.

    This service can reach more than the person who names a receiver, such as metadata services with credentials.
    """
    address = _unwrap_address(address)
    if address.is_link_local or address in _METADATA:
        return f"{address} is the address of a metadata service"
    if address.is_multicast or address.is_unspecified or (address.is_reserved and not address.is_private):
        return f"{address} cannot be the address of a receiver"
    # Not `is_private`, which leaves out shared address space (100.64.0.0/10).
    is_private = address.is_loopback or not address.is_global
    if is_private and not allows_private:
        return f"{address} is private (notify_private_addresses)"
    if scheme == "http" and not is_private:
        return f"{address} is public: use https"
    return None


def _unwrap_address(address: Address) -> Address:
    """Return the IPv4 address embedded in an IPv6 address; the address unchanged if there is none."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
    if inner is not None:
        return inner
    # `::` and `::1` lie in the compatible range, too, but embed no IPv4 address.
    if any(address in network for network in _EMBEDDING) or (address in _COMPATIBLE and int(address) > 1):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


async def _resolve_addresses(host: str, port: int) -> list[str]:
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=SOCK_STREAM)
    except (gaierror, UnicodeError) as error:
        raise _NoAllowedAddress(f"cannot resolve {host}: {getattr(error, 'strerror', None) or error}") from error
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _find_port(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _create_tls_context(ca_file: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:  # includes ssl.SSLError
            msg = f"setting notify_ca_file: cannot read the certificates of {ca_file}: {error.strerror or error}"
            raise ConfigError(msg, setting="notify_ca_file") from error
    return context


def _describe_status(status: int) -> str:
    if httpx.codes.is_success(status):
        return ""
    if httpx.codes.is_redirect(status):
        return f"answered {status}: redirects are not followed; use the URL it redirects to"
    return f"answered {status}"


def _parse_retry_after(text: str, now: datetime) -> timedelta | None:
    """Return the delay in ``Retry-After``, given as seconds or a date; None if it is invalid."""
    if text.isascii() and text.isdecimal():
        # Bounded, as `timedelta` overflows and `int` is slow with very many digits.
        return timedelta(seconds=min(int(text[:10]), 10**9))
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    aware = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return max(aware - now, timedelta(0))


def _clean_line(text: str) -> str:
    """Return the text as one printable line of limited length."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_WORDS_MAX]
