"""A handler of scheduled events for one VM, with a long poll and only the standard library.

    python3 examples/handler.py [http://169.254.169.254] [--once]

It prepares when an event names its VM, approves when prepared, and recovers when no event names the VM any more. With
--once, it then exits. The VM counts as prepared while the file `drained` exists, so this state survives a restart of
the handler. Forewarn's endpoint holds a long poll until the events change or a minute is over. Other endpoints answer
at once, so the handler pauses between polls.
"""

import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy
DRAINED = Path("drained")


def ask(url: str, body: bytes | None = None, timeout_s: float = 10, **headers: str) -> bytes:
    """Send a GET, or a POST with a body. The result is empty after status 304: nothing has changed."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data=body, headers={"Metadata": "true"} | named)
    try:
        with OPENER.open(request, timeout=timeout_s) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        if error.code == 304:
            return b""
        raise


class Handler:
    """Follows the document of one endpoint."""

    def __init__(self, base: str) -> None:
        self.base, self.name = base, ""
        self.document: dict = {}
        self.approved: set[str] = set()

    def look(self) -> None:
        """Wait up to a minute for a new document, and handle it. The first answer may take two minutes."""
        if not self.document:
            self.document = json.loads(ask(self.base + EVENTS, timeout_s=130))
        else:
            tag = f'"{self.document["DocumentIncarnation"]}"'
            body = ask(self.base + EVENTS, timeout_s=90, If_None_Match=tag, Prefer="wait=60")
            self.document = json.loads(body) if body else self.document
        self.name = self.name or ask(self.base + NAME).decode()
        self.handle([event for event in self.document["Events"] if self.name in event["Resources"]])

    def handle(self, mine: list[dict]) -> None:
        """Prepare, approve or recover, as these events require."""
        if mine and not DRAINED.exists():
            DRAINED.touch()
            print(f"prepare: {mine[0]['EventType']} of {self.name}", flush=True)
        for event in mine:
            if event["EventStatus"] == "Scheduled" and event["EventId"] not in self.approved:
                ask(self.base + EVENTS, json.dumps({"StartRequests": [{"EventId": event["EventId"]}]}).encode())
                self.approved.add(event["EventId"])
                print("approved", flush=True)
        if not mine and DRAINED.exists():
            DRAINED.unlink()
            print("recover", flush=True)


def main(base: str = "http://169.254.169.254", *options: str) -> None:
    """Handle events until interrupted or, with --once, until the first recovery."""
    handler, was_prepared = Handler(base), False
    while not ("--once" in options and was_prepared and not DRAINED.exists()):
        try:
            handler.look()
        except (OSError, ValueError, KeyError, TypeError) as error:  # the VM keeps its state
            print(f"no usable answer, trying again: {error}", flush=True)
            handler.document = {}
        was_prepared |= DRAINED.exists()
        time.sleep(0.5)


if __name__ == "__main__":
    main(*sys.argv[1:])
