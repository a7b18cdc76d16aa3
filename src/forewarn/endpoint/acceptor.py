"""Accepts connections of VMs, and answers their first request if it is known.

Half of the clients open a connection for each poll (W8). If the request is in the memo of the fast path, then only a
socket is made for such a connection (ADR 43): the response is sent as soon as the connection is accepted, and a
connection that is to be closed is closed at once. Every other connection becomes a `VmConnection`, with the bytes
that were received.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections.abc import Callable
from datetime import datetime

from uvicorn.server import ServerState

from forewarn.endpoint.answered_connections import AnsweredConnection, AnsweredConnections
from forewarn.endpoint.fastpath import VmConnection
from forewarn.endpoint.traffic import Traffic
from forewarn.publishing.identity import Identity

__all__ = ["Acceptor", "defer_accepting"]

_ACCEPTS_MAX = 64
"""Maximum number of connections accepted before other work has its turn."""

# More than any request in the memo, so that the beginning of a longer one is never taken for a known one.
_RECEIVE_BYTES = 4096

_RESPONSE_BYTES_MAX = 32 << 10
"""Maximum size of a response sent without a transport: it fits into the send buffer of a new connection."""

_DEFER_S = 1
"""Seconds for which the kernel keeps back a connection that has sent nothing; then it is accepted all the same."""

_PAUSE_S = 0.1
"""Seconds without accepting after a failure, such as a lack of file descriptors."""

_WAITING_COUNT = struct.Struct("24xI")
"""Start of Linux's `tcp_info`; the number of a listening socket is that of the connections waiting for `accept`."""

_NO_LINGER = struct.pack("ii", 1, 0)


def defer_accepting(sock: object) -> bool:
    """Have the kernel keep connections back until their request arrives; return False if it cannot.

    Then an acceptor would find most connections without a request, and cost more than it saves.

    Args:
        sock: Bound socket; may be simulated.
    """
    if sys.platform != "linux" or not isinstance(sock, socket.socket):
        return False
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _DEFER_S)
    except OSError:
        return False  # a Unix socket, or a kernel without this option
    return True


