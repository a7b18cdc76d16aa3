"""A whole handler for scheduled events, with forewarn.client.

    python3 examples/watch.py [http://169.254.169.254] [--once]

It prepares when an event is announced that hits this VM, approves when prepared, and takes up work again when no event
that hits this VM is left. The VM is prepared while the file `drained` exists, so a restart in between forgets nothing.
It ends on SIGTERM, or with --once as soon as work was taken up again. Put your own work into prepare and recover.
"""

import logging
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from forewarn.client import DEFAULT_URL, Change, ChangeKind, Client, Document, EndpointError, Event

DRAINED = Path("drained")


def prepare(event: Event) -> None:
    """Get ready: drain, fail over, save. Here is the time for it, until `event.not_before` at the latest.

    Called once for each event, also while the VM is prepared for another one, and again after a restart.
    """
    DRAINED.touch()
    print(f"prepare: {event.type} of {', '.join(event.resources)}", flush=True)


def recover() -> None:
    """Take up work again: no event that hits this VM is left."""
    DRAINED.unlink()
    print("recover", flush=True)


class Handler:
    """Does what each change asks for."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name

    def handle(self, change: Change) -> None:
        """Prepare, approve, or take up work again."""
        if change.event.affects(self._name):  # others are of other VMs in our scope
            self._meet(change.kind, change.event, is_new=change.previous is None)
        self.recover_if_over(change.document)

    def recover_if_over(self, document: Document) -> None:
        """Take up work again where no event of the document hits this VM."""
        if DRAINED.exists() and not document.affecting(self._name):
            recover()

    def _meet(self, kind: ChangeKind, event: Event, *, is_new: bool) -> None:
        match kind:
            case ChangeKind.PREPARE:
                prepare(event)
                if event.resources[0] == self._name:  # one approval counts for all, so the first of them gives it
                    self._approve(event)
            case ChangeKind.STARTED:
                print("started without notice" if is_new else "started", flush=True)
                if is_new:
                    prepare(event)  # late, but the impact may still be to come
            case ChangeKind.UPDATED:
                print(f"{event.type} is now due at {event.not_before}", flush=True)

    def _approve(self, event: Event) -> None:
        """Tell the platform that it need not wait any longer; otherwise the event starts at its time."""
        try:
            self._client.approve(event)
        except EndpointError as error:
            print(f"not approved: {error}", flush=True)
        else:
            print("approved", flush=True)


def first_document(client: Client, stop: threading.Event) -> Document | None:
    """Ask until there is an answer; None when stopped. The first question enables the service for this VM."""
    while not stop.is_set():
        try:
            return client.fetch()
        except EndpointError as error:
            print(error, flush=True)
            time.sleep(1)
    return None


def own_name(client: Client, stop: threading.Event) -> str:
    """What this VM is called in Resources; the host name where the endpoint does not know."""
    while not stop.is_set():
        try:
            return client.fetch_name()
        except EndpointError as error:
            if error.details.get("status") in {400, 404}:
                break
            print(error, flush=True)
            time.sleep(1)
    return socket.gethostname()


def main(url: str = DEFAULT_URL, *options: str) -> None:
    """Follow the events until stopped."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # tells when the endpoint is away
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Client(url) as client:
        document, name = first_document(client, stop), own_name(client, stop)
        if document is None:
            return
        print(f"this is {name}", flush=True)
        handler = Handler(client, name)
        handler.recover_if_over(document)  # what ended while this program did not run
        for change in client.watch(stop):
            was_prepared = DRAINED.exists()
            handler.handle(change)
            if "--once" in options and was_prepared and not DRAINED.exists():
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
