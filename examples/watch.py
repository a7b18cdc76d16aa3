"""A whole handler for scheduled events, with forewarn.client.

    python3 examples/watch.py [http://169.254.169.254] [--once]

It prepares when an event is announced that hits this VM, approves when prepared, and recovers when the event is gone.
With --once it ends after the first event that it has seen to its end. Put your own work into prepare and recover.
"""

import logging
import socket
import sys

from forewarn.client import DEFAULT_URL, Change, ChangeKind, Client, EndpointError, EndpointRefused, Event


def prepare(event: Event) -> None:
    """Get ready: drain, fail over, save. Here is the time for it, until `event.not_before` at the latest."""
    print(f"prepare: {event.type} of {', '.join(event.resources)}", flush=True)


def recover(event: Event) -> None:
    """Take up work again. May be called for what was never prepared, and after a restart of this program not at all."""
    print(f"recover: {event.type} is over", flush=True)


def own_name(client: Client) -> str:
    """What this VM is called in Resources; the host name where the endpoint does not say."""
    try:
        return client.name()
    except EndpointError:
        return socket.gethostname()


def approve(client: Client, event: Event) -> None:
    """Tell the platform that it need not wait any longer."""
    try:
        client.approve(event)
    except EndpointRefused as error:
        print(f"not approved: {error}", flush=True)  # it is gone already, or will start at its time
    else:
        print("approved", flush=True)


def handle(client: Client, name: str, change: Change) -> None:
    """Do what one change asks for."""
    event = change.event
    if not event.affects(name):
        return  # the event is of another VM in our scope
    match change.kind:
        case ChangeKind.PREPARE:
            prepare(event)
            if event.resources[0] == name:  # one approval counts for all, so the first of them gives it
                approve(client, event)
        case ChangeKind.STARTED:
            if change.previous is None:
                print(f"{event.type} without notice", flush=True)
            print("started", flush=True)
        case ChangeKind.RECOVERED | ChangeKind.CANCELED:
            recover(event)
        case ChangeKind.UPDATED:
            print(f"{event.type} is now due at {event.not_before}", flush=True)


def main(url: str = DEFAULT_URL, *options: str) -> None:
    """Follow the events until interrupted."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # tells when the endpoint is away
    with Client(url) as client:
        client.fetch()  # the first question enables the service, and tells at once if the endpoint is the wrong one
        name = own_name(client)
        print(f"this is {name}", flush=True)
        for change in client.watch():
            handle(client, name, change)
            if "--once" in options and change.kind in {ChangeKind.RECOVERED, ChangeKind.CANCELED}:
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
