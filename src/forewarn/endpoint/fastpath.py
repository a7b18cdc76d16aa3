"""The hot path: the same bytes in, the same bytes out.

Every VM asks once a second, for years, with the same bytes. So a connection first looks its bytes up among requests that the
full parser has understood before, and answers a known one with the caller's current document, ready made. Anything else goes to
uvicorn's httptools protocol and the app; the app tells us afterwards when such a request was a plain one (`Connection.learn`).

What is remembered says only which version is asked for. Whose document is answered follows from the connection, so no request
can be made to show another VM's. A request that the app would answer with anything but a plain 200 is never remembered.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from forewarn.wire.imds import CONTENT_TYPE, encode_error

if TYPE_CHECKING:
    from forewarn.endpoint.traffic import Traffic
    from forewarn.identity import Caller, Identity

__all__ = ["Connection", "HttpProtocol"]

_CANDIDATE_BYTES_MAX = 2048


def _refusal(status: str, text: str) -> bytes:
    body = encode_error(text)
    head = f"HTTP/1.1 {status}\r\ncontent-type: {CONTENT_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return head.encode() + body


_MALFORMED = _refusal("400 Bad Request", "Bad request: . Malformed HTTP request")
_TOO_LARGE = _refusal("431 Request Header Fields Too Large", "Request header fields too large")
_TOO_SLOW = _refusal("408 Request Timeout", "Request timeout")
_BUSY = _refusal("503 Service Unavailable", "Too many connections")


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol, that also says whether it is in the middle of anything, and limits the size of headers.

    Attributes:
        is_receiving: Whether a request has begun and not yet arrived whole.
        header_size_bytes_max: Largest request line with headers.
    """

    is_receiving = False
    header_size_bytes_max = 16 << 10
    _unparsed_bytes = 0
    _refusal = _MALFORMED

    @property
    def is_idle(self) -> bool:
        """Whether no request is on its way in, being worked on, or waiting."""
        return not self.is_receiving and not self.pipeline and (self.cycle is None or self.cycle.response_complete)

    def data_received(self, data: bytes) -> None:
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self.is_receiving and self._unparsed_bytes > self.header_size_bytes_max and not self.transport.is_closing():
            self._refusal = _TOO_LARGE
            self.send_400_response("")

    def on_message_begin(self) -> None:
        self.is_receiving = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        size_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size_bytes > self.header_size_bytes_max:
            self._refusal = _TOO_LARGE
            msg = "headers are too large"
            raise ValueError(msg)  # the parser hands it on to `send_400_response`
        self._unparsed_bytes = -(1 << 62)  # a body is counted by whoever reads it
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self.is_receiving = False
        self._unparsed_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()  # connections are closed by the sweep, which also knows the fast path

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature; our answer is JSON (R65)
        self.transport.write(self._refusal)
        self.transport.close()


