"""A handler for scheduled events that a timer starts: it looks once, acts, and ends.

    python3 examples/once.py [http://169.254.169.254] [--state /var/lib/once/prepared.json]

It asks for a minute if need be, prepares for each new event that hits this VM, approves when prepared, and takes up
work again when none is left. What it has prepared for is kept in a file, since the next run knows nothing else. Exit
status 75 (try again): the endpoint did not answer. Nothing was done then, for no answer does not mean no events.

Start it every 10 s, and never twice at the same time. A systemd timer does both:

    # /etc/systemd/system/once.service             # /etc/systemd/system/once.timer
    [Service]                                      [Timer]
    Type=oneshot                                   OnBootSec=10s
    StateDirectory=once                            OnUnitInactiveSec=10s
    ExecStart=/opt/once/bin/python /opt/once.py    AccuracySec=1s
                                                   [Install]
                                                   WantedBy=timers.target

cron starts it each minute at most, which is late for a Spot VM: a Preempt is announced 30 s before. Run it under
`flock -n` there. Put your own work into prepare and recover.
"""

import argparse
import json
import socket
import sys
from pathlib import Path

from forewarn.client import DEFAULT_URL, Client, EndpointError, EndpointRefused, Event, Pace

STATE = Path("/var/lib/once/prepared.json")
TRY_AGAIN = 75
PACE = Pace(retry_for_s=50, first_timeout_s=130)


def prepare(event: Event) -> None:
    """Get ready: drain, fail over, save. May be called again for an event if it was interrupted."""
    print(f"prepare: {event.type} of {', '.join(event.resources)}")


def recover() -> None:
    """Take up work again: no event that hits this VM is left."""
    print("recover")


def load(state: Path) -> set[str]:
    """The ids of the events that were prepared for, by this run or those before."""
    return set(json.loads(state.read_text())) if state.exists() else set()


def save(state: Path, prepared: set[str]) -> None:
    """Keep them. The file is replaced as a whole, so that no run finds half of it."""
    new = state.with_suffix(".new")
    new.write_text(json.dumps(sorted(prepared)))
    new.replace(state)


def own_name(client: Client) -> str:
    """What this VM is called in Resources; the host name where the endpoint does not know."""
    try:
        return client.fetch_name()
    except EndpointRefused as error:
        if error.details["status"] not in {400, 404}:
            raise
        return socket.gethostname()


def run(client: Client, state: Path) -> None:
    """Look once, and do what is to be done."""
    document = client.fetch()
    name = own_name(client)
    prepared = load(state)
    hits = document.affecting(name)
    for event in hits:
        if event.id not in prepared:
            prepare(event)
            save(state, prepared := prepared | {event.id})
    # Approved each time, for an approval may be repeated, and one before may have been lost. One counts for all VMs of
    # an event, so the first of them gives it.
    ready = [event for event in hits if not event.is_started and event.resources[0] == name]
    if ready:
        client.approve(ready)
    if prepared and not hits:
        recover()
        save(state, set())


def main() -> int:
    """Run once; the exit status."""
    parser = argparse.ArgumentParser(description="Look for scheduled events once, and act.")
    parser.add_argument("url", nargs="?", default=DEFAULT_URL)
    parser.add_argument("--state", type=Path, default=STATE)
    arguments = parser.parse_args()
    try:
        with Client(arguments.url, pace=PACE) as client:
            run(client, arguments.state)
    except EndpointError as error:
        print(error, file=sys.stderr)
        return TRY_AGAIN
    return 0


if __name__ == "__main__":
    sys.exit(main())
