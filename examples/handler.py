"""A handler that waits with a long poll, with nothing but the standard library; for one VM.

    python3 examples/handler.py [http://169.254.169.254] [--once]

It prepares when an event names its VM, approves when prepared, and recovers when no event names it any more. With
--once it ends then. The VM is prepared while the file `drained` exists, so a restart in between forgets nothing. The
long poll is Forewarn's own; other endpoints answer at once, so the handler pauses in between.
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
    """GET, or POST a body; empty where the answer is 304: nothing has changed."""
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
        """Wait for another document than the one that is known, for a minute at most; the first may take two."""
        if not self.document:
            self.document = json.loads(ask(self.base + EVENTS, timeout_s=130))
        else:
            tag = f'"{self.document["DocumentIncarnation"]}"'
            body = ask(self.base + EVENTS, timeout_s=90, If_None_Match=tag, Prefer="wait=60")
            self.document = json.loads(body) if body else self.document
        self.name = self.name or ask(self.base + NAME).decode()
        self.handle([event for event in self.document["Events"] if self.name in event["Resources"]])

    def handle(self, mine: list[dict]) -> None:
        """Bring the VM into the state that these events ask for."""
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
    """Follow the document until interrupted."""
    handler, was_prepared = Handler(base), False
    while not ("--once" in options and was_prepared and not DRAINED.exists()):
        try:
            handler.look()
        except (OSError, ValueError, KeyError, TypeError) as error:  # says nothing: all stays as it is
            print(f"no answer that says anything, asking again: {error}", flush=True)
            handler.document = {}
        was_prepared |= DRAINED.exists()
        time.sleep(0.5)


if __name__ == "__main__":
    main(*sys.argv[1:])
