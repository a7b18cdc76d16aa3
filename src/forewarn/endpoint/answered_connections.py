"""Connections whose first request was answered, and that have no transport yet.

Most clients that open a connection for each poll do not ask for it to be closed: they close it themselves as soon as
they have the response. Such a connection never needs a transport. If its client sends more, it becomes a
`VmConnection`.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable

from uvicorn.server import ServerState

from forewarn.publishing.identity import Caller

__all__ = ["AnsweredConnection", "AnsweredConnections"]

_RECEIVE_BYTES = 4096
_EVENTS_MAX = 64
"""Maximum number of connections served before other work has its turn."""


class AnsweredConnection:
    """A connection that waits for its client to close it, or to send more.

    Attributes:
        sock: Its socket.
        caller: VM behind the connection, for which it is counted.
        answered_s: Monotonic seconds of the response.
    """

    __slots__ = ("answered_s", "caller", "sock")

    def __init__(self, sock: socket.SocketType, caller: Caller, answered_s: float) -> None:
        self.sock = sock
        self.caller = caller
        self.answered_s = answered_s

    def count(self, state: ServerState) -> None:
        """Count as an open connection."""
        self.caller.usage.connections += 1
        state.connections.add(self)  # type: ignore[arg-type] # the set is only searched and counted

    def uncount(self, state: ServerState) -> None:
        """Count no longer as an open connection."""
        self.caller.usage.connections -= 1
        state.connections.discard(self)


class AnsweredConnections:
    """The answered connections of one acceptor.

    Args:
        connect: Makes a connection one of the event loop, with the bytes that were received; it still counts then.
        state: Holds the open connections.
    """

    def __init__(self, connect: Callable[[AnsweredConnection, bytes], None], state: ServerState) -> None:
        self._connect = connect
        self._state = state
        self._by_fd: dict[int, AnsweredConnection] = {}
        # The event loop watches this one object. A reader for each connection would cost as much as a transport.
        self._epoll = select.epoll()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._epoll.fileno(), self._receive_more)

    def add(self, sock: socket.SocketType, caller: Caller, monotonic_s: float) -> None:
        """Keep a connection whose request was answered just now."""
        fd = sock.fileno()
        try:
            self._epoll.register(fd, select.EPOLLIN)
        except OSError:
            sock.close()  # the system has no memory; the client has its response, and can connect again
            return
        connection = self._by_fd[fd] = AnsweredConnection(sock, caller, monotonic_s)
        connection.count(self._state)

    def close_idle(self, since_s: float) -> None:
        """Close the connections that were answered before this time, in monotonic seconds."""
        # They are in the order of their responses.
        while self._by_fd:
            fd, oldest = next(iter(self._by_fd.items()))
            if oldest.answered_s >= since_s:
                break
            self._close_connection(fd)

    def close(self) -> None:
        """Close all of them, and take no more."""
        self._loop.remove_reader(self._epoll.fileno())
        for fd in list(self._by_fd):
            self._close_connection(fd)
        self._epoll.close()

    def _receive_more(self) -> None:
        for fd, _ in self._epoll.poll(0, _EVENTS_MAX):
            connection = self._by_fd.get(fd)
            if connection is None:
                continue  # a child process that was just forked shares the closed socket until it runs its program
            try:
                more = connection.sock.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError:
                more = b""  # the client has reset it
            if more:
                del self._by_fd[fd]
                self._epoll.unregister(fd)
                self._connect(connection, more)
            else:
                self._close_connection(fd)

    def _close_connection(self, fd: int) -> None:
        connection = self._by_fd.pop(fd)
        connection.uncount(self._state)
        connection.sock.close()  # which also ends that it is watched
