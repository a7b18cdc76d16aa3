"""A service that keeps its state in memory: it counts.

    python3 counter.py FILE [PORT]

POST takes a tenth of a second, counts one and answers the count. GET answers the count. On SIGTERM it finishes what it
has begun, writes the count to FILE, where it finds it again at its next start, and ends. Killed, it forgets.
"""

import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WORK_S = 0.1


class Counter:
    """A number, and the file that keeps it while nobody is there to count."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.value = int(file.read_text()) if file.exists() else 0
        self.lock = threading.Lock()

    def add_one(self) -> int:
        """Count."""
        with self.lock:
            self.value += 1
            return self.value

    def save(self) -> None:
        """Write the file, all of it or nothing."""
        new = self.file.with_suffix(".new")
        new.write_text(f"{self.value}\n")
        new.replace(self.file)


class Server(ThreadingHTTPServer):
    """Answers each request in a thread of its own; when it is closed, it waits for all of them."""

    daemon_threads = False
    request_queue_size = 128

    def __init__(self, port: int, counter: Counter) -> None:
        super().__init__(("", port), Handler)
        self.counter = counter


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server

    def do_GET(self) -> None:
        """Tell the count."""
        self.answer(self.server.counter.value)

    def do_POST(self) -> None:
        """Do something that takes a moment, and count it."""
        time.sleep(WORK_S)
        self.answer(self.server.counter.add_one())

    def answer(self, value: int) -> None:
        """Send a number."""
        body = f"{value}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main(file: str, port: str = "8080") -> None:
    counter = Counter(Path(file))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # in every thread: it is waited for below
    with Server(int(port), counter) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        signal.sigwait({signal.SIGTERM})
        server.shutdown()
    counter.save()


if __name__ == "__main__":
    main(*sys.argv[1:])
