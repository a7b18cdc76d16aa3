"""A stream of messages between two processes on one machine, over a pair of connected sockets."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import cast

__all__ = ["Pipe"]

_LENGTH_BYTES = 4
_UNREAD_BYTES_MAX = 1 << 20
"""Above this nothing more is read until what is there has been taken."""

_UNSENT_BYTES_MAX = 1 << 20
"""Above this `drain` waits."""


class Pipe(asyncio.Protocol):
    """One end: each message is its length in four bytes, and then its bytes.

    Attributes:
        is_closed: Whether the other side is gone.
    """

    def __init__(self) -> None:
        self.is_closed = False
        self._transport: asyncio.Transport = None  # type: ignore[assignment] # set by connection_made, before any use
        self._buffer = bytearray()
        self._frames: deque[bytes] = deque()
        self._unread_bytes = 0
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    @classmethod
    async def over(cls, sock: socket.socket) -> Pipe:
        """The end that this socket is; it belongs to the pipe from now on."""
        sock.setblocking(False)  # noqa: FBT003 - the signature is the socket's
        _, pipe = await asyncio.get_running_loop().create_unix_connection(cls, sock=sock)
        return pipe

    def send(self, message: bytes) -> None:
        """Send a message, or nothing once the other side is gone; `drain` keeps what is on its way within bounds."""
        if not self.is_closed:
            self._transport.write(len(message).to_bytes(_LENGTH_BYTES, "big") + message)

    async def drain(self) -> None:
        """Wait until the other side has taken most of what was sent."""
        await self._writable.wait()

    @property
    def unsent_bytes(self) -> int:
        """How much waits here to be sent."""
        return 0 if self.is_closed else self._transport.get_write_buffer_size()

    async def receive(self) -> list[bytes]:
        """All messages that have arrived; none once the other side is gone. Only one task may wait here."""
        while not self._frames and not self.is_closed:
            self._readable.clear()
            await self._readable.wait()
        frames = list(self._frames)
        self._frames.clear()
        self._unread_bytes = 0
        if not self.is_closed:
            self._transport.resume_reading()
        return frames

    def close(self) -> None:
        """Send what waits, and end."""
        if not self.is_closed:
            self._transport.close()

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is ours."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        """Cut what has come into messages."""
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= _LENGTH_BYTES:
            end = at + _LENGTH_BYTES + int.from_bytes(buffer[at : at + _LENGTH_BYTES], "big")
            if len(buffer) < end:
                break
            self._frames.append(bytes(buffer[at + _LENGTH_BYTES : end]))
            self._unread_bytes += end - at
            at = end
        if at:
            del buffer[:at]
            self._readable.set()
        if self._unread_bytes > _UNREAD_BYTES_MAX:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The other side is gone."""
        self.is_closed = True
        self._readable.set()
        self._writable.set()

    def pause_writing(self) -> None:
        """The other side takes no more for now."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It takes more again."""
        self._writable.set()
