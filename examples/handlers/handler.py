"""A handler of scheduled events in Python, with nothing but the standard library; for one VM, to be copied.

    python3 handler.py [MARKER]

The VM is prepared while the file MARKER (`drained`) exists. Put your own work into `prepare` and `recover`: both may be
called twice, after a reboot for example. The name of the VM comes from the endpoint, as it stands in Resources.
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
    """GET, or POST a body; the timeout is for each step of an answer, so it is never read for ever."""
    request = urllib.request.Request(url, data=body, headers={"Metadata": "true"})
    with OPENER.open(request, timeout=timeout_s) as answer:
        return answer.read()


def prepare() -> None:
    """Get ready to be interrupted: drain, fail over, save. Returns when that is done."""
    MARKER.touch()


def recover() -> None:
    """Take up work again."""
    MARKER.unlink(missing_ok=True)


def handle(document: dict, name: str, approved: set[str]) -> None:
    """Bring the VM into the state that the document asks for; raises KeyError where it has no Events."""
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
        except (OSError, ValueError, KeyError, TypeError) as error:  # says nothing: all stays as it is
            print("no answer that says anything:", error, flush=True)
        time.sleep(1)


if __name__ == "__main__":
    main()
