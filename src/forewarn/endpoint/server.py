"""Listener of the metadata endpoint: sockets, a tick every second, and a graceful stop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta

from uvicorn.config import Config
from uvicorn.server import ServerState

from forewarn.clock import Clock, VirtualClock
from forewarn.endpoint.acceptor import Acceptor, defer_accepting
from forewarn.endpoint.app import MetadataApp
from forewarn.endpoint.fastpath import VmConnection
from forewarn.endpoint.traffic import Traffic
from forewarn.publishing.identity import Identity

__all__ = ["ListeningSockets", "MetadataServer"]

# The default of net.core.somaxconn since Linux 5.4. Half of the clients open a connection for each poll (W8).
_BACKLOG = 4096
_SEND_BUFFER_BYTES = 128 << 10
_SILENT_FOR = timedelta(hours=1)
"""Time after which a VM without a connection is released: VMs poll every few seconds or minutes, so it has probably
stopped. A VM that was released too early costs only the encoding of its next answer.
"""

_EXAMINED_AT_ONCE = 1000
"""Maximum number of callers that one tick examines: a million take 17 minutes."""


class ListeningSockets:
    """Group of listening sockets and the connections that they accepted.

    `connections` returns all open connections of the server.

    Attributes:
        is_closed: True once it is closed.
    """

    def __init__(self, connections: Callable[[], Sequence[VmConnection]]) -> None:
        self.servers: list[asyncio.Server | Acceptor] = []
        self.is_closed = False
        self._connections = connections

    def close_sockets(self) -> None:
        """Close the sockets; the connections that they accepted stay open."""
        for server in self.servers:
            server.close()

    def close(self) -> None:
        """Close the sockets and end every connection that they accepted."""
        self.is_closed = True
        # The sockets first, so that no connection is accepted after the others were closed.
        self.close_sockets()
        for connection in self._connections():
            if connection.listening is self:
                # Not finished, since the interface may belong to another VM by now.
                connection.abort()


class MetadataServer:
    """Server for VMs on one or several sockets.

    Args:
        app: App for the requests that the hot path does not answer.
        clock: Clock for the Date header and the times of last requests.
        make_connection: Makes a connection, from the arguments of a `VmConnection`.
        is_current: See `Acceptor`; None if this process alone shows documents.

    Attributes:
        tick_s: Interval between ticks, which update the time and close overdue connections.
    """

    def __init__(  # noqa: PLR0913 - supplied by its process
        self,
        app: MetadataApp,
        traffic: Traffic,
        identity: Identity,
        clock: Clock,
        make_connection: Callable[..., VmConnection] = VmConnection,
        is_current: Callable[[], bool] | None = None,
    ) -> None:
        self.tick_s = 1.0
        self._is_current = is_current
        self._make_connection = make_connection
        self._traffic = traffic
        self._identity = identity
        self._clock = clock
        self._config = Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # a VM must not be able to fill the log with warnings about its requests
            access_log=False,
            proxy_headers=False,  # no header may replace the address that identifies the VM (R2)
        )
        # Otherwise the first request of a VM waits for it: the protocol loads a configuration that is not loaded yet.
        self._config.load()
        self._state = ServerState()
        self._servers: list[asyncio.Server | Acceptor] = []
        self._timer: asyncio.TimerHandle | None = None
        self._refresh_handle: asyncio.Handle | None = None
        # A virtual clock may jump by a day between two ticks, and the Date header must follow it.
        if isinstance(clock, VirtualClock):
            clock.listeners.append(self._schedule_refresh)

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return len(self._state.connections)

    @property
    def sockets(self) -> list[socket.socket]:
        """Listening sockets."""
        return [sock for server in self._servers for sock in server.sockets]

    @property
    def open_connections(self) -> list[VmConnection]:
        """Open connections that have a transport."""
        return [connection for connection in self._state.connections if isinstance(connection, VmConnection)]

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Start the tick and accept on sockets that are already bound."""
        # First, or the first responses would have no Date header (R8).
        self._tick()
        await self.listen(sockets)

    async def listen(
        self, sockets: Sequence[socket.socket], vm: str = "", *, for_a_while: bool = False
    ) -> ListeningSockets:
        """Accept on further sockets until the endpoint stops or the returned `ListeningSockets` is closed.

        Args:
            sockets: Bound sockets.
            vm: VM assumed for every connection; empty to find it by the source address.
            for_a_while: True if the sockets will be closed before their connections, so that each needs a transport.
        """
        loop = asyncio.get_running_loop()
        listening = ListeningSockets(lambda: self.open_connections)

        def connect() -> VmConnection:
            connection = self._make_connection(self._traffic, self._identity, self._config, self._state, loop, vm)
            connection.listening = listening
            return connection

        for sock in sockets:
            # Connections inherit the size. By default the kernel buffers megabytes for each client that does not read.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            server: asyncio.Server | Acceptor
            if defer_accepting(sock) and not for_a_while:
                server = Acceptor(sock, connect, self._state, self._traffic, self._identity, vm, self._is_current)
                server.start(_BACKLOG)
            else:
                server = await loop.create_server(connect, sock=sock, backlog=_BACKLOG)
            listening.servers.append(server)
            self._servers.append(server)
        # Forget closed servers: VMs of a host come and go, and each may have had its own socket.
        self._servers = [server for server in self._servers if server.is_serving()]
        return listening

    async def stop(self, grace_s: float = 2.0) -> None:
        """Stop accepting, answer held requests, give pending responses `grace_s` seconds, and close."""
        # First, so that no request is held from here on.
        self._traffic.is_stopping = True
        for server in self._servers:
            server.close()
        for server in self._servers:
            if isinstance(server, Acceptor):
                await server.wait_connected()
        for connection in self.open_connections:
            connection.shutdown()
        deadline = asyncio.get_running_loop().time() + grace_s
        # uvicorn signals no end of a response. Most take a millisecond, so begin with short pauses.
        pause_s = 0.0005
        while self._state.connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.02)
        for task in list(self._state.tasks):
            task.cancel()
        self.abort()

    def abort(self) -> None:
        """End all connections at once without a response, as if this process were killed."""
        self._traffic.is_stopping = True
        for server in self._servers:
            server.close()
        for connection in self.open_connections:
            connection.abort()
        if self._timer is not None:
            self._timer.cancel()

    async def wait_for_requests(self, timeout_s: float) -> None:
        """Wait until the app has ended all requests, but no longer than that."""
        if tasks := set(self._state.tasks):
            await asyncio.wait(tasks, timeout=timeout_s)

    def _schedule_refresh(self) -> None:
        """Schedule a refresh before the next response; once, even if a virtual clock takes many steps."""
        if self._refresh_handle is None:
            self._refresh_handle = asyncio.get_running_loop().call_soon(self._refresh_time)

    def _refresh_time(self) -> None:
        self._refresh_handle = None
        self._traffic.tick(self._clock.now(), asyncio.get_running_loop().time())
        self._state.default_headers = self._traffic.headers

    def _tick(self) -> None:
        """Update the time in the headers, close overdue connections, and schedule the next tick."""
        loop = asyncio.get_running_loop()
        self._refresh_time()
        monotonic_s = self._traffic.monotonic_s
        for connection in self.open_connections:
            connection.close_if_overdue(monotonic_s)
        for server in self._servers:
            if isinstance(server, Acceptor):
                server.close_idle(monotonic_s - self._traffic.limits.idle_timeout_s)
        if self._traffic.now is not None:
            self._identity.release_silent_callers(self._traffic.now - _SILENT_FOR, _EXAMINED_AT_ONCE)
        self._timer = loop.call_later(self.tick_s, self._tick)
