"""Acceptor that counts connections before anything is read, including those in a TLS handshake."""

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
"""Maximum number of connections accepted in one iteration of the event loop, so that other work is not starved."""

_PAUSE_S = 0.1
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_LINGER_BYTES = 64 << 10


class Acceptor:
    """Acceptor for one socket, active until it is closed.

    It is registered among uvicorn's servers and has the interface that uvicorn expects.

    Args:
        sock: Socket that is bound, listening and non-blocking.
        pool: Pool that counts the connections.
        make_protocol: Creates the protocol of a connection with its slot.
        refusal: Response to a connection over a limit; not sent under TLS.
        tls: TLS context; None for plain text.
        handshake_timeout_s: Time limit for a TLS handshake.
        refused: Tally of connections over a limit, by address.
        exhausted: Tally of failures to accept for lack of file descriptors or memory.
    """

    def __init__(  # noqa: PLR0913 - supplied by the listener
        self,
        sock: socket.socket,
        pool: Pool,
        make_protocol: Callable[[Slot], asyncio.Protocol],
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
        self._make_protocol = make_protocol
        # During a TLS handshake, plain text would only look like a broken record.
        self._refusal = b"" if tls is not None else refusal
        self._tls = tls
        self._handshake_timeout_s = handshake_timeout_s
        self._refused = refused
        self._exhausted = exhausted
        self._loop = asyncio.get_running_loop()
        self._setup_tasks: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._loop.add_reader(sock.fileno(), self._accept_connections)

    def close(self) -> None:
        """Stop accepting and cancel pending handshakes. May be repeated."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._pause is None:
            self._loop.remove_reader(self._sock.fileno())
        else:
            self._pause.cancel()
        for task in self._setup_tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until no handshake is pending."""
        await asyncio.gather(*self._setup_tasks, return_exceptions=True)

    def _accept_connections(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause_accepting(error)
                    return
                continue  # the client is already gone
            sock.setblocking(False)  # noqa: FBT003 - the signature is the socket's
            self._admit_connection(sock, str(address[0]))

    def _pause_accepting(self, error: OSError) -> None:
        """Pause accepting when descriptors run out: the socket stays readable, so the loop would spin."""
        self._exhausted.count_occurrence(error.strerror or "")
        self._loop.remove_reader(self._sock.fileno())
        self._pause = self._loop.call_later(_PAUSE_S, self._resume_accepting)

    def _resume_accepting(self) -> None:
        self._pause = None
        self._loop.add_reader(self._sock.fileno(), self._accept_connections)

    def _admit_connection(self, sock: socket.socket, address: str) -> None:
        slot = self._pool.admit(address)
        if isinstance(slot, PoolLimit):
            self._refused.count_occurrence(address)
            with contextlib.suppress(OSError):
                if self._refusal:
                    sock.send(self._refusal)
                    sock.shutdown(socket.SHUT_WR)
                    # Read what the client has sent: closing with unread bytes would turn the response into a reset.
                    sock.recv(_LINGER_BYTES)
            sock.close()
            return
        task = self._loop.create_task(self._set_up_connection(sock, slot))
        slot.close = task.cancel  # until the protocol exists and replaces it
        self._setup_tasks.add(task)
        task.add_done_callback(lambda task: self._clean_up_connection(task, sock, slot))

    async def _set_up_connection(self, sock: socket.socket, slot: Slot) -> None:
        timeout_s = None if self._tls is None else self._handshake_timeout_s
        await self._loop.connect_accepted_socket(
            lambda: self._make_protocol(slot), sock, ssl=self._tls, ssl_handshake_timeout=timeout_s
        )

    def _clean_up_connection(self, task: asyncio.Task[None], sock: socket.socket, slot: Slot) -> None:
        """Clean up after a connection that could not be set up."""
        self._setup_tasks.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            return
        slot.release()
        sock.close()
        if not isinstance(error, (OSError, asyncio.CancelledError)):  # TLS failures and timeouts are OSErrors
            self._loop.call_exception_handler({"message": "cannot set up a connection", "exception": error})
