"""Child process that sends requests with a given concurrency, and records how long each one took.

Argument: a JSON file with ``port``, ``path``, ``headers``, ``concurrency``, and ``requests``: for each request its
source address and body. It prints one line with the results. A sender reuses its connection for consecutive requests
with the same source address.
"""

from __future__ import annotations

import http.client
import json
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any

_GOOD = {200, 201}


class Press:
    """Senders that take requests from one queue.

    Attributes:
        took_ms: Time from request to answer, for each request.
        answers: Non-empty bodies of successful answers.
        wrong: Status and beginning of the body of all other answers.
    """

    def __init__(self, work: dict[str, Any]) -> None:
        self._work = work
        self._waiting: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        for address, body in work["requests"]:
            self._waiting.put((address, body))
        self._start = threading.Barrier(work["concurrency"] + 1)
        self.took_ms: list[float] = []
        self.answers: list[Any] = []
        self.wrong: list[str] = []

    def run(self) -> dict[str, Any]:
        """Send all requests, and return the results."""
        threads = [threading.Thread(target=self._send, daemon=True) for _ in range(self._work["concurrency"])]
        for thread in threads:
            thread.start()
        self._start.wait()
        began_s = time.monotonic()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - began_s
        return {"seconds": seconds, "took_ms": self.took_ms, "wrong": self.wrong[:3], "answers": self.answers}

    def _send(self) -> None:
        connection: http.client.HTTPConnection | None = None
        last = ""
        self._start.wait()
        while not self._waiting.empty():
            try:
                address, body = self._waiting.get_nowait()
            except queue.Empty:
                break
            if connection is None or address != last:
                if connection is not None:
                    connection.close()
                connection, last = self._connect(address), address
            self._ask(connection, body)

    def _connect(self, address: str) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._work["port"], timeout=60, source_address=(address, 0))

    def _ask(self, connection: http.client.HTTPConnection, body: str) -> None:
        before_s = time.monotonic()
        connection.request("POST", self._work["path"], body, self._work["headers"])
        answer = connection.getresponse()
        content = answer.read()
        self.took_ms.append((time.monotonic() - before_s) * 1000)
        if answer.status not in _GOOD:
            self.wrong.append(f"{answer.status} {content[:200]!r}")
        elif content:
            self.answers.append(json.loads(content))


if __name__ == "__main__":
    print(json.dumps(Press(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))).run()), flush=True)
