"""Child process that attacks the service from loopback, for a limited time.

Arguments: the name of an attack, and its parameters as JSON; ``seconds`` is its duration. It prints a line when the
attack begins, and at the end a line with the counted results.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import sys
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

__all__ = ["ATTACKS"]

Work = dict[str, Any]
_RETRY_S = 0.2
_CHUNK = b"x-flood: " + b"y" * 8000 + b"\r\n"


class Attackers:
    """Many connections, and counts of their results.

    Args:
        work: Parameters of the attack: ``port``, ``seconds`` and more.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self.count: Counter[str] = Counter()
        self.ends_s = time.monotonic() + work["seconds"]

    @property
    def left_s(self) -> float:
        """Seconds until the end."""
        return float(self.ends_s - time.monotonic())

    async def all(self, attacker: Callable[[], Awaitable[None]], number: int) -> None:
        """Run `number` attackers until the end; each one reconnects after an error."""

        async def go_on() -> None:
            while self.left_s > 0:
                try:
                    async with asyncio.timeout(self.left_s):
                        await attacker()
                except (OSError, EOFError, asyncio.IncompleteReadError) as error:
                    if self.left_s > 0:
                        self.count[type(error).__name__] += 1
                        await asyncio.sleep(_RETRY_S)

        await asyncio.gather(*(go_on() for _ in range(number)))

    def request(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
        """Encode a request of the attacker."""
        fields = {"Host": f"127.0.0.1:{self.work['port']}"} | self.work.get("headers", {}) | (headers or {})
        if body or method == "POST":
            fields["Content-Length"] = str(len(body))
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open one connection from the attacker's address."""
        address = self.work.get("address", "127.0.0.1")
        return await asyncio.open_connection("127.0.0.1", self.work["port"], local_addr=(address, 0))

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> None:
        """Send one request again and again over one connection."""
        reader, writer = await self.connect()
        try:
            while self.left_s > 0:
                writer.write(self.request(method, path, body, headers))
                await writer.drain()
                status, closes, wait_s = await _answer(reader)
                self.count[str(status)] += 1
                if wait_s:
                    await asyncio.sleep(min(wait_s, max(self.left_s, 0)))
                if closes:
                    return
        finally:
            await _close(writer)

    async def follow(self, path: str) -> None:
        """Open one stream, and read what it sends."""
        reader, writer = await self.connect()
        try:
            writer.write(self.request("GET", path))
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head.split(b" ", 2)[1])
            self.count[str(status)] += 1
            if status != 200:  # the stream was refused
                await asyncio.sleep(min(1.0, max(self.left_s, 0)))
                return
            while await reader.read(1 << 16):
                self.count["pieces"] += 1
        finally:
            await _close(writer)


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bool, float]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    if b"content-length" in fields:
        await reader.readexactly(int(fields[b"content-length"]))
    elif b"transfer-encoding" in fields:
        while size := int((await reader.readline()).strip() or b"0", 16):
            await reader.readexactly(size + 2)
        await reader.readline()
    return int(head.split(b" ", 2)[1]), fields.get(b"connection") == b"close", float(fields.get(b"retry-after", b"0"))


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def approve_unknown(crew: Attackers) -> None:
    """One VM approves a thousand ids of no event, over 200 connections."""
    ids = [{"EventId": str(uuid.uuid4()).upper()} for _ in range(1000)]
    body = json.dumps({"StartRequests": ids}).encode()
    path = "/metadata/scheduledevents?api-version=2020-07-01"
    await crew.all(lambda: crew.ask("POST", path, body, Metadata="true"), 200)


async def watch_audit_log(crew: Attackers) -> None:
    """One tenant holds 500 streams of the audit log."""
    await crew.all(lambda: crew.follow("/v1/watch"), 500)


async def watch_pages(crew: Attackers) -> None:
    """One tenant holds 60 different live pages."""
    numbers = iter(range(10**9))
    await crew.all(lambda: crew.follow(f"/live/?q={next(numbers) % 60}"), 60)


async def list_requests(crew: Attackers) -> None:
    """Eight callers list the request journal without a pause."""
    await crew.all(lambda: crew.ask("GET", "/v1/requests?limit=1000"), 8)


async def watch_host(crew: Attackers) -> None:
    """One stolen host token opens 205 watches."""
    await crew.all(lambda: crew.follow(f"/v1/hosts/{crew.work['host']}/watch"), 205)


