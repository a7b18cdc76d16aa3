"""A complete handler for scheduled events that uses forewarn.client.

    python3 examples/watch.py [http://169.254.169.254] [--once]

It prepares when an announced event affects this VM, approves when prepared, and recovers when no event affects the VM
any more. The VM counts as prepared while the file `drained` exists, so this state survives a restart of the handler.
The handler exits on SIGTERM or, with --once, after the first recovery. Put your own work into prepare and recover.
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
    """Get the VM ready for an interruption: drain, fail over, save. Finish before `event.not_before`.

    Called once for each event, even if the VM is already prepared for another one, and again after a restart.
    """
    DRAINED.touch()
    print(f"prepare: {event.type} of {', '.join(event.resources)}", flush=True)


def recover() -> None:
    """Put the VM back into service: no event affects it any more."""
    DRAINED.unlink()
    print("recover", flush=True)


class Handler:
    """Reacts to each change of the events."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name

    def handle(self, change: Change) -> None:
        """Prepare, approve or recover."""
        if change.event.affects(self._name):  # other events affect other VMs of the scope
            self._meet(change.kind, change.event, is_new=change.previous is None)
        self.recover_if_over(change.document)

    def recover_if_over(self, document: Document) -> None:
        """Recover if the VM is prepared, and no event of the document affects it."""
        if DRAINED.exists() and not document.affecting(self._name):
            recover()

    def _meet(self, kind: ChangeKind, event: Event, *, is_new: bool) -> None:
        match kind:
            case ChangeKind.PREPARE:
                prepare(event)
                if event.resources[0] == self._name:  # one approval is enough: the first VM sends it
                    self._approve(event)
            case ChangeKind.STARTED:
                print("started without notice" if is_new else "started", flush=True)
                if is_new:
                    prepare(event)  # late, but the impact may still be to come
            case ChangeKind.UPDATED:
                print(f"{event.type} is now due at {event.not_before}", flush=True)

    def _approve(self, event: Event) -> None:
        """Let the platform start the event now. Without an approval, the event starts at NotBefore."""
        try:
            self._client.approve(event)
        except EndpointError as error:
            print(f"not approved: {error}", flush=True)
        else:
            print("approved", flush=True)


def first_document(client: Client, stop: threading.Event) -> Document | None:
    """Request the document until an answer arrives; None if stopped. The first request enables events for this VM."""
    while not stop.is_set():
        try:
            return client.fetch()
        except EndpointError as error:
            print(error, flush=True)
            time.sleep(1)
    return None


def own_name(client: Client, stop: threading.Event) -> str:
    """Return this VM's name as in Resources, or the host name if the endpoint does not know the VM's name."""
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
    """Handle events until stopped."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # shows when the endpoint does not answer
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Client(url) as client:
        document, name = first_document(client, stop), own_name(client, stop)
        if document is None:
            return
        print(f"this is {name}", flush=True)
        handler = Handler(client, name)
        handler.recover_if_over(document)  # events may have ended while this program was not running
        for change in client.watch(stop):
            was_prepared = DRAINED.exists()
            handler.handle(change)
            if "--once" in options and was_prepared and not DRAINED.exists():
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
