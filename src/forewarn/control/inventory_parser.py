"""Parsing of large inventories in a separate process.

100,000 VMs take ten seconds of YAML parsing and checks. On the event loop that would block every call; on a thread it
would hold the interpreter for long periods. So the text goes to a short-lived process, and the result comes back in
pieces that each take milliseconds to load. Small files are parsed inline.
"""

from __future__ import annotations

import asyncio
import pickle
import sys

from forewarn.clock import uptime_s
from forewarn.core.inventory import Inventory
from forewarn.errors import InvalidRequest, ServerError, StoreUnavailable
from forewarn.inventory_process import LENGTH_BYTES
from forewarn.wire.inventory import parse_inventory

__all__ = ["InventoryParser"]

_INLINE_BYTES_MAX = 16 << 10
_WAITING_MAX = 4
"""Maximum number of large inventories held at a time; each may have `inventory_size_bytes_max`."""

_TIMEOUT_S = 300.0


class InventoryParser:
    """Parses inventories; large ones in a separate process, one at a time.

    Args:
        inline_bytes_max: Maximum size of a text that is parsed inline.
    """

    def __init__(self, inline_bytes_max: int = _INLINE_BYTES_MAX) -> None:
        self._inline_bytes_max = inline_bytes_max
        self._waiting = 0
        self._lock = asyncio.Lock()

    async def parse(self, text: bytes) -> Inventory:
        """Parse an inventory file without blocking the event loop.

        Raises:
            InvalidRequest: The file is malformed or contradicts itself.
            StoreUnavailable: Several large inventories are waiting already.
            ServerError: The parsing process failed.
        """
        if len(text) <= self._inline_bytes_max:
            return parse_inventory(text)
        if self._waiting >= _WAITING_MAX:
            raise StoreUnavailable(f"{self._waiting} large inventories are already waiting: try again in a moment")
        self._waiting += 1
        try:
            async with self._lock:
                return await _parse_in_process(text)
        finally:
            self._waiting -= 1


async def _parse_in_process(text: bytes) -> Inventory:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "forewarn.inventory_process",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None  # noqa: S101 - requested as a pipe
    assert process.stdout is not None  # noqa: S101 - as above
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            # Not drained: the text is in memory anyway, and the process reads all of it before it answers.
            process.stdin.write(text)
            process.stdin.write_eof()
            parts: tuple[list[object], ...] = ([], [], [])
            while True:
                length = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES), "big")
                if not length:
                    break
                piece = await process.stdout.readexactly(length)
                began_s = uptime_s()
                kind, values = pickle.loads(piece)  # noqa: S301 - from our own process
                if kind == "error":
                    message, details = values
                    raise InvalidRequest(message, **details)
                parts[kind].extend(values)
                await asyncio.sleep(uptime_s() - began_s)  # leave the loop to others for as long
    except (asyncio.IncompleteReadError, OSError, TimeoutError) as error:
        raise ServerError("the inventory parser exited early or timed out: see the log of the service") from error
    finally:
        # Also when the caller was cancelled: the process would wait for ever to write what is no longer read.
        if process.returncode is None:
            process.kill()
        await process.wait()
    hosts, scopes, vms = parts
    return Inventory(hosts=tuple(hosts), scopes=tuple(scopes), vms=tuple(vms))  # type: ignore[arg-type] # by their kind
