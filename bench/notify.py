"""Part 15: signed and recorded webhook deliveries per second, and the time from a request to its notification.

The receiver is an event loop in this process that answers 204 at once; the service runs on a separate core. While the
subscription is paused, one event for each VM creates a backlog. The measured time is from resuming the subscription to
the last delivery.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.document import service_child
from bench.fleet import fill, host_name, vm_name
from bench.operator import Operator
from bench.process import BenchError
from bench.result import Effort, Result, Row, percentile

__all__ = ["measure"]

_PATIENCE_S = 300.0
_SUBSCRIPTIONS = (1, 10)
_ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"


def measure(effort: Effort, folder: Path, log: Path) -> Result:
    """Deliver a backlog to one subscription, then to ten at once; then measure single deliveries."""
    result = Result(title="Notifications, signed and recorded, on SQLite")
    url = f"sqlite:///{folder}/forewarn.db"
    hosts = effort.commits
    fill(url, hosts * len(_SUBSCRIPTIONS) + 10)
    with _receiver() as receiver, service_child(folder, log, database_url=url, inventory=None) as service:
        operator = Operator(service.hear(_PATIENCE_S)["control"], folder)
        for turn, count in enumerate(_SUBSCRIPTIONS):
            found = _backlog(operator, receiver, range(turn * hosts, (turn + 1) * hosts), count)
            result.raw[f"backlog_{count}"] = found
            words = f"{count} subscription{'s' * (count > 1)}"
            print(f"  {words}: {found['per_s']:.0f} deliveries a second", flush=True)
            result.rows.append(
                Row(
                    what=f"webhook deliveries, {words}",
                    value=found["per_s"],
                    unit="a second",
                    note=f"of {found['got']}",
                )
            )
        delays_ms = _one_by_one(operator, receiver, hosts * len(_SUBSCRIPTIONS) * 20, effort.commits)
        result.raw["delays_ms"] = delays_ms
        for percent in (50, 99):
            value = percentile(delays_ms, percent)
            result.rows.append(Row(what=f"from the request to the receiver, p{percent}", value=value, unit="ms"))
    return result


class _Receiver:
    """Records when each notification arrives."""

    def __init__(self) -> None:
        self.url = ""
        self.at_s: list[float] = []

    def wait(self, count: int) -> float:
        """Wait for `count` notifications; return when the last one arrived."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while len(self.at_s) < count:
            if time.monotonic() > deadline_s:
                raise BenchError(f"{len(self.at_s)} of {count} notifications came in time")
            time.sleep(0.001)
        return self.at_s[count - 1]

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
                await reader.readexactly(length)
                self.at_s.append(time.monotonic())
                writer.write(_ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@contextmanager
def _receiver() -> Iterator[_Receiver]:
    made, ready = _Receiver(), threading.Event()
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        server = await asyncio.start_server(made.answer, "127.0.0.1", 0)
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        ready.set()

    def run() -> None:
        loop.run_until_complete(begin())
        loop.run_forever()

    threading.Thread(target=run, daemon=True).start()
    ready.wait(_PATIENCE_S)
    yield made
    loop.call_soon_threadsafe(loop.stop)


def _backlog(operator: Operator, receiver: _Receiver, hosts: range, count: int) -> dict[str, Any]:
    names = [f"s{count}-{number}" for number in range(count)]
    for name in names:
        operator.post("/v1/subscriptions", {"name": name, "url": receiver.url, "kinds": ["scheduled"]})
        operator.post(f"/v1/subscriptions/{name}/pause", {})
    events = 0
    for number in hosts:
        body = {"hosts": [host_name(number)], "type": "Freeze", "notice_s": 7 * 86400}
        events += sum(len(each["events"]) for each in operator.post("/v1/maintenance", body)["items"])
    receiver.at_s.clear()
    began_s = time.monotonic()
    for name in names:
        operator.post(f"/v1/subscriptions/{name}/resume", {})
    took_s = receiver.wait(events * count) - began_s
    for name in names:
        operator.post(f"/v1/subscriptions/{name}/pause", {})
    return {"got": events * count, "took_s": took_s, "per_s": events * count / took_s}


def _one_by_one(operator: Operator, receiver: _Receiver, first: int, count: int) -> list[float]:
    """Return the milliseconds from each request for maintenance until its notification arrives."""
    operator.post("/v1/subscriptions/s1-0/resume", {"skip": True})
    delays_ms = []
    for number in range(first, first + count):
        receiver.at_s.clear()
        asked_s = time.monotonic()
        operator.post("/v1/maintenance", {"vms": [vm_name(number)], "type": "Freeze", "notice_s": 7 * 86400})
        delays_ms.append((receiver.wait(1) - asked_s) * 1000)
    return delays_ms
