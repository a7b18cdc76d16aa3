"""Hot path: answers known request bytes with prepared response bytes.

Every VM polls once a second, for years, with the same bytes. So a connection first looks up the received bytes among
requests that the full parser has accepted before, and answers a known one with the caller's current document, already
encoded. Anything else goes to uvicorn's httptools protocol and the app; afterwards the app reports a plain request
through `VmConnection.remember_request`.

The memo records only the requested version and whether to close the connection. The document depends on the
connection's caller, so no request can show another VM's document. A request that the app would not answer with a
plain 200 is never remembered.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from http import HTTPStatus
from typing import Any, Protocol, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from forewarn.core.fault import FaultPoint
from forewarn.endpoint.answered_connections import AnsweredConnection
from forewarn.endpoint.traffic import Traffic
from forewarn.net.guarded_protocol import GuardedProtocol, RefusalReason
from forewarn.publishing.identity import Caller, Identity
from forewarn.wire.imds import CONTENT_TYPE, encode_error

__all__ = ["HttpProtocol", "Listening", "VmConnection"]

# A poll has a few hundred bytes. Larger requests are rare, and remembering them would let VMs fill the memory with memo
# entries.
_CANDIDATE_BYTES_MAX = 2048


def _encode_refusal(status: HTTPStatus, text: str, more: str = "") -> tuple[int, bytes, bytes]:
    """Return a response sent without the app; the `Date` and `Server` lines go between the two parts (R8)."""
    body = encode_error(text)
    head = f"{more}content-type: {CONTENT_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return status, f"HTTP/1.1 {status} {status.phrase}\r\n".encode(), head.encode() + body


# Encoded once, at import: a flood of connections must be refused at the lowest possible cost.
# `TOO_OFTEN` is missing: only the control listener overrides `is_throttled`, which leads to it.
_REFUSALS = {
    # The odd "Bad request: ." is how Azure's texts begin (R63, R65).
    RefusalReason.MALFORMED: _encode_refusal(HTTPStatus.BAD_REQUEST, "Bad request: . Malformed HTTP request"),
    RefusalReason.TOO_LARGE: _encode_refusal(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "Request header fields too large"
    ),
    RefusalReason.TOO_SLOW: _encode_refusal(HTTPStatus.REQUEST_TIMEOUT, "Request timeout"),
    # Unlike with the others, the same request may succeed a second later.
    RefusalReason.BUSY: _encode_refusal(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections", "retry-after: 1\r\n"),
}
"""Status and the two parts of the response, by reason."""


class Listening(Protocol):
    """What accepted a connection.

    Attributes:
        is_closed: True once it is closed, and with it every connection that it accepted.
    """

    is_closed: bool


class HttpProtocol(GuardedProtocol):
    """Guarded protocol behind a `VmConnection`; the connection writes its refusals."""

    def send_refusal(self, reason: RefusalReason) -> None:
        connection: VmConnection = self.app_state["connection"]
        connection.send_refusal(reason)

    def on_headers_complete(self) -> None:
        # The ASGI scope keeps only the path. The journal records the target as sent, which may be an absolute URL.
        # uvicorn copies the state for each request, so pipelined requests do not overwrite each other's target.
        self.scope["state"]["target"] = self.url
        super().on_headers_complete()


class VmConnection(asyncio.Protocol):
    """One connection from a VM.

    Attributes:
        caller: VM behind the connection; None if unknown.
        peer: Source address; empty for a Unix socket.
        first: Bytes received before the connection was made, and not yet taken.
        answered: What the connection was before it had a transport; None if it was nothing, or is no more.
        is_lost: True once the connection has ended.
        is_client_gone: True once the client has closed the connection, or its sending side.
        held: Future of a held request, done at the latest when the connection is lost; None if there is none.
        listening: `ListeningSockets` that accepted the connection.
    """

    # There may be 16,384 connections (`connections_max`), most of them idle: slots keep each of them small.
    __slots__ = (
        "_candidate",
        "_config",
        "_identity",
        "_inner",
        "_loop",
        "_server_state",
        "_traffic",
        "_transport",
        "_vm",
        "active_s",
        "answered",
        "caller",
        "first",
        "held",
        "is_client_gone",
        "is_lost",
        "listening",
        "peer",
        "receiving_request",
        "receiving_s",
        "stuck_s",
    )

    def __init__(  # noqa: PLR0913 - supplied by its listener
        self,
        traffic: Traffic,
        identity: Identity,
        config: Config,
        server_state: ServerState,
        loop: asyncio.AbstractEventLoop,
        vm: str = "",
    ) -> None:
        self._traffic = traffic
        self._identity = identity
        self._config = config
        self._server_state = server_state
        self._loop = loop
        self._vm = vm
        self._inner: HttpProtocol | None = None
        self._transport: asyncio.Transport = None  # type: ignore[assignment] # set by connection_made, before any use
        self._candidate: bytes | None = None
        self.caller: Caller | None = None
        self.peer = ""
        self.first = b""
        self.answered: AnsweredConnection | None = None
        self.is_lost = False
        self.is_client_gone = False
        self.listening: Listening | None = None
        self.held: asyncio.Future[None] | None = None
        # Idle from the first moment, so that a client that connects and never sends anything is closed, too.
        self.active_s = traffic.monotonic_s
        self.receiving_s: float | None = None
        self.receiving_request = 0
        self.stuck_s: float | None = None

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's class is not a subclass
        self._transport = transport
        peername = transport.get_extra_info("peername")  # "" for a Unix socket
        self.peer = peername[0] if peername else ""
        if self.listening is not None and self.listening.is_closed:
            transport.abort()  # closed meanwhile, so the interface may belong to another VM by now
        elif peername is None:
            # The client has reset it. Without its address, its request would be taken for one of an unknown caller.
            transport.abort()
        elif self._has_place():
            if self.first:
                # Not now: a transport starts to read after this, so it would ignore that these bytes pause it.
                self._loop.call_soon(self._take_first)
            elif self._traffic.is_stopping:
                transport.close()  # accepted just before the stop, so the server did not know it yet

    def data_received(self, data: bytes) -> None:
        if self.first:
            data, self.first = self.first + data, b""
        inner = self._inner
        caller = self.caller
        if self._traffic.faults.in_force:
            # No fast path while a fault is in force: the app decides for each request whether the fault strikes.
            if self.reset_on_fault():
                return
        # The parser must be idle: known bytes may also be part of a body, and responses must keep the request order.
        elif caller is not None and (inner is None or inner.is_idle):
            # A request that arrives in pieces, or together with another, is not found here and goes to the parser.
            known = self._traffic.memo.get(data)
            # Read only then, since it encodes the document: a request that approves must not wait for that.
            # A caller that an inventory change has retired has no replies, so the slow path resolves it again.
            if known is not None and (replies := caller.channel.replies):
                traffic = self._traffic
                version, closes = known
                # As in `count_fast_request`, without the call: nothing else is done as often as this.
                traffic.fast_path_counts[version] += 1
                caller.channel.last_polled_at = traffic.now
                if traffic.journal is not None:
                    traffic.journal.record_fast_request(caller.vm.name, self.peer, data, replies[version].body)
                self.active_s = traffic.monotonic_s
                # One write for head and body, since each write is a system call and may become a packet.
                # The write buffer needs no check: while it is full, `pause_writing` has stopped reading.
                if closes:
                    self._transport.write(traffic.fast_response_prefix + replies[version].closing_bytes)
                    self._transport.close()
                else:
                    self._transport.write(traffic.fast_response_prefix + replies[version].keep_alive_bytes)
                return
        self._feed_parser(data)

    def eof_received(self) -> bool:
        """Finish the response in progress after the client has shut down its sending side, then close.

        Most such clients are gone, so a held request is released at once.
        """
        self._take_first()
        # In the next turn: by then, the app has begun with a request that was read just before, however it was read.
        self._loop.call_soon(self._take_end)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = self.is_client_gone = True
        if self.answered is not None:
            self.answered.uncount(self._server_state)
            self.answered = None
        # Refused connections were never counted, see `connection_made`.
        if self in self._server_state.connections:
            self._server_state.connections.discard(self)
            self._count_connection(-1)
        self._release_held_request()
        if self._inner is not None:
            self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Stop reading from a client that does not take its responses, so that nothing piles up."""
        self.stuck_s = self._traffic.monotonic_s
        self._transport.pause_reading()
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        self.stuck_s = None
        inner = self._inner
        # The parser may have paused reading too, because the app has yet to take a body.
        if not self._transport.is_closing() and (inner is None or not inner.flow.read_paused):
            self._transport.resume_reading()
        if inner is not None:
            inner.resume_writing()

    # Called by the app

    def remember_request(self, version: int) -> None:
        """Remember the request being answered as a plain GET of this version, to be answered by the fast path."""
        caller, inner = self.caller, self._inner
        # More bytes that arrived meanwhile have cleared the candidate, so it belongs to this request.
        if self._candidate is not None and caller is not None and inner is not None:
            # Not `cycle.keep_alive`: it is also cleared when this client ends its side, whatever the bytes say.
            self._traffic.remember_request(self._candidate, version, closes=not inner.stays_open, vm=caller.vm.name)

    def current_caller(self) -> Caller | None:
        """Return the VM behind this connection according to the current inventory; None if unknown."""
        # After the loss the caller is no longer counted, so there is no count to move.
        if not self.is_lost and (self.caller is None or not self.caller.is_current):
            # Move the count from the old caller, or from the unknown addresses, to the new one.
            self._count_connection(-1)
            self._find_caller()
            self._count_connection(1)
        return self.caller

    def write(self, content: bytes) -> None:
        """Write bytes without the app, for faulty responses."""
        if not self.is_lost:
            self._transport.write(content)

    def close_when_written(self) -> None:
        """Close after everything has been written."""
        self._transport.close()

    def reset(self) -> None:
        """End the connection with a TCP reset instead of a normal close."""
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            # With a linger time of 0 the kernel drops unsent bytes and sends RST instead of FIN.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    async def wait_until_lost(self) -> None:
        """Wait until the connection has ended."""
        if not self.is_lost:
            # `connection_lost` completes it, as it completes the wait of a long poll.
            self.held = self._loop.create_future()
            await self.held

    def reset_on_fault(self) -> bool:
        """Reset this connection if a fault says so; return True if it did."""
        vm = "" if self.caller is None else self.caller.vm.name
        # No request has been parsed yet, so the method is unknown.
        fault = self._traffic.faults.take_matching_fault(vm, "", FaultPoint.CONNECTION)
        if fault is None:
            return False
        self._record_in_journal(0, fault.kind.name)
        self.reset()
        return True

    # Called by the server

    def shutdown(self) -> None:
        """Close now, or after the response in progress, because the service stops."""
        # A request that is still arriving is dropped: waiting for its client could use up the whole grace period.
        if self._inner is None or not self._inner.has_complete_request:
            self._transport.close()
        else:
            self._inner.cycle.keep_alive = False
            self._release_held_request()

    def abort(self) -> None:
        """Close at once, without waiting for a response in progress."""
        self._transport.abort()

    def send_refusal(self, reason: RefusalReason) -> None:
        """Send the refusal for this reason and close."""
        status, status_line, headers_and_body = _REFUSALS[reason]
        # The app counts its own responses. This one bypasses it, often before a method or version is known.
        self._traffic.outcomes["other", "other", status] += 1
        self._record_in_journal(status)
        self._transport.write(status_line + self._traffic.common_header_lines + headers_and_body)
        self._transport.close()

    def close_if_overdue(self, monotonic_s: float) -> None:
        """Close the connection if it is overdue: a request incomplete, a response not taken, or idle for too long."""
        limits = self._traffic.limits
        inner = self._inner
        if self.stuck_s is None and self._transport.is_closing():
            self.stuck_s = monotonic_s  # a closing transport lives on until the client has taken the last bytes
        # The checks run once a second, so a limit may be exceeded by a tick or two.
        if self.stuck_s is not None and monotonic_s - self.stuck_s > limits.request_timeout_s:
            # `close` would first wait for the client to take the rest, and that is what it does not do.
            self._transport.abort()
        elif inner is not None and inner.is_receiving:
            # Measured from the first check that sees the request arriving, so that requests need no timers of their
            # own.
            # The number is compared, since a busy connection may have another half-received request at each check.
            if self.receiving_s is None or self.receiving_request != inner.requests_begun:
                self.receiving_s, self.receiving_request = monotonic_s, inner.requests_begun
            elif monotonic_s - self.receiving_s > limits.request_timeout_s:
                inner.refuse_slow_request()
        else:
            self.receiving_s = None
            if inner is not None and not inner.is_idle:
                self.active_s = monotonic_s  # a held long poll is no idle time
            elif monotonic_s - self.active_s > limits.idle_timeout_s:
                self._transport.close()

    def _take_first(self) -> None:
        """Take the bytes received before the connection was made, unless more bytes have come with them."""
        if self.first and not self._transport.is_closing():
            self.data_received(b"")
            if self._traffic.is_stopping:
                self.shutdown()  # accepted just before the stop, as above

    def _take_end(self) -> None:
        """Finish as `eof_received` says."""
        if self.is_lost:
            return
        inner = self._inner
        if inner is None or not inner.has_complete_request:
            self._transport.close()
            return
        # uvicorn's `cycle` is the newest request, so of several responses only the last one closes the connection.
        inner.cycle.keep_alive = False
        self.is_client_gone = True
        self._release_held_request()

    def _has_place(self) -> bool:
        """Count this connection; return False if a limit or a fault ends it instead."""
        connections = self._server_state.connections
        if self.answered is not None:
            # It has been counted since its first request was answered.
            self.caller = self.answered.caller
            self.answered.uncount(self._server_state)
            self.answered = None
            self._count_connection(1)
            connections.add(self)  # type: ignore[arg-type] # the set accepts any object with a `shutdown` method
            return True
        # Identity comes from the socket or the address only; nothing that the client sends can change it (R2).
        self.caller = None if self._vm else self._identity.resolve_caller(self.peer, "")
        # Most callers are found by the source address alone; the local address costs another system call.
        if self.caller is None:
            self._find_caller()
        limit = self._traffic.find_limit_reached(self.caller, self.peer, len(connections))
        if limit:
            # Return before counting: `connection_lost` uncounts only the connections in the set.
            self._traffic.connections_refused += 1
            self._traffic.quotas.count_refusal(limit, "" if self.caller is None else self.caller.vm.name, self.peer)
            self.send_refusal(RefusalReason.BUSY)
            return False
        # A connection that a fault resets is not counted either, so that its loss must not be uncounted.
        if self._traffic.faults.in_force and self.reset_on_fault():
            return False
        self._count_connection(1)
        connections.add(self)  # type: ignore[arg-type] # as above
        return True

    # Slow path

    def _feed_parser(self, data: bytes) -> None:
        inner = self._inner
        # Created on first use: a connection that sends only known requests never needs a parser.
        if inner is None:
            inner = self._inner = HttpProtocol(self._config, self._server_state, {"connection": self}, _loop=self._loop)
            inner.header_size_bytes_max = self._traffic.limits.header_size_bytes_max
            inner.connection_made(self._transport)
            self._server_state.connections.discard(inner)  # `self` is in the set already
        self.active_s = self._traffic.monotonic_s
        # Both must be read before the parser runs, which changes them.
        was_idle, begun = inner.is_idle, inner.requests_begun
        inner.data_received(data)
        # Only a chunk that holds exactly one whole request may be remembered: the memo is looked up by chunk.
        is_one_request = was_idle and inner.requests_begun == begun + 1 and not inner.is_receiving
        self._candidate = data if is_one_request and len(data) <= _CANDIDATE_BYTES_MAX else None

    def _record_in_journal(self, status: int, fault: str = "") -> None:
        """Record in the journal a request that did not reach the app."""
        journal = self._traffic.journal
        if journal is not None:
            journal.record_request(
                vm="" if self.caller is None else self.caller.vm.name,
                source_address=self.peer,
                status=status,
                fault=fault,
            )

    def _release_held_request(self) -> None:
        """Release a held request."""
        if self.held is not None and not self.held.done():
            self.held.set_result(None)

    def _find_caller(self) -> None:
        if self._vm:
            self.caller = self._identity.find_caller(self._vm)
        else:
            sockname: Any = self._transport.get_extra_info("sockname")
            self.caller = self._identity.resolve_caller(self.peer, sockname[0] if sockname else "")

    def _count_connection(self, by: int) -> None:
        if self.caller is None:
            unknown = self._traffic.unknown_connections
            unknown[self.peer] += by
            # Without this, a scan from many addresses would leave an entry for each of them.
            if not unknown[self.peer]:
                del unknown[self.peer]
        else:
            self.caller.usage.connections += by