class Connection(asyncio.Protocol):
    """One connection of a VM.

    Attributes:
        caller: The VM behind it; None for nobody we know.
        peer: Its source address.
        is_lost: Whether the other side is gone.
        held: What a held request waits for; done when the connection is lost.
    """

    __slots__ = (
        "_candidate",
        "_config",
        "_identity",
        "_inner",
        "_loop",
        "_server_state",
        "_traffic",
        "_transport",
        "active_s",
        "caller",
        "held",
        "is_lost",
        "local",
        "peer",
        "receiving_s",
        "stuck_s",
    )

    def __init__(
        self, traffic: Traffic, identity: Identity, config: Config, server_state: ServerState, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._traffic = traffic
        self._identity = identity
        self._config = config
        self._server_state = server_state
        self._loop = loop
        self._inner: HttpProtocol | None = None
        self._transport: asyncio.Transport = None  # type: ignore[assignment] # set by connection_made, before any use
        self._candidate: bytes | None = None
        self.caller: Caller | None = None
        self.peer = ""
        self.local = ""
        self.is_lost = False
        self.held: asyncio.Future[None] | None = None
        self.active_s = traffic.second
        self.receiving_s: int | None = None
        self.stuck_s: int | None = None

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - a TCP server makes no other
        self._transport = transport
        peername = transport.get_extra_info("peername")
        self.peer = peername[0] if peername else ""
        self.caller = self._identity.resolve(self.peer, "")
        if self.caller is None:
            self._find_caller()
        connections = self._server_state.connections
        if len(connections) >= self._traffic.limits.connections_max or not self._count():
            self._traffic.connections_refused += 1
            transport.write(_BUSY)
            transport.close()
            return
        connections.add(self)  # type: ignore[arg-type] # the set holds whatever has a shutdown method

    def data_received(self, data: bytes) -> None:
        inner = self._inner
        caller = self.caller
        if caller is not None and (inner is None or inner.is_idle):
            known = self._traffic.memo.get(data)
            replies = caller.channel.replies
            if known is not None and replies:
                traffic = self._traffic
                version, closes = known
                traffic.fast[version] += 1
                caller.channel.asked_at = traffic.now
                self.active_s = traffic.second
                if closes:
                    self._transport.write(traffic.prefix + replies[version].closed)
                    self._transport.close()
                else:
                    self._transport.write(traffic.prefix + replies[version].kept)
                return
        self._receive_slowly(data)

    def eof_received(self) -> bool:
        """The client will send no more, but may wait for an answer that is being worked on: then give it, and close."""
        inner = self._inner
        if inner is None or inner.is_receiving or inner.is_idle:
            return False
        inner.cycle.keep_alive = False
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self in self._server_state.connections:  # type: ignore[comparison-overlap] # see connection_made
            self._server_state.connections.discard(self)  # type: ignore[arg-type] # see connection_made
            self._uncount()
        if self.held is not None and not self.held.done():
            self.held.set_result(None)
        if self._inner is not None:
            self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """The client takes no more: read no more of it either, so that nothing piles up."""
        self.stuck_s = self._traffic.second
        self._transport.pause_reading()
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        self.stuck_s = None
        if not self._transport.is_closing():
            self._transport.resume_reading()
        if self._inner is not None:
            self._inner.resume_writing()

    # What the app calls

    def learn(self, version: int, *, closes: bool) -> None:
        """The request being answered was a plain GET of that version: answer its like from memory."""
        caller = self.caller
        if self._candidate is None or caller is None or self._candidate in self._traffic.memo:
            return
        if self._traffic.learn(self._candidate, version, closes=closes, memorised=caller.memorised):
            caller.memorised += 1

    def current_caller(self) -> Caller | None:
        """The VM behind this connection, as the inventory has it now."""
        if self.caller is None or not self.caller.is_current:
            self._uncount()
            self._find_caller()
            self._count()
        return self.caller

    # What the server calls

    def shutdown(self) -> None:
        """The service stops: close now, or after the answer that is being worked on."""
        if self._inner is None or self._inner.is_idle or self._inner.is_receiving:
            self._transport.close()
        else:
            self._inner.cycle.keep_alive = False

    def sweep(self, second: int) -> None:
        """Close what is overdue: a request that does not come to its end, an answer nobody takes, an idle connection."""
        limits = self._traffic.limits
        inner = self._inner
        if self.stuck_s is not None and second - self.stuck_s > limits.request_timeout_s:
            self._transport.abort()
        elif inner is not None and inner.is_receiving:
            if self.receiving_s is None:
                self.receiving_s = second
            elif second - self.receiving_s > limits.request_timeout_s:
                self._transport.write(_TOO_SLOW)
                self._transport.close()
        else:
            self.receiving_s = None
            is_idle = inner is None or inner.is_idle
            if is_idle and second - self.active_s > limits.idle_timeout_s:
                self._transport.close()

    # The slow way

    def _receive_slowly(self, data: bytes) -> None:
        inner = self._inner
        if inner is None:
            inner = self._inner = HttpProtocol(
                self._config, self._server_state, {"connection": self}, _loop=self._loop
            )
            inner.header_size_bytes_max = self._traffic.limits.header_size_bytes_max
            inner.connection_made(self._transport)
            self._server_state.connections.discard(inner)  # this connection stands for it
        self.active_s = self._traffic.second
        is_whole = inner.is_idle and data.endswith(b"\r\n\r\n") and data.count(b"\r\n\r\n") == 1
        is_plain = is_whole and data.startswith(b"GET ") and len(data) <= _CANDIDATE_BYTES_MAX
        self._candidate = data if is_plain else None
        inner.data_received(data)

    def _find_caller(self) -> None:
        sockname: Any = self._transport.get_extra_info("sockname")
        self.local = sockname[0] if sockname else ""
        self.caller = self._identity.resolve(self.peer, self.local)

    def _count(self) -> bool:
        """Count this connection; False when its caller has too many."""
        limit = self._traffic.limits.connections_per_vm_max
        if self.caller is None:
            self._traffic.unknown_connections += 1
            if self._traffic.unknown_connections > limit:
                self._traffic.unknown_connections -= 1
                return False
            return True
        self.caller.connections += 1
        if self.caller.connections > limit:
            self.caller.connections -= 1
            return False
        return True

    def _uncount(self) -> None:
        if self.caller is None:
            self._traffic.unknown_connections -= 1
        else:
            self.caller.connections -= 1
