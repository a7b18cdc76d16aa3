"""When a whole HTTP request has to be through, or is given up. httpcore limits each of its steps only."""

from __future__ import annotations

import math
import ssl
import threading
import time
from collections.abc import Callable, Iterable

import httpcore

__all__ = ["LOOK_S", "Deadline", "DeadlineBackend", "never"]

LOOK_S = 0.2
"""How often a waiting thread looks whether to go on. Nothing else wakes it from a read on every system."""


def never() -> bool:
    """Say that nothing is given up."""
    return False


class Deadline(threading.local):
    """When the request of this thread has to be through.

    Attributes:
        at_s: On the clock of `time.perf_counter`.
        is_given_up: Asked while it is under way.
    """

    at_s = math.inf
    is_given_up: Callable[[], bool] = staticmethod(never)

    def limit(self, timeout_s: float | None) -> float:
        """The time-out of one step of it.

        Raises:
            ReadTimeout: No time is left, or the request is given up.
        """
        if self.is_given_up():
            msg = "the request was given up"
            raise httpcore.ReadTimeout(msg)
        left_s = self.at_s - time.perf_counter()
        if left_s <= 0:
            msg = "the time is over"
            raise httpcore.ReadTimeout(msg)
        return left_s if timeout_s is None else min(timeout_s, left_s)


class DeadlineBackend(httpcore.NetworkBackend):
    """Sockets whose steps end at a deadline: an answer that trickles in would take for ever, one time-out a byte."""

    def __init__(self, deadline: Deadline) -> None:
        self._sockets = httpcore.SyncBackend()
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect."""
        stream = self._sockets.connect_tcp(host, port, self._deadline.limit(timeout), local_address, socket_options)
        return _Stream(stream, self._deadline)


class _Stream(httpcore.NetworkStream):
    """A connection; see `DeadlineBackend`."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """What has come, at least a byte."""
        left_s = self._deadline.limit(timeout)
        while left_s > LOOK_S:
            try:
                return self._stream.read(max_bytes, LOOK_S)
            except httpcore.ReadTimeout:
                left_s = self._deadline.limit(left_s - LOOK_S)
        return self._stream.read(max_bytes, left_s)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send all of it."""
        self._stream.write(buffer, self._deadline.limit(timeout))

    def close(self) -> None:
        """Close our end."""
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        """Go on encrypted."""
        stream = self._stream.start_tls(ssl_context, server_hostname, self._deadline.limit(timeout))
        return _Stream(stream, self._deadline)

    def get_extra_info(self, info: str) -> object:
        """What httpcore asks about the socket."""
        return self._stream.get_extra_info(info)
