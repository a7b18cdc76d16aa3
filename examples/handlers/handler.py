"""A handler of scheduled events for one VM, in Python with only the standard library. Copy it, and adapt it.

    python3 handler.py [MARKER]

The VM counts as prepared while the file MARKER (default: `drained`) exists. Put your own work into `prepare` and
`recover`. If a reboot interrupts one of them, it is called again. The endpoint provides the VM's name, spelled as in
Resources.
"""

import json
import sys
import time
import urllib.request
from pathlib import Path

BASE = "http://169.254.169.254/metadata/"
EVENTS = BASE + "scheduledevents?api-version=2020-07-01"
NAME = BASE + "instance/compute/name?api-version=2021-02-01&format=text"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy
MARKER = Path(sys.argv[1] if len(sys.argv) > 1 else "drained")


def ask(url: str, body: bytes | None = None, timeout_s: float = 10) -> bytes:
    """Send a GET, or a POST with a body. The time-out limits each read, so no silent server holds the handler up."""
    request = urllib.request.Request(url, data=body, headers={"Metadata": "true"})
    with OPENER.open(request, timeout=timeout_s) as answer:
        return answer.read()


def prepare() -> None:
    """Get the VM ready for an interruption: drain, fail over, save. Return when the VM is ready."""
    MARKER.touch()


def recover() -> None:
    """Put the VM back into service."""
    MARKER.unlink(missing_ok=True)


def handle(document: dict, name: str, approved: set[str]) -> None:
    """Prepare, approve or recover, as the document requires. Raises KeyError if the document has no Events."""
    mine = [event for event in document["Events"] if name in event["Resources"]]
    if mine and not MARKER.exists():
        prepare()
    for event in mine:
        if event["EventStatus"] == "Scheduled" and event["EventId"] not in approved:
            ask(EVENTS, json.dumps({"StartRequests": [{"EventId": event["EventId"]}]}).encode())
            approved.add(event["EventId"])  # only after 200: an approval without an answer is sent again
    if not mine and MARKER.exists():
        recover()


def main() -> None:
    name, approved, timeout_s = "", set(), 130.0  # the first answer may take two minutes
    while True:
        try:
            document = json.loads(ask(EVENTS, timeout_s=timeout_s))
            timeout_s = 10.0
            name = name or ask(NAME).decode()
            handle(document, name, approved)
        except (OSError, ValueError, KeyError, TypeError) as error:  # the VM keeps its state
            print("no usable answer:", error, flush=True)
        time.sleep(1)


if __name__ == "__main__":
    main()
