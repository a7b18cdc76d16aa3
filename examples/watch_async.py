"""A complete handler for scheduled events that uses forewarn.client, for asyncio programs.

    python3 examples/watch_async.py [http://169.254.169.254]

Like watch.py, it prepares when an announced event affects this VM, approves when prepared, and recovers when no event
affects the VM any more. The VM counts as prepared while the file `drained` exists, so this state survives a restart of
the handler. Put your own work into prepare and recover, and run `follow` as a task of your program.
"""

import asyncio
import logging
import socket
import sys
from pathlib import Path

from forewarn.client import DEFAULT_URL, AsyncClient, Change, ChangeKind, Document, EndpointError, Event

DRAINED = Path("drained")


async def prepare(event: Event) -> None:
    """Get the VM ready for an interruption: drain, fail over, save. Called once for each event, and after a restart."""
    await asyncio.to_thread(DRAINED.touch)  # a blocking call must not stop the event loop
    print(f"prepare: {event.type} of {', '.join(event.resources)}", flush=True)


async def recover() -> None:
    """Put the VM back into service: no event affects it any more."""
    await asyncio.to_thread(DRAINED.unlink)
    print("recover", flush=True)


def is_over(document: Document, name: str) -> bool:
    """Whether the VM is prepared, and no event of the document affects it."""
    return DRAINED.exists() and not document.affecting(name)


async def first_document(client: AsyncClient) -> Document:
    """Request the document until an answer arrives. The first request enables events for this VM."""
    while True:
        try:
            return await client.fetch()
        except EndpointError as error:
            print(error, flush=True)
            await asyncio.sleep(1)


async def own_name(client: AsyncClient) -> str:
    """Return this VM's name as in Resources, or the host name if the endpoint does not know the VM's name."""
    while True:
        try:
            return await client.fetch_name()
        except EndpointError as error:
            if error.details.get("status") in {400, 404}:
                return socket.gethostname()
            print(error, flush=True)
            await asyncio.sleep(1)


async def handle(client: AsyncClient, name: str, change: Change) -> None:
    """Prepare and approve if the event affects this VM; other events affect other VMs of the scope."""
    event = change.event
    if not event.affects(name):
        return
    if change.kind is ChangeKind.PREPARE or (change.kind is ChangeKind.STARTED and change.previous is None):
        await prepare(event)
    if change.kind is ChangeKind.PREPARE and event.resources[0] == name:  # one approval is enough
        try:
            await client.approve(event)
        except EndpointError as error:
            print(f"not approved: {error}", flush=True)  # the event then starts at NotBefore


async def follow(url: str = DEFAULT_URL) -> None:
    """Handle events until cancelled."""
    async with AsyncClient(url) as client:
        document, name = await first_document(client), await own_name(client)
        if is_over(document, name):  # events may have ended while this program was not running
            await recover()
        async for change in client.watch():
            await handle(client, name, change)
            if is_over(change.document, name):
                await recover()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # shows when the endpoint does not answer
    asyncio.run(follow(*sys.argv[1:]))
