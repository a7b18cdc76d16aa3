"""A receiver of notifications: a real HTTP server on loopback that keeps what it got and answers as a test wants."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks import Webhook

from tests.support.ports import reserve_port

__all__ = ["Got", "Receiver", "receiver"]

_HANG_S = 30.0
_HUGE_BYTES = 1 << 24


@dataclass(frozen=True)
class Got:
    """A request that came; header names are in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        """The CloudEvent."""
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def id(self) -> str:
        return str(self.event["id"])

    @property
    def kind(self) -> str:
        """``event.scheduled`` of ``dev.forewarn.event.scheduled.v1``."""
        return str(self.event["type"]).removeprefix("dev.forewarn.").removesuffix(".v1")

    def verify(self, secret: str) -> None:
        """As the library of Standard Webhooks does it; raises when the signature is wrong."""
        Webhook(secret).verify(self.body, self.headers)


Script = Callable[[Got], int | str]
"""Which status to answer: or ``hang``, ``huge``, ``redirect``, ``cut``, ``later``."""


@dataclass
class Receiver:
    """What it got, and how it answers."""

    script: Script = field(default=lambda _got: 204)
    got: list[Got] = field(default_factory=list)
    taken: list[Got] = field(default_factory=list)
    port: int = field(default_factory=reserve_port)
    tls: ssl.SSLContext | None = None
    _server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?key=1"

    @property
    def ids(self) -> list[str]:
        """Of what it took, in order."""
        return [got.id for got in self.taken]

    @property
    def kinds(self) -> list[str]:
        return [got.kind for got in self.taken]

    @property
    def stories(self) -> dict[str, list[str]]:
        """The kinds that it took, in order, by subject: of different ones they may overtake each other."""
        found: dict[str, list[str]] = {}
        for got in self.taken:
            found.setdefault(str(got.event["subject"]), []).append(got.kind)
        return found

    def start(self) -> None:
        """Answer, on its port, the first time and again."""
        self._server = _Server(("127.0.0.1", self.port), _Handler)
        self._server.receiver = self
        if self.tls is not None:
            self._server.socket = self.tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """As if its process were killed: nobody listens any more."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    receiver: Receiver

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever asked may go away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        receiver = self.server.receiver
        length = int(self.headers["content-length"])
        body = self.rfile.read(length)
        if len(body) < length:  # whoever sent it was killed
            self.close_connection = True
            return
        got = Got(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
        receiver.got.append(got)
        answer = receiver.script(got)
        if answer == "hang":
            time.sleep(_HANG_S)
        if answer in {"hang", "cut"}:
            self.close_connection = True
            return
        status, headers, body = _answers(receiver).get(answer, (answer, {}, b""))
        assert isinstance(status, int)
        if 200 <= status < 300:
            receiver.taken.append(got)
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the library's
        """Nothing."""


def _answers(receiver: Receiver) -> dict[int | str, tuple[int | str, dict[str, str], bytes]]:
    return {
        "huge": (200, {}, bytes(_HUGE_BYTES)),
        "redirect": (307, {"Location": receiver.url}, b""),
        "later": (503, {"Retry-After": "3600"}, b""),
    }


@contextmanager
def receiver(script: Script | None = None, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """One that answers until the block ends; 204 by default."""
    made = Receiver(tls=tls) if script is None else Receiver(script=script, tls=tls)
    made.start()
    try:
        yield made
    finally:
        made.stop()
