"""Sending the whole inventory: read from the database at once, sent at the pace of each client.

A client may take minutes for what the database reads in two seconds, or stop reading. So a snapshot is read in one
transaction, without waiting for the client, into a compressed temporary file, and sent from there while it grows. A
slow client therefore holds a file, but neither a transaction nor memory, and has a time limit.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog
from starlette.requests import Request
from starlette.responses import Response

from forewarn.core.model import Host, Scope, VirtualMachine
from forewarn.errors import ForewarnError, LimitExceeded, ServerError, StoreUnavailable
from forewarn.store.contract import Reader
from forewarn.wire.inventory_lines import encode_end_error, encode_inventory_lines

if TYPE_CHECKING:
    from starlette.types import Receive, Send
    from starlette.types import Scope as AsgiScope

__all__ = ["InventorySnapshots", "SnapshotResponse"]

_log = structlog.get_logger("forewarn.control")

_GZIP = 31
"""zlib's number for the gzip format."""

_LEVEL = 1
"""The fastest: names and addresses that follow one another still shrink to a tenth or less."""

_SENT_BYTES = 64 << 10
_RETRY_S = 5

ReadLong = Callable[[Callable[[Reader], None]], Awaitable[None]]


class InventorySnapshots:
    """Snapshots of the inventory that are being sent, and their limits.

    Args:
        snapshots_max: Maximum number at a time.
        per_caller_max: Maximum number at a time for one caller.
        send_timeout_s: Time limit for a client to take a snapshot.
    """

    def __init__(self, *, snapshots_max: int = 16, per_caller_max: int = 4, send_timeout_s: float = 600.0) -> None:
        self.send_timeout_s = send_timeout_s
        self._snapshots_max = snapshots_max
        self._per_caller_max = per_caller_max
        self._counts: Counter[str] = Counter()
        self._turns: dict[str, asyncio.Lock] = {}

    @property
    def count(self) -> int:
        """Number of snapshots that are being sent."""
        return self._counts.total()

    @asynccontextmanager
    async def open(self, caller: str, read_long: ReadLong) -> AsyncIterator[_Snapshot]:
        """Begin to read a snapshot.

        Raises:
            LimitExceeded: Too many are being sent, to all callers or to this one.
            StoreUnavailable: There is no room for the temporary file.
        """
        for count, limit, words in (
            (self.count, self._snapshots_max, "are being sent"),
            (self._counts[caller], self._per_caller_max, f"are being sent to {caller}"),
        ):
            if count >= limit:
                raise LimitExceeded(f"{count} whole inventories {words}: try again later", retry_after_s=_RETRY_S)
        self._counts[caller] += 1
        turn = self._turns.setdefault(caller, asyncio.Lock())

        async def read() -> None:
            # One at a time for each caller: otherwise the reads of others would wait behind all of this caller's.
            async with turn:
                await read_long(snapshot.fill)

        try:
            snapshot = _Snapshot()
            reading = asyncio.create_task(read())
            reading.add_done_callback(snapshot.end)
            try:
                yield snapshot
            finally:
                reading.cancel()
                snapshot.close()
        finally:
            self._counts[caller] -= 1
            if not self._counts[caller]:
                del self._counts[caller], self._turns[caller]