async def restart_and_cancel(crew: Attackers) -> None:
    """One tenant restarts its VM and cancels the restart, again and again without a pause."""

    async def loop() -> None:
        reader, writer = await crew.connect()
        headers = {"Content-Type": "application/json"}
        try:
            while crew.left_s > 0:
                path = f"/v1/vms/{crew.work['vm']}/restart"
                made = await _json(reader, writer, crew.request("POST", path, b"{}", headers))
                crew.count[str(made[0])] += 1
                if made[0] >= 400:  # refused
                    await asyncio.sleep(_RETRY_S)
                    continue
                path = f"/v1/maintenance/{made[1]['items'][0]['id']}/cancel"
                crew.count[str((await _json(reader, writer, crew.request("POST", path, b"{}", headers)))[0])] += 1
        finally:
            await _close(writer)

    await crew.all(loop, 4)


async def _json(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> tuple[int, Any]:
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    body = await reader.readexactly(int(fields[b"content-length"]))
    return int(head.split(b" ", 2)[1]), json.loads(body)


async def apply_inventory(crew: Attackers) -> None:
    """An operator applies a large inventory again and again: refused, or accepted with one change each time."""
    content = Path(crew.work["text"]).read_bytes()  # noqa: ASYNC240 - once, before anything is measured
    reader, writer = await crew.connect()
    try:
        number = 0
        while crew.left_s > 0:
            number += 1
            changed = content.replace(b"@@", str(number).encode())
            path = crew.work["path"]
            writer.write(crew.request("PUT", path, changed))
            await writer.drain()
            status, closes, _ = await _answer(reader)
            crew.count[str(status)] += 1
            if closes:
                return
    finally:
        await _close(writer)


async def stay_idle(crew: Attackers) -> None:
    """1,500 unknown clients connect to the control address, and send nothing."""

    async def idle() -> None:
        reader, writer = await crew.connect()
        crew.count["connected"] += 1
        try:
            await reader.read(1 << 16)
            crew.count["closed"] += 1
            await asyncio.sleep(_RETRY_S)
        finally:
            await _close(writer)

    await crew.all(idle, 1500)


async def send_headers(crew: Attackers) -> None:
    """200 unknown clients send endless headers, 1.5 GB in total."""

    async def flood() -> None:
        _, writer = await crew.connect()
        try:
            writer.write(b"GET /v1/vms HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            while crew.left_s > 0 and crew.count["bytes"] < crew.work["bytes"]:
                writer.write(_CHUNK)
                await writer.drain()
                crew.count["bytes"] += len(_CHUNK)
            await asyncio.sleep(max(crew.left_s, 0))
        finally:
            await _close(writer)

    await crew.all(flood, 200)


async def guess_tokens(crew: Attackers) -> None:
    """100 unknown clients guess tokens over new connections, and ignore the requested waiting time."""

    async def guess() -> None:
        reader, writer = await crew.connect()
        try:
            writer.write(crew.request("GET", "/v1/vms", headers={"Authorization": f"Bearer {uuid.uuid4().hex}"}))
            status, _, _ = await _answer(reader)
            crew.count[str(status)] += 1
        finally:
            await _close(writer)

    await crew.all(guess, 100)


async def trickle(crew: Attackers) -> None:
    """200 unknown clients send one byte per second."""

    async def drip() -> None:
        reader, writer = await crew.connect()
        try:
            for byte in b"GET /v1/vms HTTP/1.1\r\n" + b"x" * 10_000:
                writer.write(bytes([byte]))
                await writer.drain()
                try:
                    async with asyncio.timeout(1.0):
                        if not await reader.read(1 << 12):
                            crew.count["ended"] += 1
                            return
                except TimeoutError:
                    continue
        finally:
            await _close(writer)

    await crew.all(drip, 200)


ATTACKS: dict[str, Callable[[Attackers], Awaitable[None]]] = {
    "approve": approve_unknown,
    "streams": watch_audit_log,
    "pages": watch_pages,
    "requests": list_requests,
    "watches": watch_host,
    "restarts": restart_and_cancel,
    "inventory": apply_inventory,
    "idle": stay_idle,
    "guess": guess_tokens,
    "headers": send_headers,
    "trickle": trickle,
}
"""Attacks by name."""


async def main() -> None:
    """Run the attack, and print its results."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 20_000)), hard))
    crew = Attackers(json.loads(sys.argv[2]))
    sys.stdout.write("{}\n")
    sys.stdout.flush()
    with contextlib.suppress(TimeoutError):
        await ATTACKS[sys.argv[1]](crew)
    sys.stdout.write(json.dumps(dict(crew.count)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