class Acceptor:
    """Accepts on one socket, in place of an `asyncio.Server`.

    Args:
        sock: Bound socket that `defer_accepting` has prepared. The acceptor closes it.
        connect: Makes the protocol of a connection.
        state: Holds the open connections.
        vm: VM assumed for every connection; empty to find it by the source address.
        is_current: Returns False while this process may not show what it has: another one shows newer documents.

    Attributes:
        sockets: The socket; empty once it is closed.
    """

    def __init__(  # noqa: PLR0913 - supplied by its server
        self,
        sock: socket.socket,
        connect: Callable[[], VmConnection],
        state: ServerState,
        traffic: Traffic,
        identity: Identity,
        vm: str = "",
        is_current: Callable[[], bool] | None = None,
    ) -> None:
        self.sockets: tuple[socket.socket, ...] = (sock,)
        self._sock = sock
        self._connect = connect
        self._state = state
        self._traffic = traffic
        self._identity = identity
        self._vm = vm
        self._is_current = is_current
        # As numbers, since the socket makes an enum member whenever it is asked.
        self._kind = int(sock.family), int(sock.type), sock.proto
        self._loop = asyncio.get_running_loop()
        self._answered = AnsweredConnections(self._connect_answered, state)
        self._pause: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, backlog: int) -> None:
        """Start to accept; at most `backlog` connections wait for it."""
        self._sock.setblocking(False)  # noqa: FBT003 - takes no name
        self._sock.listen(backlog)
        self._loop.add_reader(self._sock, self._accept_connections)

    def is_serving(self) -> bool:
        """Return True until it is closed."""
        return bool(self.sockets)

    def close_idle(self, since_s: float) -> None:
        """Close the connections without a transport that were answered before this time, in monotonic seconds."""
        self._answered.close_idle(since_s)

    def close(self) -> None:
        """Close the socket, and the connections without a transport; the others stay open. May be repeated."""
        if self.sockets:
            self.sockets = ()
            self._loop.remove_reader(self._sock)
            if self._pause is not None:
                self._pause.cancel()
            self._sock.close()
            self._answered.close()

    async def wait_connected(self) -> None:
        """Wait until each connection that was accepted has a transport; this takes a few turns of the event loop."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _accept_connections(self) -> None:
        # The socket knows how many connections wait. Trying until there are none costs the kernel as much as accepting.
        tcp_info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _WAITING_COUNT.size)
        (waiting,) = _WAITING_COUNT.unpack(tcp_info)
        journal = self._traffic.journal
        at = None if journal is None else journal.now()
        for _ in range(min(waiting, _ACCEPTS_MAX)):
            try:
                # `accept` makes a larger object, and looks up two enum members: more work than all of the lookup.
                fd, address = self._sock._accept()  # type: ignore[attr-defined] # noqa: SLF001 - see above
            except (BlockingIOError, ConnectionAbortedError):
                continue  # the client is gone
            except OSError:
                self._pause_accepting()
                return
            sock = socket.SocketType(*self._kind, fd)
            try:
                request = sock.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                request = b""
            except OSError:
                sock.close()  # the client has reset it
                continue
            if not self._has_answered(sock, request, address[0], at):
                self._create_task(sock, request, None)

    def _pause_accepting(self) -> None:
        """Pause: the socket stays readable, so the event loop would call again and again."""
        self._loop.remove_reader(self._sock)
        self._pause = self._loop.call_later(_PAUSE_S, self._loop.add_reader, self._sock, self._accept_connections)

    def _has_answered(self, sock: socket.SocketType, request: bytes, peer: str, at: datetime | None) -> bool:
        """Answer the first request of a connection if it is known; otherwise return False."""
        traffic = self._traffic
        known = traffic.memo.get(request)
        # While a fault is in force, the app decides for each request whether the fault strikes.
        if known is None or traffic.faults.in_force:
            return False
        if self._is_current is not None and not self._is_current():
            return False
        # Most callers are found by the source address. For the others, the connection needs the local one, too.
        caller = self._identity.find_caller(self._vm) if self._vm else self._identity.resolve_caller(peer, "")
        if caller is None or traffic.find_limit_reached(caller, peer, len(self._state.connections)):
            return False
        replies = caller.channel.replies
        if not replies:
            return False
        version, closes = known
        reply = replies[version]
        response = traffic.fast_response_prefix + (reply.closing_bytes if closes else reply.keep_alive_bytes)
        if len(response) > _RESPONSE_BYTES_MAX:
            return False
        traffic.count_fast_request(version, caller, peer, request, reply.body, at)
        # With MSG_MORE, the last bytes wait for the end of the connection, and travel with it in one packet.
        if not _has_sent(sock, response, socket.MSG_MORE if closes else 0):
            # Half of a response must not look like a whole one, so the connection is reset.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            sock.close()
        elif closes:
            sock.close()
        else:
            self._answered.add(sock, caller, traffic.monotonic_s)
        return True

    def _connect_answered(self, answered: AnsweredConnection, more: bytes) -> None:
        self._create_task(answered.sock, more, answered)

    def _create_task(self, sock: socket.SocketType, first: bytes, answered: AnsweredConnection | None) -> None:
        connection = self._connect()
        connection.first, connection.answered = first, answered
        task = self._loop.create_task(self._connect_to_loop(sock, connection))
        self._tasks.add(task)  # the event loop holds only a weak reference
        task.add_done_callback(self._tasks.discard)

    async def _connect_to_loop(self, raw: socket.SocketType, connection: VmConnection) -> None:
        sock = socket.socket(*self._kind, raw.detach())
        sock.setblocking(False)  # noqa: FBT003 - takes no name
        try:
            await self._loop.connect_accepted_socket(lambda: connection, sock)
        except OSError:
            sock.close()  # the client is gone
            connection.connection_lost(None)


def _has_sent(sock: socket.SocketType, response: bytes, flags: int) -> bool:
    """Send all bytes without waiting; return False if the client is gone, or the system has no memory."""
    try:
        return sock.send(response, socket.MSG_DONTWAIT | flags) == len(response)
    except OSError:
        return False
