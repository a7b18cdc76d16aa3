"""Part 2: the time from a commit until a client sees the change, with polling and with a long poll."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.document import service_child
from bench.operator import Operator
from bench.process import LOAD_CORE, Child, python_child
from bench.result import Effort, Result, Row, percentile

__all__ = ["change", "delays_ms", "measure"]

_TARGET_MS = 20.0
_CLIENTS = {"poll": "polling back to back", "hold": "held long poll"}


def measure(effort: Effort, folder: Path, log: Path) -> Result:
    """Change the document many times, first with a client that polls, then with one that holds a long poll."""
    result = Result(title="From a change until a client sees it")
    for mode, words in _CLIENTS.items():
        place = folder / mode
        place.mkdir()
        with service_child(place, log) as service:
            told = service.hear()
            port = urlsplit(told["metadata"][0]).port
            with python_child("bench.client", mode, str(port), core=LOAD_CORE, log=log) as client:
                client.hear()
                found = _watch(service, client, Operator(told["control"], place), effort.changes)
        commit_ms, request_ms = found["from_commit_ms"], found["from_request_ms"]
        print(f"  {words}: p50 {percentile(commit_ms, 50):.2f} ms, p99 {percentile(commit_ms, 99):.2f} ms", flush=True)
        result.raw[mode] = found
        result.rows += [
            Row(what=f"{words}, commit until seen, p50", value=percentile(commit_ms, 50), unit="ms"),
            Row(
                what=f"{words}, commit until seen, p99",
                value=percentile(commit_ms, 99),
                unit="ms",
                target=_TARGET_MS,
            ),
            Row(what=f"{words}, request until seen, p50", value=percentile(request_ms, 50), unit="ms"),
            Row(what=f"{words}, request until seen, p99", value=percentile(request_ms, 99), unit="ms"),
        ]
    return result


def _watch(service: Child, client: Child, operator: Operator, count: int) -> dict[str, Any]:
    """Announce and cancel events with random pauses; return when the client saw each change."""
    asked_s = change(operator, count, (0.005, 0.03))
    client.tell()  # ends the client; one that holds a poll ends only after one more change
    operator.post("/v1/maintenance", {"vms": ["vm-1"], "type": "Freeze"})
    seen = client.hear()
    changes = service.ask(do="changes_seen")["changes"][-(count // 2 * 2 + 1) : -1]
    return {"requests": seen["requests"]} | delays_ms(changes, dict(seen["seen"]), asked_s)


def change(operator: Operator, count: int, pauses_s: tuple[float, float]) -> list[float]:
    """Announce and cancel in turn, `count` changes in all; return the time of each request."""
    pause = random.Random(1)
    asked_s: list[float] = []
    for _ in range(count // 2):
        asked_s.append(time.monotonic())
        made = operator.post("/v1/maintenance", {"vms": ["vm-1"], "type": "Freeze"})
        time.sleep(pause.uniform(*pauses_s))
        asked_s.append(time.monotonic())
        operator.post(f"/v1/maintenance/{made['items'][0]['id']}/cancel", {})
        time.sleep(pause.uniform(*pauses_s))
    time.sleep(0.5)
    return asked_s


def delays_ms(changes: list[dict[str, Any]], seen: dict[int, float], asked_s: list[float]) -> dict[str, Any]:
    """Return the times from request and from commit until the client saw the change, or a later one."""
    sights_s = [min(s for i, s in seen.items() if i >= change["incarnation"]) for change in changes]
    return {
        "changes": len(changes),
        "missed": sum(change["incarnation"] not in seen for change in changes),
        "from_commit_ms": [(s - c["committed_s"]) * 1000 for s, c in zip(sights_s, changes, strict=True)],
        "from_request_ms": [(s - a) * 1000 for s, a in zip(sights_s, asked_s, strict=True)],
    }
