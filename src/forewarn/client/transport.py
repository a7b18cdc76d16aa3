"""HTTP transports for threads and for asyncio. They use httpcore, which ignores proxy settings of the environment.

Spec: R104
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterable
from typing import Protocol
from urllib.parse import urlsplit

import httpcore

from forewarn import __version__
from forewarn.client.deadline import Deadline, DeadlineBackend, never_cancelled
from forewarn.client.exchange import HttpAnswer, HttpRequest
from forewarn.errors import ConfigError, EndpointUnreachable

__all__ = ["DEFAULT_URL", "AsyncHttpTransport", "AsyncTransport", "HttpTransport", "Transport", "check_url"]

DEFAULT_URL = "http://169.254.169.254"
"""URL of the endpoint in a virtual network (R1)."""

CONNECT_TIMEOUT_S = 5.0
"""Time limit for a new connection."""

# Less than the idle time-out of our endpoint (300 s), so that a request rarely meets a connection that is being closed.
_KEEPALIVE_S = 60.0
_CONNECTIONS_MAX = 8
# Far above any document. A broken endpoint must not use up the memory of a small VM.
_BODY_SIZE_BYTES_MAX = 16 << 20
_PROBES = {"TCP_KEEPIDLE": 5, "TCP_KEEPALIVE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
"""TCP keepalive options: seconds until and between probes, and their number. No system has all of these names.

Nothing is sent during a long poll. Without probes, a VM that was moved to a host that does not know the connection, or
whose endpoint lost power, would go on waiting.
"""

_FAILURES = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
    httpcore.ProxyError,
    httpcore.UnsupportedProtocol,
    OSError,
)
"""Errors that end a request without an answer."""

_RESET = AttributeError
"""Error of anyio on uvloop if a connection is reset right after it was made: it has no peer address then."""


class Transport(Protocol):
    """Sends requests, sequentially or from several threads."""

    def send(self, request: HttpRequest, is_cancelled: Callable[[], bool] = never_cancelled) -> HttpAnswer:
        """Send a request and return the answer.

        Args:
            request: Request to send.
            is_cancelled: Called several times a second while waiting; True ends the wait.

        Raises:
            EndpointUnreachable: No complete answer, or the request was cancelled.
        """

    def close(self) -> None:
        """Close all connections."""


class AsyncTransport(Protocol):
    """Sends requests, also concurrently."""

    async def send(self, request: HttpRequest) -> HttpAnswer:
        """Send a request and return the answer; may be cancelled.

        Raises:
            EndpointUnreachable: No complete answer.
        """

    async def close(self) -> None:
        """Close all connections."""


def check_url(url: str) -> str:
    """Return the URL without a trailing slash.

    Raises:
        ConfigError: It is not the address of an HTTP server.
    """
    if not _is_address(url) or "?" in url or "#" in url:
        raise ConfigError(f"{url!r} is not an endpoint: expected for example {DEFAULT_URL}")
    return url.rstrip("/")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_printable = url.isascii() and url.isprintable() and " " not in url
        host = (parts.hostname or "").encode("idna")  # refuses what the resolver would
        return parts.scheme in {"http", "https"} and bool(host) and parts.port != 0 and "@" not in url and is_printable
    except ValueError:
        return False


class HttpTransport:
    """`Transport` over sockets, with persistent connections.

    Args:
        url: URL of the endpoint, without path.
        source_address: Local address to send from; None leaves it to the system.
        connect_timeout_s: Time limit for a new connection. A whole request may take this plus its time-out.

    Raises:
        ConfigError: `url` is not the URL of an endpoint.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        source_address: str | None = None,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._url = check_url(url)
        self._connect_timeout_s = connect_timeout_s
        self._deadline = Deadline()
        self._pool = httpcore.ConnectionPool(
            local_address=source_address,
            max_connections=_CONNECTIONS_MAX,
            keepalive_expiry=_KEEPALIVE_S,
            network_backend=DeadlineBackend(self._deadline),
            socket_options=_list_keepalive_options(),
        )

    def send(self, request: HttpRequest, is_cancelled: Callable[[], bool] = never_cancelled) -> HttpAnswer:
        """Send one request. `is_cancelled` is not called while connecting."""
        began_s = time.perf_counter()
        self._deadline.is_cancelled = is_cancelled
        self._deadline.at_s = began_s + request.timeout_s + self._connect_timeout_s
        try:
            response = self._pool.handle_request(_encode_request(self._url, request, self._connect_timeout_s))
            try:
                body = bytearray()
                assert isinstance(response.stream, Iterable)  # noqa: S101 - httpcore's sync pool streams so
                for chunk in response.stream:
                    body += chunk
                    _check_size(body)
            finally:
                response.close()  # also after a failure, or the pool would count the connection for ever
        except _FAILURES as error:
            raise _build_unreachable(self._url, error, time.perf_counter() - began_s) from error
        return _decode_response(response, bytes(body), time.perf_counter() - began_s)

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()