@dataclass(slots=True, eq=False)
class _Snapshot:
    """The JSON of the inventory at one moment, compressed, in a file that one thread writes while it is sent."""

    _file: Any = field(default_factory=lambda: _open_file())  # noqa: PLW0108 - defined below
    _compressor: Any = field(default_factory=lambda: zlib.compressobj(_LEVEL, wbits=_GZIP))
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _grown: asyncio.Event = field(default_factory=asyncio.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _size_bytes: int = 0
    _is_complete: bool = False
    _error: BaseException | None = None

    # On the reader's thread

    def fill(self, reader: Reader) -> None:
        """Read and write everything, in one view of the database; end early if the snapshot is no longer wanted."""
        lists = [reader.iter_by_name(kind) for kind in (Host, Scope, VirtualMachine)]
        for lines in encode_inventory_lines(*lists):  # type: ignore[arg-type] # the kinds as above
            if not self._append(lines):
                return
            self._loop.call_soon_threadsafe(self._grown.set)

    def _append(self, lines: bytes, how: int = zlib.Z_SYNC_FLUSH) -> bool:
        """Write lines; return False if the file is closed."""
        content = self._compressor.compress(lines) + self._compressor.flush(how)
        # Without the lock, a file that is closed meanwhile could be written where another one was opened.
        with self._lock:
            if self._file.closed:
                return False
            try:
                while content:
                    written_bytes = self._file.write(content)
                    self._size_bytes += written_bytes
                    content = content[written_bytes:]
            except OSError as error:
                raise _wrap_file_error(error) from error
        return True

    # On the loop

    def end(self, reading: asyncio.Task[None]) -> None:
        """Complete the file once everything is read, or end it with the error."""
        if reading.cancelled() or self._file.closed:
            return
        self._error = reading.exception()
        try:
            if self._error is None:
                self._append(b"", zlib.Z_FINISH)
            elif self._size_bytes:
                self._append(encode_end_error(_describe(self._error)), zlib.Z_FINISH)
        except StoreUnavailable as error:
            self._error = error
        self._is_complete = True
        self._grown.set()

    async def wait_until_begun(self) -> None:
        """Wait for the first lines.

        Raises:
            ForewarnError: The inventory cannot be read.
        """
        while not self._size_bytes:
            if self._error is not None:
                raise self._error
            await self._wait_for_more()

    async def iterate_pieces(self, *, is_compressed: bool) -> AsyncIterator[bytes]:
        """Yield the file's content as it is written."""
        decompressor = None if is_compressed else zlib.decompressobj(_GZIP)
        position = 0
        while True:
            is_complete = self._is_complete
            piece = await asyncio.to_thread(self._read, position)
            position += len(piece)
            if piece:
                for part in [piece] if decompressor is None else _decompress(decompressor, piece):
                    yield part
            elif is_complete:
                return
            else:
                await self._wait_for_more()

    def close(self) -> None:
        """Delete the file; a thread that still writes it stops at its next piece."""
        with self._lock:
            self._file.close()

    async def _wait_for_more(self) -> None:
        await self._grown.wait()
        self._grown.clear()

    def _read(self, position: int) -> bytes:
        with self._lock:
            return b"" if self._file.closed else os.pread(self._file.fileno(), _SENT_BYTES, position)


class SnapshotResponse(Response):
    """Response with the whole inventory.

    Args:
        snapshots: Snapshots being sent, with their limits.
        caller: Name of the caller; its number of snapshots is limited.
        read_long: Runner of a read that takes seconds.
    """

    media_type = "application/json"

    def __init__(self, snapshots: InventorySnapshots, caller: str, read_long: ReadLong) -> None:
        super().__init__(headers={"cache-control": "no-store", "vary": "accept-encoding"})
        del self.headers["content-length"]
        self._snapshots = snapshots
        self._caller = caller
        self._read_long = read_long

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Send the response.

        Raises:
            ForewarnError: A limit is reached, or the inventory cannot be read; nothing was sent.
        """
        request = Request(scope, receive)
        is_compressed = "gzip" in request.headers.get("accept-encoding", "")
        if is_compressed:
            self.headers["content-encoding"] = "gzip"
        async with self._snapshots.open(self._caller, self._read_long) as snapshot:
            await snapshot.wait_until_begun()
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                async with asyncio.timeout(self._snapshots.send_timeout_s):
                    async for piece in snapshot.iterate_pieces(is_compressed=is_compressed):
                        if await request.is_disconnected():
                            return
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
            except TimeoutError:
                _log.warning("an inventory was cut off: the client did not take it in time", caller=self._caller)
                # Not closed: that would wait for the client to take the rest. Without the end of the response, no
                # client takes it for complete.
                request.state.connection.transport.abort()


def _decompress(decompressor: Any, piece: bytes) -> Iterator[bytes]:  # noqa: ANN401 - zlib has no public name for it
    """Yield what a piece decompresses to, in parts: it may be a thousand times as long."""
    text = decompressor.decompress(piece, _SENT_BYTES)
    while text:
        yield text
        text = decompressor.decompress(decompressor.unconsumed_tail, _SENT_BYTES)


def _describe(error: BaseException) -> ForewarnError:
    if isinstance(error, ForewarnError):
        return error
    _log.error("unexpected error while the inventory was read", exc_info=error)
    return ServerError("unexpected error: see the log of the service")


def _open_file() -> Any:  # noqa: ANN401 - a raw file
    try:
        return tempfile.TemporaryFile(buffering=0)  # closed by the snapshot
    except OSError as error:
        raise _wrap_file_error(error) from error


def _wrap_file_error(error: OSError) -> StoreUnavailable:
    return StoreUnavailable(f"cannot write a temporary file with the inventory: {error.strerror}")
