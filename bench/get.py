"""Part 1: GET of a current document, compared with servers that only send the same bytes."""

from __future__ import annotations

import contextlib
import json
import resource
from pathlib import Path
from typing import Any

from bench.compared_servers import CONTENT_TYPE, FOREWARN, SIDES, Side, start_all
from bench.document import PATH, Served, fetch
from bench.process import LOAD_CORE, BenchError, Child
from bench.result import Effort, Result, Row, median

__all__ = ["MODES", "measure", "summarise"]

MODES = ("keep-alive", "new connection")
CONNECTIONS = 64

_SCRIPT = Path(__file__).resolve().parent / "sides/wrk.lua"
_TARGETS = {
    ("keep-alive", "nginx"): 1.7,
    ("keep-alive", "Go net/http"): 1.7,
    ("new connection", "nginx"): 0.95,
}


def measure(effort: Effort, folder: Path, log: Path) -> Result:
    """Measure all servers in turn, in several rounds; compute the ratios in each round."""
    with contextlib.ExitStack() as stack:
        sides = start_all(stack, folder, log)
        served = _check_same(sides)
        rounds: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
        for side in sides:
            for mode in MODES:
                _load(side, mode, 0.5, log)  # to warm up
        for number in range(1, effort.rounds + 1):
            for mode in MODES:
                found = {side.name: _load(side, mode, effort.seconds, log) for side in sides}
                rounds[mode].append(found)
                words = ", ".join(f"{name} {one['per_s'] / 1000:.1f}" for name, one in found.items())
                print(f"  round {number}, {mode}, thousand/s: {words}", flush=True)
        _check_same(sides)
    result = summarise(rounds, len(served.body))
    result.raw = {"body_bytes": len(served.body), "connections": CONNECTIONS, "rounds": rounds}
    return result


def summarise(rounds: dict[str, list[dict[str, Any]]], body_bytes: int) -> Result:
    """Return the rows: Forewarn's rate, and its ratio to each other server, each with the CPU time for a request.

    Args:
        rounds: For each mode and round, what was measured for each server, by its name.
        body_bytes: Size of the document.
    """
    result = Result(title=f"GET of a current document, {body_bytes} bytes, {CONNECTIONS} clients")
    for mode in MODES:
        for name in SIDES:
            per_s = median([one[name]["per_s"] for one in rounds[mode]])
            cpu_us = median([1e6 / one[name]["per_cpu_s"] for one in rounds[mode]])
            kernel = median([one[name]["kernel_share"] for one in rounds[mode]])
            words = f"{cpu_us:.1f} µs of the server's CPU time for a request, {kernel:.0%} of it in the kernel"
            if name == FOREWARN:
                busy = median([one[name]["load_busy"] for one in rounds[mode]])
                note = f"{words}; core of the load generator {busy:.0%} busy"
                result.rows.append(Row(what=f"{mode}, {FOREWARN}", value=per_s, unit="requests/s", note=note))
                continue
            ratio = median([one[FOREWARN]["per_s"] / one[name]["per_s"] for one in rounds[mode]])
            work = median([one[FOREWARN]["per_cpu_s"] / one[name]["per_cpu_s"] for one in rounds[mode]])
            note = f"{per_s:,.0f} requests/s; {words}; {work:.2f}x per second of CPU time"
            target = _TARGETS.get((mode, name))
            what = f"{mode}, {FOREWARN} to {name}"
            result.rows.append(Row(what=what, value=ratio, unit="x", target=target, is_floor=True, note=note))
    return result


def _check_same(sides: list[Side]) -> Served:
    """Check that all servers give the same answer in both modes. ETags are not compared: nginx generates its own.

    Raises:
        BenchError: The answer of a server differs.
    """
    first = fetch(sides[0].url)
    for side in sides:
        for closes in (False, True):
            served = fetch(side.url, closes=closes)
            if (served.status, served.content_type, served.body) != (200, CONTENT_TYPE, first.body):
                raise BenchError(f"{side.name} answers something else than {sides[0].name}: {served}")
    return first


# The load


def _load(side: Side, mode: str, seconds: float, log: Path) -> dict[str, Any]:
    """Run wrk against one server; return its results, and the CPU load of both."""
    arguments = [
        "wrk",
        "-t",
        "1",
        "-c",
        str(CONNECTIONS),
        "-d",
        f"{max(1, round(seconds))}s",
        "-s",
        str(_SCRIPT),
    ]
    arguments += ["-H", "Metadata: true"]
    if mode == "new connection":
        arguments += ["-H", "Connection: close"]
    before_s = side.child.cpu_shares_s()
    load_cpu_s = _children_cpu_s()
    with Child([*arguments, side.url + PATH], core=LOAD_CORE, log=log) as wrk:
        output = wrk.finish(seconds + 30)
    load_cpu_s = _children_cpu_s() - load_cpu_s
    user_s, kernel_s = (after - before for after, before in zip(side.child.cpu_shares_s(), before_s, strict=True))
    server_cpu_s = user_s + kernel_s
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    if found["status"] or found["timeout"] or not found["requests"]:
        raise BenchError(f"{side.name} did not answer every request: {found}")
    took_s = found["duration_us"] / 1e6
    return {
        "per_s": found["requests"] / took_s,
        "per_cpu_s": found["requests"] / server_cpu_s,
        "kernel_share": kernel_s / server_cpu_s,
        "server_busy": server_cpu_s / took_s,
        "load_busy": load_cpu_s / took_s,
        **found,
    }


def _children_cpu_s() -> float:
    """Return the CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
