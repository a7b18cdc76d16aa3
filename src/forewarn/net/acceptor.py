"""Accepts connections and counts them before anything is read, TLS handshakes included."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable

from forewarn.net.pool import Pool, PoolLimit, Slot
from forewarn.net.tally import Tally

__all__ = ["Acceptor"]

_AT_ONCE = 64
"""Connections accepted in one turn of the loop: others have their turn, too."""

_PAUSE_S = 0.1
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_LINGER_BYTES = 64 << 10


class Acceptor:
    """Accepts on one socket until it is closed.

    It stands among uvicorn's servers, and has what that asks of one.

    Args:
        sock: Bound, listening, and not blocking.
        pool: Where connections are counted.
        make: Makes the protocol of a connection with that place.
        refusal: What a connection over a limit is sent; nothing under TLS.
        tls: The certificate; None: in the clear.
        handshake_timeout_s: For a TLS handshake.
        refused: Counts connections over a limit, by address.
        exhausted: Counts moments without a file descriptor to accept with.
    """

    def __init__(  # noqa: PLR0913 - what a listener knows
        self,
        sock: socket.socket,
        pool: Pool,
        make: Callable[[Slot], asyncio.Protocol],
        *,
        refusal: bytes,
        tls: ssl.SSLContext | None,
        handshake_timeout_s: float,
        refused: Tally,
        exhausted: Tally,
    ) -> None:
        self.sockets = (sock,)
        self._sock = sock
        self._pool = pool
        self._make = make
        self._refusal = b"" if tls is not None else refusal
        self._tls = tls
        self._handshake_timeout_s = handshake_timeout_s
        self._refused = refused
        self._exhausted = exhausted
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._loop.add_reader(sock.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more, and end the handshakes under way. May be repeated."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._pause is None:
            self._loop.remove_reader(self._sock.fileno())
        else:
            self._pause.cancel()
        for task in self._beginning:
            task.cancel()

    async def wait_closed(self) -> None:
        """Return when no handshake is under way."""
        await asyncio.gather(*self._beginning, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._rest(error)
                    return
                continue  # the other side is gone already
            sock.setblocking(False)  # noqa: FBT003 - the signature is the socket's
            self._enter(sock, str(address[0]))

    def _rest(self, error: OSError) -> None:
        """Without descriptors nothing can be accepted: try again soon, and not in every turn of the loop."""
        self._exhausted.note(error.strerror or "")
        self._loop.remove_reader(self._sock.fileno())
        self._pause = self._loop.call_later(_PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._sock.fileno(), self._accept)

    def _enter(self, sock: socket.socket, address: str) -> None:
        slot = self._pool.enter(address)
        if isinstance(slot, PoolLimit):
            self._refused.note(address)
            with contextlib.suppress(OSError):
                if self._refusal:
                    sock.send(self._refusal)
                    sock.shutdown(socket.SHUT_WR)
                    # What has been sent is taken, once: left in the buffer it would turn the answer into a reset.
                    sock.recv(_LINGER_BYTES)
            sock.close()
            return
        task = self._loop.create_task(self._begin(sock, slot))
        slot.close = task.cancel  # until there is a protocol, which says another way
        self._beginning.add(task)
        task.add_done_callback(lambda task: self._end(task, sock, slot))

    async def _begin(self, sock: socket.socket, slot: Slot) -> None:
        timeout_s = None if self._tls is None else self._handshake_timeout_s
        await self._loop.connect_accepted_socket(
            lambda: self._make(slot), sock, ssl=self._tls, ssl_handshake_timeout=timeout_s
        )

    def _end(self, task: asyncio.Task[None], sock: socket.socket, slot: Slot) -> None:
        """The connection has begun, or has come to nothing: then it leaves no trace."""
        self._beginning.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            return
        slot.release()
        sock.close()
        if not isinstance(error, (OSError, asyncio.CancelledError)):  # TLS that fails, or takes too long, is an OSError
            self._loop.call_exception_handler({"message": "a connection could not be begun", "exception": error})
