"""Simulated sockets and connections: what the kernel offers to asyncio's servers and clients."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forewarn.testing.simulation.network import Network, Node

__all__ = ["SimulatedSocket", "SimulatedTransport"]

_RETRY_S = 0.5
_STEP_S = 1e-6
"""Time between two pieces of one connection: timers of the same time have no order."""

_GIVEN_UP_S = 30.0
"""Time after which the sender's kernel ends a connection on which nothing gets through."""

_BUFFER_BYTES = 64 << 10


class SimulatedSocket:
    """A listening or accepted socket, with the methods that servers use.

    Attributes:
        waiting: Connections that wait to be accepted.
        transport: This side of an accepted connection; None for a listening socket.
        on_readable: Called when a connection waits; None if no server watches.
        has_ended: True once the other side has ended the connection.
    """

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = socket.IPPROTO_TCP

    def __init__(self, network: Network, node: Node, address: tuple[str, int], peer: tuple[str, int] | None) -> None:
        self.network = network
        self.node = node
        self.waiting: deque[SimulatedSocket] = deque()
        self.transport: SimulatedTransport | None = None
        self.on_readable: Callable[[], None] | None = None
        self.is_closed = False
        self.has_ended = False
        self._address = address
        self._peer = peer

    def fileno(self) -> int:
        """Return a number for a listening socket, else a descriptor that is readable once the connection has ended."""
        if self.is_closed:
            return -1
        if self._peer is None:
            return self.network.number_of(self)
        return self.network.readable_fd if self.has_ended else self.network.quiet_fd

    def getsockname(self) -> tuple[str, int]:
        """Return the local address."""
        return self._address

    def getpeername(self) -> tuple[str, int]:
        """Return the other side's address.

        Raises:
            OSError: It is not connected.
        """
        if self._peer is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return self._peer

    def accept(self) -> tuple[SimulatedSocket, tuple[str, int]]:
        """Return the next waiting connection.

        Raises:
            BlockingIOError: There is none.
        """
        if not self.waiting:
            raise BlockingIOError
        accepted = self.waiting.popleft()
        return accepted, accepted.getpeername()

    def setsockopt(self, *_args: object) -> None:
        """Do nothing: there are no options."""

    def setblocking(self, _flag: bool) -> None:  # noqa: FBT001 - the signature is the socket's
        """Do nothing: nothing blocks."""

    def send(self, data: bytes) -> int:
        """Send bytes on an accepted socket that has no transport yet."""
        if self.transport is not None:
            self.transport.write(data)
        return len(data)

    def recv(self, _size: int) -> bytes:
        """Return nothing: nothing is read without a transport."""
        return b""

    def shutdown(self, _how: int) -> None:
        """End the sending side of an accepted socket that has no transport yet."""

    def close(self) -> None:
        """Stop listening, or end an accepted connection that has no transport."""
        if self.is_closed:
            return
        self.is_closed = True
        port = self._address[1]
        if self.node.listening.get(port) is self:
            del self.node.listening[port]
        for waiting in self.waiting:
            waiting.close()
        if self.transport is not None:
            self.transport.vanish(is_silent=False)


