"""Operating system process of one metadata process: its start and its end."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

__all__ = ["ChildProcess"]

_NOT_HANDED_ON = ("FOREWARN_", "PG", "OTEL_")
"""Prefixes of environment variables that may hold secrets: an attacker who takes over the process must find none."""


class ChildProcess:
    """Process that runs `forewarn.endpoint`, started at once.

    Args:
        sockets: Sockets that it listens on.
        descriptors: File descriptors that it inherits besides.

    Attributes:
        channel: Our end of the connection to it.
    """

    def __init__(self, sockets: Sequence[socket.socket], descriptors: Sequence[int] = ()) -> None:
        self.channel, theirs = socket.socketpair()
        # Our copy must be closed: while it is open, the pipe does not end with the process.
        with theirs:
            numbers = [theirs.fileno(), *(sock.fileno() for sock in sockets)]
            self._process = subprocess.Popen(  # noqa: S603 - this same program
                # `-P` keeps the working directory off the import path. Logs go to stderr, which the process inherits.
                [sys.executable, "-P", "-m", "forewarn.endpoint", *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if not name.startswith(_NOT_HANDED_ON)},
                pass_fds=[*numbers, *descriptors],
                process_group=0,  # signals from a terminal are for the service only
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    async def end(self, timeout_s: float) -> int:
        """Make sure that the process has ended, and return its exit status; after `timeout_s` it is killed."""
        # A process that works ends when its pipe closes; one that hangs is killed below.
        self.channel.close()
        try:
            return await asyncio.to_thread(self._process.wait, timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return await asyncio.to_thread(self._process.wait)
