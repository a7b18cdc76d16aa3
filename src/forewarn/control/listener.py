"""Listener of the control address: the metadata listener's connection guards, and a stop that loses no response.

A connection is counted when it is accepted. It is unknown until a request on it has shown a valid token or session.
Until then little of what it sends is buffered, its first request has to arrive in time, and it may be closed to make
room for others. From then on it is charged to the caller who showed the token (`ListenerConnection.charge_account`).
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import structlog
import uvicorn

from forewarn.clock import uptime_s
from forewarn.control.stream_connection import StallCheck, StreamConnection, StreamSource
from forewarn.core.usage_limits import ExceededLimit, UsageAccount, UseKind
from forewarn.net.acceptor import Acceptor
from forewarn.net.guarded_protocol import GuardedProtocol, RefusalReason
from forewarn.net.pool import Pool, PoolLimits, Slot
from forewarn.net.tally import Tally

__all__ = ["ControlServer", "ListenerConnection", "ListenerLimits"]

_log = structlog.get_logger("forewarn.control")

_RECEIVE_BUFFER_BYTES = 64 << 10
_SEND_BUFFER_BYTES = 128 << 10
_PIPELINE_MAX = 8
_SWEPT_AT_ONCE = 500
_RATE_BYTES_MIN = 16 << 10
"""Minimum rate of a request body, in bytes per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLimits:
    """Limits of the control listener.

    Attributes:
        header_size_bytes_max: Maximum size of the request line and headers.
        request_timeout_s: Time limit for a request to arrive, extended by the body received (`_RATE_BYTES_MIN`).
        idle_timeout_s: Time limit for a known caller's connection without requests.
        pool: Limits on the number of connections.
    """

    header_size_bytes_max: int = 16 << 10
    request_timeout_s: float = 10.0
    idle_timeout_s: float = 75.0
    pool: PoolLimits = field(default_factory=PoolLimits)


