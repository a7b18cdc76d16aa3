"""Deadline for a whole HTTP request; httpcore limits only each of its steps."""

from __future__ import annotations

import math
import ssl
import threading
import time
from collections.abc import Callable, Iterable

import httpcore

__all__ = ["LOOK_S", "Deadline", "DeadlineBackend", "never_cancelled"]

LOOK_S = 0.2
"""Interval at which a waiting thread checks for cancellation. Nothing else interrupts a read on every system."""


def never_cancelled() -> bool:
    """Return False: the request is never cancelled."""
    return False


# Thread-local, because several threads may use one client, and httpcore hands no request to its network backend.
class Deadline(threading.local):
    """Deadline of the current thread's request.

    Attributes:
        at_s: Deadline on the clock of `time.perf_counter`.
        is_cancelled: Callback that returns True to cancel the running request.
    """

    at_s = math.inf
    # A plain function in a class is called with the object, so it needs the decorator.
    is_cancelled: Callable[[], bool] = staticmethod(never_cancelled)

    def limit_timeout(self, timeout_s: float | None) -> float:
        """Return the time-out of the request's next step.

        Raises:
            ReadTimeout: The deadline has passed, or the request is cancelled.
        """
        # httpcore closes the connection on a read time-out, which is what a cancelled request needs, too.
        if self.is_cancelled():
            raise httpcore.ReadTimeout("the request was cancelled")
        left_s = self.at_s - time.perf_counter()
        if left_s <= 0:
            raise httpcore.ReadTimeout("the deadline has passed")
        return left_s if timeout_s is None else min(timeout_s, left_s)


class DeadlineBackend(httpcore.NetworkBackend):
    """Sockets with one deadline for all steps; a time-out per read would let a trickling answer take for ever."""

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
        """Connect within the deadline."""
        stream = self._sockets.connect_tcp(
            host, port, self._deadline.limit_timeout(timeout), local_address, socket_options
        )
        return _DeadlineStream(stream, self._deadline)


class _DeadlineStream(httpcore.NetworkStream):
    """A connection with a deadline; see `DeadlineBackend`."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return received bytes, at least one."""
        # Read in short slices, so that a cancellation is noticed between them.
        left_s = self._deadline.limit_timeout(timeout)
        while left_s > LOOK_S:
            try:
                return self._stream.read(max_bytes, LOOK_S)
            except httpcore.ReadTimeout:
                left_s = self._deadline.limit_timeout(left_s - LOOK_S)
        return self._stream.read(max_bytes, left_s)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send the whole buffer."""
        self._stream.write(buffer, self._deadline.limit_timeout(timeout))

    def close(self) -> None:
        """Close this end."""
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        """Start TLS."""
        stream = self._stream.start_tls(ssl_context, server_hostname, self._deadline.limit_timeout(timeout))
        return _DeadlineStream(stream, self._deadline)

    def get_extra_info(self, info: str) -> object:
        """Return information about the socket for httpcore."""
        return self._stream.get_extra_info(info)
