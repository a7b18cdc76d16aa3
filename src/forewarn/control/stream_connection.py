"""A connection that only carries the rest of one response: the lines of a stream, until it ends.

A stream lasts for days and there are thousands of them. uvicorn keeps a parser, a task and the frames of every layer
of the app for each response in progress, which is several times what a stream needs. So once the head of the response
is written, `StreamConnection` takes the place of uvicorn's protocol on the transport, and uvicorn's task ends.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from forewarn.core.usage_limits import UsageAccount, UseKind
from forewarn.net.pool import Slot

__all__ = ["StallCheck", "StreamConnection", "StreamSource"]

_TAKEN_BYTES_MIN = 1 << 10
"""Bytes of a response that the client has to take between two sweeps, at least once within `request_timeout_s`."""


class StreamSource(Protocol):
    """Writes the lines of a stream to its connection."""

    def resume(self) -> None:
        """Write what is waiting: the client has taken enough of what was written before."""

    def close(self) -> None:
        """Forget the stream: its connection has ended."""


class StallCheck:
    """Check, repeated at intervals, that a client reads what is written to it."""

    __slots__ = ("_since_s", "_waiting_bytes")

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._waiting_bytes = 0

    def reset(self) -> None:
        """Start over: the client has taken what was written."""
        self._since_s = None

    def is_stalled(self, transport: asyncio.Transport, now_s: float, timeout_s: float) -> bool:
        """Return True if for longer than the timeout, the client has taken too little or nothing."""
        waiting_bytes = transport.get_write_buffer_size()
        # A connection that is closing counts, too: it may wait for a client that does not end the TLS session.
        if not waiting_bytes and not transport.is_closing():
            self._since_s = None
        # Only real progress restarts the time: a client that takes a byte now and then would hold its buffer forever.
        elif self._since_s is None or waiting_bytes <= self._waiting_bytes - _TAKEN_BYTES_MIN:
            self._since_s = now_s
        self._waiting_bytes = waiting_bytes
        return self._since_s is not None and now_s - self._since_s > timeout_s


class StreamConnection(asyncio.Protocol):
    """One connection whose last response is in progress, in chunks; it is closed after that response.

    It has the methods that uvicorn and the sweep call on every connection of the listener.

    Args:
        transport: Transport of the connection.
        source: Writer of the stream.
        slot: Slot of the connection, released when it ends.
        account: Account to which the connection is charged; None if to no account.
        connections: Open connections of the listener, from which this one is removed when it ends.
        is_paused: Whether the client has yet to take what was written.
        take_timeout_s: Time limit for the client to take what is written.
    """

    __slots__ = (
        "_account",
        "_connections",
        "_is_paused",
        "_slot",
        "_source",
        "_stall_check",
        "_take_timeout_s",
        "transport",
    )

    def __init__(  # noqa: PLR0913 - supplied by the listener
        self,
        transport: asyncio.Transport,
        source: StreamSource,
        *,
        slot: Slot,
        account: UsageAccount | None,
        connections: set[asyncio.Protocol],
        is_paused: bool,
        take_timeout_s: float,
    ) -> None:
        self.transport = transport
        self._source = source
        self._slot = slot
        self._account = account
        self._connections = connections
        self._is_paused = is_paused
        self._take_timeout_s = take_timeout_s
        self._stall_check = StallCheck()

    @property
    def is_writable(self) -> bool:
        """True if the client takes what is written, and the connection is open."""
        return not self._is_paused and not self.transport.is_closing()

    def write(self, lines: bytes) -> None:
        """Write the next part of the response, which must not be empty."""
        self.transport.write(b"%x\r\n%b\r\n" % (len(lines), lines))

    def finish(self) -> None:
        """End the response, and close the connection once everything is written."""
        if not self.transport.is_closing():
            self.transport.write(b"0\r\n\r\n")
            self.transport.close()

    # Called by the transport

    def data_received(self, data: bytes) -> None:  # noqa: ARG002 - nothing is read any more
        """Read no further: the response says that the connection closes, so no other request is answered on it."""
        self.transport.pause_reading()

    def pause_writing(self) -> None:
        """Stop writing: the client does not take it."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Write again: the client has taken what was written."""
        self._stall_check.reset()
        self._is_paused = False
        self._source.resume()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - a stream may end in any way
        """Release the slot and the account's connection, and end the stream."""
        self._connections.discard(self)
        self._slot.release()
        if self._account is not None:
            self._account.release(UseKind.CONNECTIONS)
            self._account = None
        self._source.close()

    # Called by the server

    def shutdown(self) -> None:
        """End the response, because the service stops."""
        self.finish()

    def close_if_overdue(self, now_s: float) -> None:
        """Drop the connection if the client does not take what is written."""
        if self._stall_check.is_stalled(self.transport, now_s, self._take_timeout_s):
            self.transport.abort()
