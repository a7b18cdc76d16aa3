"""A whole handler for scheduled events with forewarn.client, in a program with asyncio.

    python3 examples/watch_async.py [http://169.254.169.254]

It does what watch.py does: it prepares when an event is announced that hits this VM, approves when prepared, and takes
up work again when no event that hits this VM is left. The VM is prepared while the file `drained` exists, so a restart
in between forgets nothing. Put your own work into prepare and recover, and run `follow` as a task beside it.
"""

import asyncio
import logging
import socket
import sys
from pathlib import Path

from forewarn.client import DEFAULT_URL, AsyncClient, Change, ChangeKind, Document, EndpointError, Event

DRAINED = Path("drained")


async def prepare(event: Event) -> None:
    """Get ready: drain, fail over, save. Called once for each event, and again after a restart."""
    await asyncio.to_thread(DRAINED.touch)  # what blocks must not stop the loop
    print(f"prepare: {event.type} of {', '.join(event.resources)}", flush=True)


async def recover() -> None:
    """Take up work again: no event that hits this VM is left."""
    await asyncio.to_thread(DRAINED.unlink)
    print("recover", flush=True)


def is_over(document: Document, name: str) -> bool:
    """Whether the VM is prepared, and no event of the document hits it."""
    return DRAINED.exists() and not document.affecting(name)


async def first_document(client: AsyncClient) -> Document:
    """Ask until there is an answer. The first question enables the service for this VM."""
    while True:
        try:
            return await client.fetch()
        except EndpointError as error:
            print(error, flush=True)
            await asyncio.sleep(1)


async def own_name(client: AsyncClient) -> str:
    """What this VM is called in Resources; the host name where the endpoint does not know."""
    while True:
        try:
            return await client.fetch_name()
        except EndpointError as error:
            if error.details.get("status") in {400, 404}:
                return socket.gethostname()
            print(error, flush=True)
            await asyncio.sleep(1)


async def handle(client: AsyncClient, name: str, change: Change) -> None:
    """Prepare and approve where the event hits this VM; others are of other VMs in its scope."""
    event = change.event
    if not event.affects(name):
        return
    if change.kind is ChangeKind.PREPARE or (change.kind is ChangeKind.STARTED and change.previous is None):
        await prepare(event)
    if change.kind is ChangeKind.PREPARE and event.resources[0] == name:  # one approval counts for all of them
        try:
            await client.approve(event)
        except EndpointError as error:
            print(f"not approved: {error}", flush=True)  # then the event starts at its time


async def follow(url: str = DEFAULT_URL) -> None:
    """Follow the events until cancelled."""
    async with AsyncClient(url) as client:
        document, name = await first_document(client), await own_name(client)
        if is_over(document, name):  # what ended while this program did not run
            await recover()
        async for change in client.watch():
            await handle(client, name, change)
            if is_over(change.document, name):
                await recover()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # tells when the endpoint is away
    asyncio.run(follow(*sys.argv[1:]))
