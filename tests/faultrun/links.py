"""A link between two parts: a proxy on a socket that can be cut, made silent, delayed and healed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

__all__ = ["Link", "State"]

_CHUNK_BYTES = 1 << 16

Target = tuple[str, int] | Path
"""A TCP address, or a unix socket."""


class State(StrEnum):
    """What a link does with what it is given."""

    OPEN = "open"
    RESET = "reset"
    """Connections are reset, and new ones at once."""
    SILENT = "silent"
    """Connections stay, and nothing comes through until it is healed."""
    SLOW = "slow"
    """Everything comes through late."""


class Link:
    """A proxy.

    Args:
        name: For people.
        target: Where connections lead; asked anew for each, for it may move. None: nobody is there.

    Attributes:
        cuts: The ways in which it can be cut.
    """

    cuts: tuple[str, ...] = ("reset", "silent")

    def __init__(self, name: str, target: Callable[[], Target | None]) -> None:
        self.name = name
        self._target = target
        self._state = State.OPEN
        self._delay_s = 0.0
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, path: Path | None = None) -> int:
        """Begin to listen: on that unix socket, or on a port of loopback, which is handed back."""
        if path is not None:
            self._server = await asyncio.start_unix_server(self._accept, path)
            return 0
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def change(self, state: State, delay_s: float = 0.0) -> None:
        """From now on."""
        self._state, self._delay_s = state, delay_s
        if state is State.SILENT:
            self._flows.clear()
        else:
            self._flows.set()
        if state is State.RESET:
            for writer in list(self._writers):
                writer.transport.abort()

    async def cut(self, how: str) -> None:
        """From now on."""
        self.change(State(how))

    async def slow(self, delay_s: float) -> None:
        """Each piece comes through so late from now on."""
        self.change(State.SLOW, delay_s)

    async def heal(self) -> None:
        """As if nothing had been; what was held up comes through."""
        self.change(State.OPEN)

    async def close(self) -> None:
        """End it with all its connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            await self._carry(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # one of the ends is gone, or the run is over
        finally:
            writer.close()
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = self._target()
        if self._state is State.RESET or target is None:
            return
        await self._flows.wait()
        if isinstance(target, Path):
            far_reader, far_writer = await asyncio.open_unix_connection(target)
        else:
            far_reader, far_writer = await asyncio.open_connection(*target)
        self._writers.add(far_writer)
        try:
            ways = {
                asyncio.ensure_future(self._pump(reader, far_writer)),
                asyncio.ensure_future(self._pump(far_reader, writer)),
            }
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            far_writer.close()
            self._writers.discard(far_writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction, until its end; the other one ends with it."""
        with suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                await self._flows.wait()
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._flows.wait()
                writer.write(chunk)
                await writer.drain()
            await self._flows.wait()
