"""Sockets of the metadata endpoint of `forewarn serve`."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, AsyncExitStack

from forewarn.net.shared_address import bind_shared_listeners

__all__ = ["bind_metadata_sockets"]


def bind_metadata_sockets(
    stack: AsyncExitStack,
    addresses: Iterable[tuple[str, int]],
    workers: int,
    bind: Callable[[str, int], AbstractContextManager[socket.socket]],
) -> list[list[socket.socket]]:
    """Return, for each address, a listening socket for each process that answers VMs.

    Args:
        stack: Closes them.
        addresses: Addresses of the metadata endpoint.
        workers: Number of processes.
        bind: Binds an address for a single process.

    Raises:
        ConfigError: An address cannot be listened on.
    """
    if workers == 1:
        return [[stack.enter_context(bind(*address))] for address in addresses]
    return [stack.enter_context(bind_shared_listeners(*address, workers)) for address in addresses]
