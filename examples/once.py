"""A handler for scheduled events that a timer starts: it gets the events once, acts, and exits.

    python3 examples/once.py [http://169.254.169.254] [--state /var/lib/once/prepared.json]

It retries failed requests for up to 50 s, prepares for each new event that affects this VM, approves when prepared, and
recovers when no event is left. For the next run, it stores the ids of the prepared events in a file. Exit
status 75 (try again): the endpoint did not answer. The handler did nothing, because no answer does not mean no events.

Start it every 10 s, but never while it is still running. A systemd timer ensures both:

    # /etc/systemd/system/once.service             # /etc/systemd/system/once.timer
    [Service]                                      [Timer]
    Type=oneshot                                   OnBootSec=10s
    StateDirectory=once                            OnUnitInactiveSec=10s
    ExecStart=/opt/once/bin/python /opt/once.py    AccuracySec=1s
                                                   [Install]
                                                   WantedBy=timers.target

cron cannot start it more often than once a minute. That is too late for a Spot VM, which gets 30 s of notice before a
Preempt. With cron, use `flock -n` to prevent parallel runs. Put your own work into prepare and recover.
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
    """Get the VM ready for an interruption: drain, fail over, save. Called again for the same event if interrupted."""
    print(f"prepare: {event.type} of {', '.join(event.resources)}")


def recover() -> None:
    """Put the VM back into service: no event affects it any more."""
    print("recover")


def load(state: Path) -> set[str]:
    """Return the ids of the events that earlier runs prepared for."""
    return set(json.loads(state.read_text())) if state.exists() else set()


def save(state: Path, prepared: set[str]) -> None:
    """Store the ids. The file is replaced as a whole, so that no run finds an incomplete file."""
    new = state.with_suffix(".new")
    new.write_text(json.dumps(sorted(prepared)))
    new.replace(state)


def own_name(client: Client) -> str:
    """Return this VM's name as in Resources, or the host name if the endpoint does not know the VM's name."""
    try:
        return client.fetch_name()
    except EndpointRefused as error:
        if error.details["status"] not in {400, 404}:
            raise
        return socket.gethostname()


def run(client: Client, state: Path) -> None:
    """Get the events once, and prepare, approve or recover."""
    document = client.fetch()
    name = own_name(client)
    prepared = load(state)
    hits = document.affecting(name)
    for event in hits:
        if event.id not in prepared:
            prepare(event)
            save(state, prepared := prepared | {event.id})
    # Approve in each run: repeating an approval does no harm, and an earlier one may have been lost. One approval is
    # enough for all VMs of an event, so only the first VM sends it.
    ready = [event for event in hits if not event.is_started and event.resources[0] == name]
    if ready:
        client.approve(ready)
    if prepared and not hits:
        recover()
        save(state, set())


def main() -> int:
    """Run once, and return the exit status."""
    parser = argparse.ArgumentParser(description="Get scheduled events once, and handle them.")
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
