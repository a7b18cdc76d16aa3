"""A metadata endpoint as the simplest mocks are: it compares EventIds letter by letter, and answers 200 either way.

It shares nothing with Forewarn's own. A test shows events on it and takes them away.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["ExactEndpoint", "exact_endpoint"]


class ExactEndpoint:
    """What it shows and what it was sent.

    Attributes:
        url: Where it answers.
        posts: The bodies of all approvals, in order.
    """

    def __init__(self) -> None:
        self.url = ""
        self.posts: list[Any] = []
        self._events: list[dict[str, Any]] = []
        self._incarnation = 1
        self._lock = threading.Lock()

    def show(self, event_id: str, **members: Any) -> None:  # noqa: ANN401 - members of an event
        """Announce an event."""
        event = {
            "EventId": event_id,
            "EventType": "Reboot",
            "ResourceType": "VirtualMachine",
            "Resources": ["vm-1"],
            "EventStatus": "Scheduled",
            "NotBefore": "Tue, 01 Jan 2120 10:00:00 GMT",
            "Description": "Host server is undergoing maintenance.",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }
        with self._lock:
            self._events.append(event | members)
            self._incarnation += 1

    def clear(self) -> None:
        """Take all events away."""
        with self._lock:
            self._events.clear()
            self._incarnation += 1

    def start(self) -> None:
        """Let all events start."""
        with self._lock:
            self._start(self._events)

    def statuses(self) -> list[str]:
        """The status of each event."""
        with self._lock:
            return [event["EventStatus"] for event in self._events]

    def document(self) -> bytes:
        """What a GET is answered."""
        with self._lock:
            return json.dumps({"DocumentIncarnation": self._incarnation, "Events": self._events}).encode()

    def approve(self, content: Any) -> None:  # noqa: ANN401 - any JSON
        """Take an approval; an id that is not exactly that of an event changes nothing."""
        wanted = [request["EventId"] for request in content["StartRequests"]]
        with self._lock:
            self.posts.append(content)
            self._start([event for event in self._events if event["EventId"] in wanted])

    def _start(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            event |= {"EventStatus": "Started", "NotBefore": ""}
            self._incarnation += 1


@contextmanager
def exact_endpoint() -> Iterator[ExactEndpoint]:
    """One that answers until the end of the block."""
    endpoint = ExactEndpoint()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(endpoint.document() if self.path.startswith("/metadata/scheduledevents") else None)

        def do_POST(self) -> None:
            endpoint.approve(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self._answer(b"")

        def _answer(self, body: bytes | None) -> None:
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as its base calls it
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    endpoint.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