class SimulatedTransport(asyncio.Transport):
    """One side of a connection."""

    def __init__(self, network: Network, node: Node, peer: Node, sock: SimulatedSocket, context: Context) -> None:
        super().__init__()
        self._network = network
        self._node = node
        self._peer_node = peer
        self._sock = sock
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._protocol: asyncio.BaseProtocol | None = None
        self._is_closing = False
        self._is_lost = False
        self._is_paused = False
        self._has_sent_end = False
        self._received: deque[bytes | None] = deque()
        self._arrival_s = 0.0
        self.in_flight_bytes = 0
        self.other: SimulatedTransport | None = None
        node.connections[self] = None

    # The interface of asyncio

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - the interface is asyncio's
        """Return the addresses or the socket."""
        match name:
            case "peername":
                return self._sock.getpeername()
            case "sockname":
                return self._sock.getsockname()
            case "socket":
                return self._sock
        return default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the protocol."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        assert self._protocol is not None  # noqa: S101 - set by `begin`
        return self._protocol

    def is_closing(self) -> bool:
        """Return True once it was closed."""
        return self._is_closing

    def is_reading(self) -> bool:
        """Return True unless reading is paused."""
        return not self._is_paused and not self._is_closing

    def pause_reading(self) -> None:
        """Keep what arrives until reading resumes."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """Deliver what has arrived."""
        if self._is_paused:
            self._is_paused = False
            self._loop.call_soon(self._deliver, context=self._context)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: what is written leaves at once."""

    def get_write_buffer_size(self) -> int:
        """Return the bytes that have not arrived yet, beyond what the kernel's buffers would hold."""
        return max(0, self.in_flight_bytes - _BUFFER_BYTES)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes."""
        if self._is_lost or self._has_sent_end or not data:
            return
        if self._network.draws(self._network.faults.reset):
            self._is_closing = True
            self._end_other()
            self.lose_soon(_reset_error())
            return
        if self.other is not None:
            self.other.receive_later(bytes(data))

    def writelines(self, list_of_data: Any) -> None:  # noqa: ANN401 - the interface is asyncio's
        """Send several pieces at once."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """Return True, as for TCP."""
        return True

    def write_eof(self) -> None:
        """End the sending side."""
        if not self._has_sent_end and self.other is not None:
            self._has_sent_end = True
            self.other.receive_later(None)

    def close(self) -> None:
        """End the connection after everything was sent."""
        if not self._is_closing:
            self._is_closing = True
            self.write_eof()
            self.lose_soon(None)

    def abort(self) -> None:
        """End the connection at once."""
        if not self._is_closing or not self._is_lost:
            self._is_closing = True
            self._end_other()
            self.lose_soon(None)

    # From the network

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """Give the connection its protocol; from now on it belongs to the process that calls this."""
        self._protocol = protocol
        self._context = copy_context()
        protocol.connection_made(self)
        self._loop.call_soon(self._deliver, context=self._context)

    def receive_later(self, data: bytes | None) -> None:
        """Receive bytes that the other side sends now; None for the end of them."""
        network = self._network
        delay_s = network.draw_delay_s()
        # In order, as on a TCP connection.
        self._arrival_s = max(self._arrival_s + _STEP_S, self._loop.time() + delay_s)
        if self.other is not None and data is not None:
            self.other.in_flight_bytes += len(data)
        self._loop.call_at(self._arrival_s, self._arrive, data, self._loop.time(), context=network.context)

    def end_later(self, error: Exception | None) -> None:
        """Lose the connection, because of what the other side does now."""
        self._arrival_s = max(self._arrival_s + _STEP_S, self._loop.time() + self._network.draw_delay_s())
        self._loop.call_at(self._arrival_s, self._end, error, context=self._network.context)

    def _arrive(self, data: bytes | None, sent_s: float) -> None:
        other = self.other
        if self._is_lost or other is None:
            return
        if self._network.is_cut(self._peer_node.name, self._node.name):
            if self._loop.time() - sent_s > _GIVEN_UP_S:
                other.lose_soon(TimeoutError(errno.ETIMEDOUT, "connection timed out"))
            else:
                self._arrival_s = max(self._arrival_s, self._loop.time() + _RETRY_S)
                self._loop.call_at(
                    self._loop.time() + _RETRY_S, self._arrive, data, sent_s, context=self._network.context
                )
            return
        if data is not None:
            other.in_flight_bytes -= len(data)
        self._received.append(data)
        self._loop.call_soon(self._deliver, context=self._context)

    def _end(self, error: Exception | None) -> None:
        if not self._is_lost and not self._network.is_cut(self._peer_node.name, self._node.name):
            self._sock.has_ended = True
            self.lose_soon(error)

    def lose_soon(self, error: Exception | None) -> None:
        """Lose the connection, for a reason on this side."""
        self._loop.call_soon(self._lose, error, context=self._context)

    def _deliver(self) -> None:
        while self._received and not self._is_paused and not self._is_lost and self._protocol is not None:
            data = self._received.popleft()
            protocol = self._protocol
            if data is None:
                self._sock.has_ended = True
                assert isinstance(protocol, asyncio.Protocol)  # noqa: S101 - no other kind is used
                if not protocol.eof_received():
                    self.close()
            elif isinstance(protocol, asyncio.BufferedProtocol):
                _feed_buffered(protocol, data)
            else:
                assert isinstance(protocol, asyncio.Protocol)  # noqa: S101 - no other kind is used
                protocol.data_received(data)

    def _lose(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._sock.has_ended = True
        self._node.connections.pop(self, None)
        if self._protocol is not None:
            self._protocol.connection_lost(error)
        self._end_other()

    def _end_other(self) -> None:
        """Reset the other side, unless it was sent the end already."""
        if not self._has_sent_end and self.other is not None:
            self._has_sent_end = True
            self.other.end_later(_reset_error())

    def vanish(self, *, is_silent: bool) -> None:
        """Drop this side because its process is gone.

        Args:
            is_silent: True if the whole machine is gone, so that the other side does not notice.
        """
        if not is_silent:
            self._end_other()
        self._is_lost = self._is_closing = self._has_sent_end = True
        self._node.connections.pop(self, None)


def _reset_error() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, "connection reset by peer")


def _feed_buffered(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        buffer = memoryview(protocol.get_buffer(len(rest)))
        size = min(len(buffer), len(rest))
        buffer[:size] = rest[:size]
        protocol.buffer_updated(size)
        rest = rest[size:]
