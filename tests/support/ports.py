"""Ports for servers that a test starts by number, or starts again where they were."""

from __future__ import annotations

import socket

__all__ = ["reserve_address", "reserve_port"]


def reserve_port(address: str = "127.0.0.1") -> int:
    """A TCP port of that address at which nobody listens, and which is given to nobody else until this process ends.

    A port that was free a moment ago may be taken by the next connection of another process. So a socket stays bound to
    it without listening: the kernel then gives the port to nobody who asks for any port, yet a server that sets
    SO_REUSEADDR, as servers do, may listen there, once or again and again.
    """
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, 0))
        port: int = sock.getsockname()[1]
        sock.detach()  # left open until the process ends
    return port


def reserve_address() -> str:
    """The same as `127.0.0.1:PORT`."""
    return f"127.0.0.1:{reserve_port()}"
