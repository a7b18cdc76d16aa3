"""A service that counts requests, and keeps the count in memory.

    python3 counter.py FILE [PORT]

POST takes a tenth of a second, adds one, and returns the count. GET returns the count. On SIGTERM, the service finishes
open requests, writes the count to FILE, and exits. It reads FILE when it starts. If killed, it loses the count.
"""

import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WORK_S = 0.1


class Counter:
    """The count, and the file that stores it while the service is stopped."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.value = int(file.read_text()) if file.exists() else 0
        self.lock = threading.Lock()

    def add_one(self) -> int:
        """Add one, and return the new count."""
        with self.lock:
            self.value += 1
            return self.value

    def save(self) -> None:
        """Replace the file as a whole, so that it is never incomplete."""
        new = self.file.with_suffix(".new")
        new.write_text(f"{self.value}\n")
        new.replace(self.file)


class Server(ThreadingHTTPServer):
    """Handles each request in a separate thread; closing it waits for all requests."""

    daemon_threads = False
    request_queue_size = 128

    def __init__(self, port: int, counter: Counter) -> None:
        super().__init__(("", port), Handler)
        self.counter = counter


class Handler(BaseHTTPRequestHandler):
    """Handles one request."""

    server: Server

    def do_GET(self) -> None:
        """Return the count."""
        self.answer(self.server.counter.value)

    def do_POST(self) -> None:
        """Simulate work, and count it."""
        time.sleep(WORK_S)
        self.answer(self.server.counter.add_one())

    def answer(self, value: int) -> None:
        """Send a number as the answer."""
        body = f"{value}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Do not log requests."""


def main(file: str, port: str = "8080") -> None:
    counter = Counter(Path(file))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # in all threads: sigwait below receives it
    with Server(int(port), counter) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        signal.sigwait({signal.SIGTERM})
        server.shutdown()
    counter.save()


if __name__ == "__main__":
    main(*sys.argv[1:])
