"""A service of the operator's, as the webhook actuator meets it: a real HTTP server that answers as a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = ["DRIP", "HANG", "Asked", "OperatorService", "answer", "operator_service"]

HANG = b""
"""An answer that never comes."""

DRIP = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
"""An answer that comes a blank at a time."""


@dataclass(frozen=True)
class Asked:
    """A request that came; header names are in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


def answer(status: int, body: object = None, *, headers: str = "") -> bytes:
    """An HTTP answer; `body` becomes JSON unless it is bytes."""
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} Whatever\r\nContent-Length: {len(content)}\r\n{headers}\r\n"
    return head.encode() + content


@dataclass
class OperatorService:
    """Keeps what it was told under each id, as a careful service does.

    Attributes:
        asked: Every request that came.
        begun: How often work was begun under each id.
        state: What it says of all of it.
        script: Answers instead, when it is there; None as its answer: as usual.
    """

    asked: list[Asked] = field(default_factory=list)
    begun: dict[str, int] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=lambda: {"state": "running", "check_after_s": 0.01})
    script: Callable[[Asked], bytes | None] | None = None
    url: str = ""

    def reply(self, asked: Asked) -> bytes:
        """What is sent."""
        self.asked.append(asked)
        scripted = self.script(asked) if self.script is not None else None
        if scripted is not None:
            return scripted
        if asked.method == "POST":
            key = asked.headers["idempotency-key"]
            self.begun.setdefault(key, 0)
            self.begun[key] += self.begun[key] == 0
            return answer(201, self.state)
        key = asked.target.rpartition("/")[2]
        if key not in self.begun:
            return answer(404, {"error": "no such maintenance"})
        return answer(200, self.state) if asked.method == "GET" else answer(204)


@asynccontextmanager
async def operator_service() -> AsyncIterator[OperatorService]:
    """One that answers on loopback until the block ends."""
    service = OperatorService()
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        try:
            # asyncio looks at the outcome of this task, and would complain of one that was cancelled.
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                while True:
                    reply = service.reply(await _read(reader))
                    if reply == HANG:
                        await asyncio.get_running_loop().create_future()
                    writer.write(reply)
                    await writer.drain()
                    while reply == DRIP:
                        writer.write(b" ")
                        await asyncio.sleep(0.01)
        finally:
            writer.transport.abort()
            serving.discard(asyncio.current_task())

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    service.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/maintenances"
    try:
        yield service
    finally:
        server.close()
        tasks = [task for task in serving if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close one turn later


async def _read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Asked(method, target, headers, await reader.readexactly(int(headers.get("content-length", "0"))))
