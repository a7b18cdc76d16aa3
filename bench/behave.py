"""Child process that acts as many well-behaved VMs, each with its own address.

Arguments: the action, and JSON with ``port``, ``first`` and ``count`` of the VMs, and ``at_once``.

- ``poll``: each VM requests its document once, over a new connection, ``at_once`` of them at a time;
- ``approve``: each VM requests its document; when all have theirs, all approve their events at once.

It prints one line: how many answers had which status, and the total time.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections import Counter
from typing import Any

from bench.document import PATH
from bench.fleet import address_of

__all__ = ["ACTS"]

_TIMEOUT_S = 120.0


async def _ask(port: int, vm: int, method: str, body: bytes = b"") -> tuple[str, bytes]:
    """Send one request over a new connection; return the status or the name of the error, and the body."""
    head = f"{method} {PATH} HTTP/1.1\r\nHost: 169.254.169.254\r\nMetadata: true\r\nConnection: close\r\n"
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address_of(vm), 0))
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.read(-1)
            writer.close()
    except (OSError, TimeoutError) as error:
        return type(error).__name__, b""
    status, _, rest = answer.partition(b"\r\n")
    return status.split(b" ")[1].decode() if status else "nothing", rest.partition(b"\r\n\r\n")[2]


async def poll(port: int, first: int, count: int, at_once: int) -> Counter[str]:
    """Let each VM request its document once."""
    statuses: Counter[str] = Counter()
    waiting = iter(range(first, first + count))

    async def go_on() -> None:
        for vm in waiting:
            statuses[(await _ask(port, vm, "GET"))[0]] += 1

    await asyncio.gather(*(go_on() for _ in range(at_once)))
    return statuses


async def approve(port: int, first: int, count: int, at_once: int) -> Counter[str]:  # noqa: ARG001 - all approve at once
    """Let each VM approve its event, all of them at once."""
    documents = await asyncio.gather(*(_ask(port, vm, "GET") for vm in range(first, first + count)))
    ids = [json.loads(body)["Events"][0]["EventId"] for _, body in documents]
    bodies = [json.dumps({"StartRequests": [{"EventId": each}]}).encode() for each in ids]
    answers = await asyncio.gather(*(_ask(port, vm, "POST", body) for vm, body in enumerate(bodies, first)))
    return Counter(status for status, _ in answers)


ACTS = {"poll": poll, "approve": approve}
"""Actions by name."""


async def main() -> None:
    """Run the action, and print its result."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 20_000)), hard))
    work: dict[str, Any] = json.loads(sys.argv[2])
    began_s = time.monotonic()
    statuses = await ACTS[sys.argv[1]](**work)
    sys.stdout.write(json.dumps({"statuses": statuses, "took_s": time.monotonic() - began_s}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