def _encode_refusal(status: HTTPStatus, code: str, message: str, *headers: str) -> bytes:
    body = json.dumps({"error": {"code": code, "message": message, "details": {}}}, separators=(",", ":")).encode()
    lines = [
        f"HTTP/1.1 {status} {status.phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *headers,
        "connection: close",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


_REFUSALS = {
    RefusalReason.MALFORMED: _encode_refusal(HTTPStatus.BAD_REQUEST, "bad_request", "this is not an HTTP request"),
    RefusalReason.TOO_LARGE: _encode_refusal(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too_large", "request line and headers are too large"
    ),
    RefusalReason.TOO_SLOW: _encode_refusal(
        HTTPStatus.REQUEST_TIMEOUT, "request_timeout", "the request did not arrive in time"
    ),
    RefusalReason.BUSY: _encode_refusal(
        HTTPStatus.SERVICE_UNAVAILABLE, "too_many_connections", "too many connections", "retry-after: 5"
    ),
    RefusalReason.TOO_OFTEN: _encode_refusal(
        HTTPStatus.TOO_MANY_REQUESTS,
        "too_many_refusals",
        "too many refused requests: wait as long as each response says",
        "retry-after: 5",
    ),
}


class ListenerConnection(GuardedProtocol):
    """One connection to the control address."""

    pipeline_max = _PIPELINE_MAX

    def __init__(self, slot: Slot, server: ControlServer) -> None:
        super().__init__(server.config, server.server_state, {"connection": self}, _loop=asyncio.get_running_loop())
        self.header_size_bytes_max = server.limits.header_size_bytes_max
        self._limits = server.limits
        self._server = server
        self._slot = slot
        self._account: UsageAccount | None = None
        self._active_s = uptime_s()
        self._receiving_s: float | None = None
        self._body_bytes = 0
        self._stall_check = StallCheck()

    # Called by the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Begin, unless the connection has meanwhile been dropped to make room."""
        super().connection_made(transport)
        self._slot.close = transport.abort
        if self._slot.is_released:
            self.connections.discard(self)  # it was closed before it began and gets no connection_lost
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Count the bytes that the connection buffers until its caller is known."""
        if not self._slot.is_released:
            super().data_received(data)
            self._slot.set_held_bytes(self.held_bytes)

    def resume_writing(self) -> None:
        """Resume reading: the client has taken what was written."""
        self._stall_check.reset()
        if not self.transport.is_closing() and not self.flow.read_paused:
            self.transport.resume_reading()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the slot and the account's connection."""
        self._slot.release()
        if self._account is not None:
            self._account.release(UseKind.CONNECTIONS)
            self._account = None
        super().connection_lost(exc)

    # Called by the parser

    def on_message_begin(self) -> None:
        """Start the time limit of a new request."""
        self._receiving_s = uptime_s()
        self._body_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Pause reading before a body; the app asks for the body once it knows the caller."""
        super().on_headers_complete()
        has_body = any(name in {b"content-length", b"transfer-encoding"} for name, _ in self.headers)
        # uvicorn has paused reading already for a request that waits behind another one.
        if has_body and not self.pipeline:
            self.flow.pause_reading()

    def on_body(self, body: bytes) -> None:
        """Count the body bytes received, which extend the time limit."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the time limit: the request has arrived completely."""
        super().on_message_complete()
        self._receiving_s = None

    def on_response_complete(self) -> None:
        """Start the idle time."""
        self._active_s = uptime_s()
        self._slot.set_held_bytes(0)
        super().on_response_complete()

    def is_throttled(self) -> bool:
        """Return True if the caller has had so many refusals that the request is to be refused unread."""
        if self._server.should_refuse_unread is None:
            return False
        path, _, _ = self.url.partition(b"?")
        address = self.client[0] if self.client else ""
        method = self.parser.get_method().decode("ascii")
        return self._server.should_refuse_unread(self.headers, method, path.decode("latin-1"), address)

    def send_refusal(self, reason: RefusalReason) -> None:
        """Send the response for a fault, and close."""
        self.transport.write(_REFUSALS[reason])
        self.transport.close()

    # Called by the app

    def charge_account(self, account: UsageAccount) -> ExceededLimit | None:
        """Charge the connection to the account that sends requests on it; return the exceeded limit, or None."""
        if account is self._account or self._slot.is_released:
            return None
        exceeded = account.acquire(UseKind.CONNECTIONS, uptime_s())
        if exceeded is None:
            if self._account is not None:  # a proxy sends requests of several callers on one connection
                self._account.release(UseKind.CONNECTIONS)
            self._account = account
            self._slot.make_known()
        return exceeded

    def begin_stream(self, source: StreamSource) -> StreamConnection | None:
        """Have the rest of the response in progress written by a stream; return None if the client is gone.

        The head of the response must be written, in chunks and with ``connection: close``. The app returns without
        sending more. Requests that wait behind this one get no response.
        """
        cycle = self._running_cycle
        if cycle is None or cycle.disconnected:
            return None
        stream = StreamConnection(
            self.transport,
            source,
            slot=self._slot,
            account=self._account,
            connections=self.connections,  # type: ignore[arg-type] # uvicorn calls only what a stream has, too
            is_paused=self.flow.write_paused,
            take_timeout_s=self._limits.request_timeout_s,
        )
        self.transport.set_protocol(stream)
        self.connections.discard(self)
        self.connections.add(stream)  # type: ignore[arg-type] # as above
        self._account = None
        # uvicorn takes the response for abandoned, so its task ends without complaint.
        cycle.disconnected = True
        self.detach()
        return stream

    # Called by the server

    def close_if_overdue(self, now_s: float) -> None:
        """Close the connection if a request is overdue, a response is not taken, or it was idle for too long."""
        limits = self._limits
        # Checked first, and aborted: a close would wait for the client to take the rest, which it does not do.
        if self._stall_check.is_stalled(self.transport, now_s, limits.request_timeout_s):
            self.transport.abort()
        elif self._receiving_s is not None:
            longest_s = limits.request_timeout_s + self._body_bytes / _RATE_BYTES_MIN
            if now_s - self._receiving_s > longest_s:
                self.refuse_slow_request()
        elif not self.is_idle:
            # A response in progress counts as activity, however long it lasts: a watch may be silent for a while.
            self._active_s = now_s
        elif now_s - self._active_s > (limits.idle_timeout_s if self._slot.is_known else limits.request_timeout_s):
            self.transport.close()


_OPEN = (ListenerConnection, StreamConnection)


class ControlServer(uvicorn.Server):
    """uvicorn server that counts and sweeps its connections; the service handles signals.

    Args:
        config: uvicorn's configuration.
        limits: Limits on requests and connections.

    Attributes:
        pool: Pool of connections.
        tick_s: Interval between sweeps for overdue connections, in seconds.
        log_callbacks: Functions called after each sweep, with the uptime in seconds, to write log lines that are due.
        should_refuse_unread: Function of headers, method, path and source address; True if the request is to be refused
            unread. None if no request is.
    """

    def __init__(self, config: uvicorn.Config, limits: ListenerLimits) -> None:
        super().__init__(config)
        self.limits = limits
        self.pool = Pool(limits.pool)
        self.tick_s = 1.0
        self.log_callbacks: list[Callable[[float], None]] = []
        self.should_refuse_unread: Callable[[list[tuple[bytes, bytes]], str, str, str], bool] | None = None
        self._refused = Tally()
        self._exhausted = Tally()
        self._sweep_task: asyncio.Task[None] | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield

    @property
    def open_connections(self) -> list[ListenerConnection | StreamConnection]:
        """Connections that have begun."""
        return [each for each in self.server_state.connections if isinstance(each, _OPEN)]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections on these sockets."""
        await self.lifespan.startup()
        # uvicorn's shutdown closes whatever is in `servers`, so it also closes the acceptors.
        self.servers: list[Any] = []
        for sock in sockets or ():
            # Connections inherit both. By default, the kernel would buffer megabytes for each.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            sock.setblocking(False)  # noqa: FBT003 - the signature is the socket's
            self.servers.append(
                Acceptor(
                    sock,
                    self.pool,
                    lambda slot: ListenerConnection(slot, self),
                    refusal=_REFUSALS[RefusalReason.BUSY],
                    tls=self.config.ssl,
                    handshake_timeout_s=self.limits.request_timeout_s,
                    refused=self._refused,
                    exhausted=self._exhausted,
                )
            )
        self._sweep_task = asyncio.create_task(self._sweep_periodically())
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, wait a while for responses in progress, then drop what is left."""
        if self._sweep_task is not None:
            self._sweep_task.cancel()
        await super().shutdown(sockets)
        for connection in self.open_connections:
            connection.transport.abort()

    async def _sweep_periodically(self) -> None:
        while True:
            await asyncio.sleep(self.tick_s)
            await self._sweep_connections()
            self._log_conditions(uptime_s())

    async def _sweep_connections(self) -> None:
        connections = self.open_connections
        for first in range(0, len(connections), _SWEPT_AT_ONCE):
            now_s = uptime_s()
            for connection in connections[first : first + _SWEPT_AT_ONCE]:
                connection.close_if_overdue(now_s)
            # With thousands of connections, requests are handled between two chunks.
            await asyncio.sleep(0)

    def _log_conditions(self, now_s: float) -> None:
        """Log frequent conditions, at most one line per minute each."""
        if _has_no_descriptor():
            self._exhausted.count_occurrence("no file descriptors left")
        line = self._exhausted.take_line(now_s)
        if line is not None:
            _log.error(
                "cannot accept connections: raise the limit of open files (LimitNOFILE, ulimit -n)",
                reason=line.worst,
                count=line.count,
            )
        line = self._refused.take_line(now_s)
        if line is not None:
            _log.warning(
                "too many connections to the control address: some were refused",
                count=line.count,
                worst_address=line.worst,
                worst_count=line.worst_count,
            )
        for tell in self.log_callbacks:
            tell(now_s)


def _has_no_descriptor() -> bool:
    """Return True if the process has no file descriptor left; the metadata listener then drops connections silently."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in {errno.EMFILE, errno.ENFILE}
    return False
