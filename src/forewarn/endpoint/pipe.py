"""Message stream between two processes on one machine, over a pair of connected sockets."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import cast

__all__ = ["Pipe"]

_LENGTH_BYTES = 4
_UNREAD_BYTES_MAX = 1 << 20
"""Size above which reading pauses until the received messages have been taken."""

_UNSENT_BYTES_MAX = 1 << 20
"""Size above which `drain` waits."""

_MESSAGE_BYTES_MAX = 64 << 20
"""Maximum size of a message, well above all that are sent: large things are sent in parts."""


class Pipe(asyncio.Protocol):
    """One end of the stream; each message is preceded by its length in four bytes.

    Attributes:
        is_closed: True once the connection has ended.
    """

    def __init__(self) -> None:
        self.is_closed = False
        self._excess_bytes = 0
        self._transport: asyncio.Transport = None  # type: ignore[assignment] # set by connection_made, before any use
        self._buffer = bytearray()
        self._frames: deque[bytes] = deque()
        self._unread_bytes = 0
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    @classmethod
    async def from_socket(cls, sock: socket.socket) -> Pipe:
        """Open a pipe over a connected socket, which the pipe owns from now on."""
        sock.setblocking(False)  # noqa: FBT003 - the signature is the socket's
        _, pipe = await asyncio.get_running_loop().create_unix_connection(cls, sock=sock)
        return pipe

    def send(self, message: bytes) -> None:
        """Send a message, or nothing once the pipe is closed; call `drain` to bound the unsent bytes."""
        if not self.is_closed:
            self._transport.write(len(message).to_bytes(_LENGTH_BYTES, "big") + message)

    async def drain(self) -> None:
        """Wait until the other side has read most of the sent bytes, or the pipe is closed."""
        await self._writable.wait()

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that wait to be sent."""
        return 0 if self.is_closed else self._transport.get_write_buffer_size()

    async def receive(self) -> list[bytes]:
        """Wait for messages and return all that have arrived; empty once the pipe is closed. For one task only.

        Raises:
            ConnectionError: The other side has begun a message that is too large, so the pipe is closed.
        """
        while not self._frames and not self.is_closed:
            self._readable.clear()
            await self._readable.wait()
        if self._excess_bytes:
            msg = f"the other process began a message of {self._excess_bytes} bytes, above {_MESSAGE_BYTES_MAX}"
            raise ConnectionError(msg)
        frames = list(self._frames)
        self._frames.clear()
        self._unread_bytes = 0
        # Reading pauses while too much is waiting here; the caller has just taken all of it.
        if not self.is_closed:
            self._transport.resume_reading()
        return frames

    def close(self) -> None:
        """Close after the waiting bytes have been sent."""
        if not self.is_closed:
            self._transport.close()

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport and set its write limit."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        """Split the received bytes into messages."""
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= _LENGTH_BYTES:
            size = int.from_bytes(buffer[at : at + _LENGTH_BYTES], "big")
            if size > _MESSAGE_BYTES_MAX:
                # The other process may have been taken over, and must not fill the memory of this one.
                self._excess_bytes = size
                buffer.clear()
                self._transport.abort()
                return
            end = at + _LENGTH_BYTES + size
            if len(buffer) < end:
                break
            self._frames.append(bytes(buffer[at + _LENGTH_BYTES : end]))
            self._unread_bytes += end - at
            at = end
        # One cut per chunk: a cut per message would move the rest of the buffer each time.
        if at:
            del buffer[:at]
            self._readable.set()
        if self._unread_bytes > _UNREAD_BYTES_MAX:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Mark the pipe closed and wake all waiters."""
        self.is_closed = True
        self._readable.set()
        self._writable.set()

    def pause_writing(self) -> None:
        """Make `drain` wait: the write buffer is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let `drain` return: the write buffer has room again."""
        self._writable.set()
