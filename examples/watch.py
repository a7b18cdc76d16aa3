"""A whole handler for scheduled events, with forewarn.client.

    python3 examples/watch.py [http://169.254.169.254] [--once]

It prepares when an event is announced that hits this VM, approves when prepared, and takes up work again when no event
that hits this VM is left. It ends on SIGTERM, or with --once as soon as work was taken up again. Put your own work into
prepare and recover.
"""

import logging
import signal
import socket
import sys
import threading
import time

from forewarn.client import DEFAULT_URL, Change, ChangeKind, Client, EndpointError, Event


def prepare(event: Event) -> None:
    """Get ready: drain, fail over, save. Here is the time for it, until `event.not_before` at the latest.

    Called once for each event, also while the VM is prepared for another one.
    """
    print(f"prepare: {event.type} of {', '.join(event.resources)}", flush=True)


def recover(event: Event) -> None:
    """Take up work again: this event was the last. Not called for what ended while this program did not run."""
    print(f"recover: {event.type} is over", flush=True)


class Handler:
    """Does what each change asks for.

    Attributes:
        is_recovered: Whether no event has hit this VM since work was last taken up.
    """

    def __init__(self, client: Client, name: str) -> None:
        self.is_recovered = True
        self._client = client
        self._name = name

    def handle(self, change: Change) -> None:
        """Prepare, approve, or take up work again."""
        event = change.event
        if event.affects(self._name):  # others are of other VMs in our scope
            self.is_recovered = False
            self._meet(change.kind, event, is_new=change.previous is None)
        if not self.is_recovered and not change.document.affecting(self._name):
            recover(event)
            self.is_recovered = True

    def _meet(self, kind: ChangeKind, event: Event, *, is_new: bool) -> None:
        match kind:
            case ChangeKind.PREPARE:
                prepare(event)
                if event.resources[0] == self._name:  # one approval counts for all, so the first of them gives it
                    self._approve(event)
            case ChangeKind.STARTED:
                print("started without notice" if is_new else "started", flush=True)
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


def wait_for_endpoint(client: Client, stop: threading.Event) -> None:
    """Ask until there is an answer. The first question enables the service for this VM."""
    while not stop.is_set():
        try:
            client.fetch()
        except EndpointError as error:
            print(error, flush=True)
            time.sleep(1)
        else:
            return


def own_name(client: Client, stop: threading.Event) -> str:
    """What this VM is called in Resources; the host name where the endpoint does not know."""
    while not stop.is_set():
        try:
            return client.name()
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
        wait_for_endpoint(client, stop)
        name = own_name(client, stop)
        print(f"this is {name}", flush=True)
        handler = Handler(client, name)
        for change in client.watch(stop):
            was_recovered = handler.is_recovered
            handler.handle(change)
            if "--once" in options and handler.is_recovered and not was_recovered:
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
