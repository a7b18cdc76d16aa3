"""Listening sockets in a metadata process: its own, and those of the other processes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Sequence

from forewarn.endpoint.server import ListeningSockets, MetadataServer

__all__ = ["ProcessSockets"]


class ProcessSockets:
    """Sockets inherited from the service.

    Args:
        sockets: Bound sockets of all processes, in the order of their numbers; each has the same number of them.
        number: Number of this process.
        processes: Number of processes.

    Attributes:
        own: Sockets of this process.
    """

    def __init__(self, sockets: Sequence[socket.socket], number: int, processes: int) -> None:
        size = len(sockets) // processes
        parts = [sockets[start : start + size] for start in range(0, len(sockets), size)] if size else [[]]
        self.own = parts[number]
        self._others = {at: part for at, part in enumerate(parts) if at != number}
        self._accepting: dict[int, ListeningSockets] = {}
        self._lock = asyncio.Lock()

    async def accept_for(self, processes: Collection[int], server: MetadataServer) -> None:
        """Accept connections also from the sockets of these other processes, and of no more of them."""
        async with self._lock:
            for number in [each for each in self._accepting if each not in processes]:
                self._accepting.pop(number).close_sockets()
            for number in processes:
                if number not in self._accepting and number in self._others:
                    # Copies, since the server closes its sockets; these are needed again.
                    copies = [sock.dup() for sock in self._others[number]]
                    self._accepting[number] = await server.listen(copies, for_a_while=True)

    def close(self) -> None:
        """Close the sockets of the other processes, which would otherwise go on to queue connections."""
        for part in self._others.values():
            for sock in part:
                sock.close()
        self._others = {}
