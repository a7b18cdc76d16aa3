"""Part 1: GET of a current document, compared with servers that only send the same bytes."""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.document import PATH, Served, fetch, service_child
from bench.operator import Operator
from bench.process import LOAD_CORE, SERVER_CORE, BenchError, Child, find_tool, python_child
from bench.result import Effort, Result, Row, median
from tests.support.ports import reserve_port

__all__ = ["MODES", "SIDES", "measure"]

SIDES = ("Forewarn", "nginx", "nginx tuned", "Go net/http", "Starlette", "FastAPI")
MODES = ("keep-alive", "new connection")
CONNECTIONS = 64

_HERE = Path(__file__).resolve().parent / "sides"
_TARGETS = {
    ("keep-alive", "nginx"): 1.7,
    ("keep-alive", "Go net/http"): 1.7,
    ("new connection", "nginx"): 0.95,
}
_CONTENT_TYPE = "application/json; charset=utf-8"

_NGINX_FILES = {
    "nginx": "sendfile on; tcp_nopush on;",
    "nginx tuned": "sendfile off; open_file_cache max=16 inactive=1h; open_file_cache_valid 1h;",
}
"""Settings for reading the file: Debian's, and the fastest for a small file that never changes."""

_NGINX = """
daemon off;
worker_processes 1;
pid {place}/nginx.pid;
error_log stderr;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  default_type "{content_type}";
  {files}
  keepalive_requests 1000000000;
  keepalive_timeout 75s;
  client_body_temp_path {place}/body;
  proxy_temp_path {place}/proxy;
  fastcgi_temp_path {place}/fastcgi;
  uwsgi_temp_path {place}/uwsgi;
  scgi_temp_path {place}/scgi;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    root {folder}/www;
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Side:
    """A server that is compared."""

    name: str
    url: str
    child: Child


def measure(effort: Effort, folder: Path, log: Path) -> Result:
    """Measure all servers in turn, in several rounds; compute the ratios in each round."""
    with contextlib.ExitStack() as stack:
        sides = _start(stack, folder, log)
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
    return _result(rounds, served)


def _result(rounds: dict[str, list[dict[str, Any]]], served: Served) -> Result:
    result = Result(title=f"GET of a current document, {len(served.body)} bytes, {CONNECTIONS} clients")
    result.raw = {"body_bytes": len(served.body), "connections": CONNECTIONS, "rounds": rounds}
    for mode in MODES:
        for name in SIDES:
            per_s = median([one[name]["per_s"] for one in rounds[mode]])
            words = f"{per_s:,.0f} requests/s"
            if name == "Forewarn":
                busy = median([one[name]["load_busy"] for one in rounds[mode]])
                note = f"core of the load generator {busy:.0%} busy"
                result.rows.append(Row(what=f"{mode}, Forewarn", value=per_s, unit="requests/s", note=note))
                continue
            ratio = median([one["Forewarn"]["per_s"] / one[name]["per_s"] for one in rounds[mode]])
            work = median([one["Forewarn"]["per_cpu_s"] / one[name]["per_cpu_s"] for one in rounds[mode]])
            note = f"{words}; {work:.2f}x per second of CPU time"
            target = _TARGETS.get((mode, name))
            what = f"{mode}, Forewarn to {name}"
            result.rows.append(Row(what=what, value=ratio, unit="x", target=target, is_floor=True, note=note))
    return result


# The compared servers


def _start(stack: contextlib.ExitStack, folder: Path, log: Path) -> list[Side]:
    (folder / "www/metadata").mkdir(parents=True)
    child = stack.enter_context(service_child(folder, log))
    told = child.hear()
    forewarn = Side("Forewarn", told["metadata"][0], child)
    fetch(forewarn.url)  # enables the service for this VM
    Operator(told["control"], folder).post("/v1/maintenance", {"vms": ["vm-1"], "type": "Freeze", "notice_s": 86400})
    document = fetch(forewarn.url)
    if document.body.count(b"EventId") != 1:
        raise BenchError(f"a document with one event was expected: {document.body!r}")
    body = folder / "www/metadata/scheduledevents"
    body.write_bytes(document.body)
    sides = [forewarn]
    sides += [stack.enter_context(_nginx(name, folder, log)) for name in _NGINX_FILES]
    sides.append(stack.enter_context(_go(folder, body, document.etag, log)))
    for name in ("Starlette", "FastAPI"):
        port = reserve_port()
        arguments = (name.lower(), str(port), str(body), document.etag)
        child = stack.enter_context(python_child("bench.sides.asgi", *arguments, core=SERVER_CORE, log=log))
        sides.append(Side(name, f"http://127.0.0.1:{port}", child))
    return sides


@contextlib.contextmanager
def _nginx(name: str, folder: Path, log: Path) -> Iterator[Side]:
    port = reserve_port()
    place = folder / name.replace(" ", "-")
    place.mkdir()
    settings = _NGINX.format(
        place=place, folder=folder, port=port, content_type=_CONTENT_TYPE, files=_NGINX_FILES[name]
    )
    (place / "nginx.conf").write_text(settings, encoding="utf-8")
    arguments = ["nginx", "-p", str(place), "-c", str(place / "nginx.conf"), "-e", "stderr"]
    with Child(arguments, core=SERVER_CORE, log=log) as child:
        yield Side(name, f"http://127.0.0.1:{port}", child)


@contextlib.contextmanager
def _go(folder: Path, body: Path, etag: str, log: Path) -> Iterator[Side]:
    port = reserve_port()
    program = folder / "server"
    go = find_tool("go")
    assert go is not None
    environment = {
        "HOME": str(folder),
        "GOCACHE": str(folder / "go-cache"),
        "GO111MODULE": "off",
        "PATH": "/usr/bin:/bin",
    }
    subprocess.run(
        [go, "build", "-o", str(program), str(_HERE / "server.go")], check=True, env=environment, timeout=300
    )
    arguments = ["env", "GOMAXPROCS=1", str(program), f"127.0.0.1:{port}", str(body), etag]
    with Child(arguments, core=SERVER_CORE, log=log) as child:
        yield Side("Go net/http", f"http://127.0.0.1:{port}", child)


def _check_same(sides: list[Side]) -> Served:
    """Check that all servers give the same answer in both modes. ETags are not compared: nginx generates its own.

    Raises:
        BenchError: The answer of a server differs.
    """
    first = fetch(sides[0].url)
    for side in sides:
        for closes in (False, True):
            served = fetch(side.url, closes=closes)
            if (served.status, served.content_type, served.body) != (200, _CONTENT_TYPE, first.body):
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
        str(_HERE / "wrk.lua"),
    ]
    arguments += ["-H", "Metadata: true"]
    if mode == "new connection":
        arguments += ["-H", "Connection: close"]
    server_cpu_s = side.child.cpu_s()
    load_cpu_s = _children_cpu_s()
    with Child([*arguments, side.url + PATH], core=LOAD_CORE, log=log) as wrk:
        output = wrk.finish(seconds + 30)
    load_cpu_s = _children_cpu_s() - load_cpu_s
    server_cpu_s = side.child.cpu_s() - server_cpu_s
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    if found["status"] or found["timeout"] or not found["requests"]:
        raise BenchError(f"{side.name} did not answer every request: {found}")
    took_s = found["duration_us"] / 1e6
    return {
        "per_s": found["requests"] / took_s,
        "per_cpu_s": found["requests"] / server_cpu_s,
        "server_busy": server_cpu_s / took_s,
        "load_busy": load_cpu_s / took_s,
        **found,
    }


def _children_cpu_s() -> float:
    """Return the CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