class AsyncHttpTransport:
    """`AsyncTransport` over sockets, with persistent connections; see `HttpTransport`."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        source_address: str | None = None,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._url = check_url(url)
        self._connect_timeout_s = connect_timeout_s
        self._pool = httpcore.AsyncConnectionPool(
            local_address=source_address,
            max_connections=_CONNECTIONS_MAX,
            keepalive_expiry=_KEEPALIVE_S,
            socket_options=_list_keepalive_options(),
        )

    async def send(self, request: HttpRequest) -> HttpAnswer:
        """Send one request."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            # httpcore limits each step and not the whole, so an answer that trickles in would never end.
            async with asyncio.timeout(request.timeout_s + self._connect_timeout_s):
                response = await self._pool.handle_async_request(
                    _encode_request(self._url, request, self._connect_timeout_s)
                )
                try:
                    body = bytearray()
                    async for chunk in response.aiter_stream():
                        body += chunk
                        _check_size(body)
                finally:
                    await response.aclose()
        except (*_FAILURES, _RESET) as error:
            raise _build_unreachable(self._url, error, loop.time() - began_s) from error
        return _decode_response(response, bytes(body), loop.time() - began_s)

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.aclose()


def _list_keepalive_options() -> list[httpcore.SOCKET_OPTION]:
    """Return the socket options that detect a dead peer."""
    options: list[httpcore.SOCKET_OPTION] = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    numbers = ((getattr(socket, name, None), value) for name, value in _PROBES.items())
    options += [(socket.IPPROTO_TCP, number, value) for number, value in numbers if number is not None]
    return options


def _encode_request(url: str, request: HttpRequest, connect_timeout_s: float) -> httpcore.Request:
    timeouts = {
        "connect": connect_timeout_s,
        "read": request.timeout_s,
        "write": request.timeout_s,
        "pool": request.timeout_s,
    }
    headers = {
        "Host": urlsplit(url).netloc,
        "User-Agent": f"forewarn/{__version__}",
        "Accept": "application/json",
        # httpcore does not add it, and h11 sends no body without it.
        **({"Content-Length": str(len(request.body))} if request.body else {}),
        **request.headers,
    }
    return httpcore.Request(
        request.method,
        url + request.path,
        headers=list(headers.items()),
        content=request.body or None,
        extensions={"timeout": timeouts},
    )


def _decode_response(response: httpcore.Response, body: bytes, elapsed_s: float) -> HttpAnswer:
    # Latin-1 decodes every byte that a server may send in a header.
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
    return HttpAnswer(status=response.status, headers=headers, body=body, elapsed_s=elapsed_s)


def _check_size(body: bytearray) -> None:
    if len(body) > _BODY_SIZE_BYTES_MAX:
        raise httpcore.ProtocolError(f"the answer is longer than {_BODY_SIZE_BYTES_MAX} bytes")


def _build_unreachable(url: str, error: Exception, elapsed_s: float) -> EndpointUnreachable:
    if isinstance(error, httpcore.ConnectTimeout):
        reason = f"no connection within {elapsed_s:.3g} s"
    elif isinstance(error, httpcore.TimeoutException | TimeoutError):
        reason = f"no answer within {elapsed_s:.3g} s"
    elif isinstance(error, _RESET):
        reason = "the connection was reset right after it was made"
    else:
        reason = _find_root_message(error)
    return EndpointUnreachable(
        f"the metadata endpoint {url} does not answer: {reason}",
        url=url,
        elapsed_s=elapsed_s,
        timed_out=isinstance(error, httpcore.TimeoutException | TimeoutError),
    )


def _find_root_message(error: BaseException) -> str:
    """Return the message of the innermost error; the outer ones are less specific or empty."""
    # anyio and httpcore wrap errors several times, mostly with an empty or less exact message.
    said = ""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            # asyncio adds its own text to the errno's; errnos of name resolution are negative.
            said = os.strerror(cause.errno) if cause.errno > 0 else cause.strerror or said
        else:
            said = str(cause) or said
        cause = cause.__cause__ or cause.__context__
    return said or type(error).__name__
