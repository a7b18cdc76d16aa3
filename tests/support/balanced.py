"""Two HTTP servers for a balancer to stand in front of, and clients that write down who answered.

A balancer is reached over a Unix socket or at an address; whoever drains a server must lose no request.
"""

from __future__ import annotations

import http.client
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TypeAlias

__all__ = ["Answer", "Backend", "Clients", "Place", "ask", "backend", "clients"]

_TIMEOUT_S = 60
_FAILURES = (OSError, http.client.HTTPException)

Place: TypeAlias = Path | tuple[str, int]
"""Where a balancer listens."""


@dataclass(frozen=True)
class Answer:
    """What a client got.

    Attributes:
        status: Of HTTP.
        server: Which backend answered; empty when it was the balancer itself.
        cookie: What the client was told to send from now on.
    """

    status: int
    server: str
    cookie: str = ""


class _Connection(http.client.HTTPConnection):
    """A connection that may be a Unix socket."""

    def __init__(self, place: Place) -> None:
        super().__init__("balancer", timeout=_TIMEOUT_S)
        self._place = place

    def connect(self) -> None:
        if isinstance(self._place, Path):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(_TIMEOUT_S)
            self.sock.connect(str(self._place))
        else:
            self.sock = socket.create_connection(self._place, _TIMEOUT_S)


def _exchange(connection: http.client.HTTPConnection, path: str, cookie: str = "") -> Answer:
    connection.request("GET", path, headers={"Cookie": cookie} if cookie else {})
    response = connection.getresponse()
    response.read()
    given = (response.getheader("Set-Cookie") or "").partition(";")[0]
    return Answer(response.status, response.getheader("Server-Name") or "", given)


def ask(place: Place, path: str = "/", cookie: str = "") -> Answer:
    """One request on a connection of its own."""
    connection = _Connection(place)
    try:
        return _exchange(connection, path, cookie)
    finally:
        connection.close()


@dataclass
class Backend:
    """A server behind the balancer; ``/hold`` is answered once `gate` is open.

    Attributes:
        name: It puts this into its answers.
        address: Where it listens.
        requests: How many it was sent.
        held: How many wait for the gate.
        gate: Opens for requests that are held.
    """

    name: str
    address: str = ""
    requests: int = 0
    held: int = 0
    gate: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, backend: Backend) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.backend = backend


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        backend = self.server.backend
        with backend.lock:
            backend.requests += 1
        if self.path == "/hold":
            with backend.lock:
                backend.held += 1
            backend.gate.wait(_TIMEOUT_S)
        self.send_response(200)
        self.send_header("Server-Name", backend.name)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def backend(name: str) -> Iterator[Backend]:
    """A server that runs meanwhile."""
    made = Backend(name)
    with _Server(made) as server:
        host, port = server.server_address[:2]
        made.address = f"{host if isinstance(host, str) else host.decode()}:{port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield made
        finally:
            made.gate.set()
            server.shutdown()
            thread.join()


@dataclass
class Clients:
    """Threads that ask and ask.

    Attributes:
        answers: How many there were of each.
        failures: Requests without an answer, and why.
    """

    answers: Counter[Answer] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def lost(self) -> list[str]:
        """Requests without an answer, or with another one than 200."""
        with self.lock:
            return self.failures + [str(answer) for answer in self.answers if answer.status != http.HTTPStatus.OK]

    @property
    def count(self) -> int:
        """How many were answered."""
        with self.lock:
            return self.answers.total()

    def ask_on(self, place: Place, stop: threading.Event, *, is_kept: bool) -> None:
        """Ask until told to stop, on one connection or on one for each request."""
        connection = _Connection(place)
        try:
            while not stop.is_set():
                try:
                    answer = _exchange(connection, "/")
                except _FAILURES as error:
                    connection.close()
                    with self.lock:
                        self.failures.append(repr(error))
                    continue
                with self.lock:
                    self.answers[answer] += 1
                if not is_kept:
                    connection.close()
                time.sleep(0.002)
        finally:
            connection.close()


@contextmanager
def clients(place: Place, *, kept: int, new: int) -> Iterator[Clients]:
    """Clients that ask meanwhile.

    Args:
        place: Of the balancer.
        kept: How many keep their connection.
        new: How many make a new one for each request.
    """
    made, stop = Clients(), threading.Event()
    threads = [
        threading.Thread(target=made.ask_on, args=(place, stop), kwargs={"is_kept": number < kept})
        for number in range(kept + new)
    ]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        stop.set()
        for thread in threads:
            thread.join()
