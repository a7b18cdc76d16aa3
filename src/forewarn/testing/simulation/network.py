"""Network of the simulation: nodes, the connections between them, and what is lost, slow or cut on the way.

It simulates what the kernel offers to a program: listening sockets, connections, ordered bytes. So the code under test
uses its own servers and clients. As with TCP, bytes of one connection are never reordered; while a link is cut they
wait, and after a while the connection ends.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import zlib
from contextvars import copy_context
from dataclasses import dataclass, field

from forewarn.testing.simulation.connection import SimulatedSocket, SimulatedTransport

__all__ = ["Network", "NetworkFaults", "Node"]

_DELAY_S = (0.0002, 0.003)
_RETRY_S = 0.5
_FIRST_PORT = 30_000
_FIRST_NUMBER = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFaults:
    """Probabilities of what happens to a connection or to a piece of its bytes.

    Attributes:
        refused: A new connection is refused.
        reset: A connection is reset when bytes are sent.
        slow: Bytes take up to `slow_s` seconds.
        slow_s: Maximum delay of slow bytes.
    """

    refused: float = 0.0
    reset: float = 0.0
    slow: float = 0.0
    slow_s: float = 5.0


@dataclass(slots=True, eq=False)
class Node:
    """A machine on the network.

    Attributes:
        name: Name for the trace, and for cuts.
        address: IP address.
        routes: Nodes that answer at other addresses as seen from here, for example the metadata address.
    """

    name: str
    address: str
    routes: dict[str, Node] = field(default_factory=dict)
    listening: dict[int, SimulatedSocket] = field(default_factory=dict)
    connections: dict[SimulatedTransport, None] = field(default_factory=dict)
    next_port: int = _FIRST_PORT

    def take_port(self) -> int:
        """Return a free port for a connection from here."""
        self.next_port += 1
        return self.next_port


class Network:
    """All nodes and links.

    Args:
        rng: Source of delays and faults.

    Attributes:
        faults: Faults of all links.
        names: Addresses by host name.
        listening: Listening sockets by number.
        context: Context of what the network itself does: it belongs to no process.
    """

    def __init__(self, rng: random.Random) -> None:
        self.faults = NetworkFaults()
        self.names: dict[str, str] = {}
        self.context = copy_context()
        # Two real descriptors, for clients that poll a socket to learn if the other side has ended the connection.
        self.quiet_fd, self._quiet_end = os.pipe()
        self.readable_fd, end = os.pipe()
        os.close(end)
        self._rng = rng
        self.listening: dict[int, SimulatedSocket] = {}
        self._nodes: dict[str, Node] = {}
        self._cuts: dict[tuple[str, str], None] = {}

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in (self.quiet_fd, self._quiet_end, self.readable_fd):
            os.close(descriptor)

    def add_node(self, name: str, address: str) -> Node:
        """Add a machine."""
        node = self._nodes[address] = Node(name, address)
        self.names[name] = address
        return node

    # Faults

    def cut(self, source: str, target: str) -> None:
        """Let nothing through in that direction until it is healed. ``*`` stands for every node."""
        self._cuts[source, target] = None

    def heal(self, source: str, target: str) -> None:
        """End a cut of that direction."""
        self._cuts.pop((source, target), None)

    def heal_all(self) -> None:
        """End all cuts and faults."""
        self._cuts.clear()
        self.faults = NetworkFaults()

    def is_cut(self, source: str, target: str) -> bool:
        """Return whether nothing gets through in that direction."""
        cuts = self._cuts
        return bool(cuts) and any(pair in cuts for pair in ((source, target), (source, "*"), ("*", target)))

    def draws(self, probability: float) -> bool:
        """Draw whether a fault of that probability happens now."""
        return probability > 0 and self._rng.random() < probability

    def draw_delay_s(self) -> float:
        """Draw the time that bytes take, in seconds."""
        if self.draws(self.faults.slow):
            return self._rng.random() * self.faults.slow_s
        return self._rng.uniform(*_DELAY_S)

    # Sockets

    def listen(self, node: Node, address: str, port: int) -> SimulatedSocket:
        """Return a socket that listens on a node.

        Raises:
            OSError: The port is in use.
        """
        if port in node.listening:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        sock = SimulatedSocket(self, node, (address, port or node.take_port()), None)
        node.listening[sock.getsockname()[1]] = sock
        return sock

    def number_of(self, sock: SimulatedSocket) -> int:
        """Return the number of a listening socket, in the place of a descriptor."""
        number = _FIRST_NUMBER + sock.getsockname()[1] + (zlib.crc32(sock.node.name.encode()) << 16)
        self.listening[number] = sock
        return number

    async def connect(self, source: Node, address: str, port: int, source_address: str = "") -> SimulatedTransport:
        """Connect to a listening socket; may be cancelled.

        Raises:
            ConnectionRefusedError: Nothing listens there.
            OSError: There is no such address.
        """
        target = source.routes.get(address) or self._nodes.get(address)
        if target is None:
            raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))
        await asyncio.sleep(self.draw_delay_s())
        # As TCP does, until the caller gives up.
        while self.is_cut(source.name, target.name) or self.is_cut(target.name, source.name):  # noqa: ASYNC110 - no event
            await asyncio.sleep(_RETRY_S)
        listening = target.listening.get(port)
        if listening is None or listening.is_closed or self.draws(self.faults.refused):
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        ours, theirs = (source_address or source.address, source.take_port()), (address, port)
        sock = SimulatedSocket(self, source, ours, theirs)
        near = sock.transport = SimulatedTransport(self, source, target, sock, self.context)
        accepted = SimulatedSocket(self, target, theirs, ours)
        # The far side gets its protocol when its server accepts. Until then, what is sent to it waits.
        far = accepted.transport = SimulatedTransport(self, target, source, accepted, self.context)
        near.other, far.other = far, near
        listening.waiting.append(accepted)
        if listening.on_readable is not None:
            listening.on_readable()
        return near
