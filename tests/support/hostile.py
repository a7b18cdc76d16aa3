"""A site of somebody who means harm, on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["Site", "site"]


@dataclass
class Site:
    """One page, to be changed at will.

    Attributes:
        port: Under whatever name.
        page: Its HTML.
        asked: Paths that were asked for.
    """

    port: int = 0
    page: str = ""
    asked: list[str] = field(default_factory=list)


@contextmanager
def site() -> Iterator[Site]:
    """One that answers on loopback until the block ends."""
    found = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append(self.path)
            content = f"<!doctype html><meta charset=utf-8>{found.page}".encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
