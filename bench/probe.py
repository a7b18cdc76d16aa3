"""Child process that acts as well-behaved callers: each one sends requests at a steady pace, and measures the answers.

The time of a call counts from the moment at which it was due, even if the caller was still waiting for the previous
answer. So a pause of ten seconds affects all calls that were due during the pause, not only one.

It reads commands from stdin, as lines of JSON with the member ``do``:

- ``measure``: make all ``calls`` in parallel for ``seconds``; the answer has the milliseconds of each call by name, and
  counts of failures.

A call has ``port``, ``method``, ``path``, ``headers``, ``body`` and the local ``address`` to send from. With ``fresh``,
each request opens a new connection; otherwise the caller reuses its connection. Of a ``stream``, only the first line is
read. ``every_s`` sets a different interval between requests.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
import time
from collections import Counter
from typing import Any

_EVERY_S = 0.05
_TIMEOUT_S = 60.0
_PRIORITY = -15
"""Higher priority than that of the attackers on the same core: their CPU use must not look like a slow service."""


class Caller:
    """Makes one call repeatedly.

    Args:
        call: The request, with its source address.
    """

    def __init__(self, call: dict[str, Any]) -> None:
        self._call = call
        self._connection: http.client.HTTPConnection | None = None

    def ask(self) -> int:
        """Send one request; return the status."""
        call = self._call
        connection = self._connection or http.client.HTTPConnection(
            "127.0.0.1", call["port"], timeout=_TIMEOUT_S, source_address=(call.get("address", "127.0.0.1"), 0)
        )
        self._connection = None
        try:
            connection.request(call.get("method", "GET"), call["path"], call.get("body"), call.get("headers", {}))
            answer = connection.getresponse()
            answer.readline() if call.get("stream") else answer.read()
        except BaseException:
            connection.close()
            raise
        if call.get("fresh") or call.get("stream"):
            connection.close()
        else:
            self._connection = connection
        return answer.status


def measure(calls: dict[str, dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Make the calls in parallel for `seconds`; return times and failures."""
    took_ms: dict[str, list[float]] = {name: [] for name in calls}
    wrong: Counter[str] = Counter()
    begins_s = time.monotonic()

    def go_on(name: str, call: dict[str, Any]) -> None:
        caller = Caller(call)
        every_s = call.get("every_s", _EVERY_S)
        for number in range(int(seconds / every_s)):
            due_s = begins_s + number * every_s
            time.sleep(max(due_s - time.monotonic(), 0))
            try:
                status = caller.ask()
            except (OSError, http.client.HTTPException) as error:
                wrong[f"{name}: {type(error).__name__}"] += 1
            else:
                if status >= http.client.BAD_REQUEST:
                    wrong[f"{name}: {status}"] += 1
            took_ms[name].append((time.monotonic() - due_s) * 1000)

    threads = [threading.Thread(target=go_on, args=each) for each in calls.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"took_ms": took_ms, "wrong": dict(wrong)}


def main() -> None:
    """Handle commands until stdin ends."""
    if os.geteuid() == 0:
        os.nice(_PRIORITY)
    for line in sys.stdin:
        question = json.loads(line)
        question.pop("do")
        sys.stdout.write(json.dumps(measure(**question)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
