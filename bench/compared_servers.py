"""The servers that GETs are compared on: Forewarn, and others that only send the same bytes."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.document import fetch, service_child
from bench.operator import Operator
from bench.process import SERVER_CORE, BenchError, Child, find_tool, python_child
from tests.support.ports import reserve_port

__all__ = ["CONTENT_TYPE", "FOREWARN", "SIDES", "Side", "haproxy_settings", "nginx_settings", "start_all"]

FOREWARN = "Forewarn"
CONTENT_TYPE = "application/json; charset=utf-8"

_SIDES_FOLDER = Path(__file__).resolve().parent / "sides"

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

_HAPROXY = """
global
  nbthread 1
  maxconn 8192
defaults
  mode http
  timeout connect 5s
  timeout client 75s
  timeout server 75s
  timeout http-keep-alive 75s
frontend document
  bind 127.0.0.1:{port} backlog 4096
  http-request return status 200 content-type '{content_type}' file '{body}' hdr ETag '{etag}'
"""


@dataclass(frozen=True, slots=True)
class Side:
    """A server that is compared."""

    name: str
    url: str
    child: Child


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """What the other servers send, and where they keep files.

    Attributes:
        folder: Folder of all servers.
        body: File with the document.
        etag: Entity tag of the document, in quotes.
        log: File for the servers' stderr.
    """

    folder: Path
    body: Path
    etag: str
    log: Path


def start_all(stack: contextlib.ExitStack, folder: Path, log: Path) -> list[Side]:
    """Start all servers, until the end of the stack; Forewarn is the first."""
    (folder / "www/metadata").mkdir(parents=True)
    child = stack.enter_context(service_child(folder, log))
    told = child.hear()
    forewarn = Side(FOREWARN, told["metadata"][0], child)
    fetch(forewarn.url)  # enables the service for this VM
    Operator(told["control"], folder).post("/v1/maintenance", {"vms": ["vm-1"], "type": "Freeze", "notice_s": 86400})
    document = fetch(forewarn.url)
    if document.body.count(b"EventId") != 1:
        raise BenchError(f"a document with one event was expected: {document.body!r}")
    body = folder / "www/metadata/scheduledevents"
    body.write_bytes(document.body)
    content = _Content(folder=folder, body=body, etag=document.etag, log=log)
    return [forewarn, *(_start(stack, name, content) for name in _COMMANDS)]


def _start(stack: contextlib.ExitStack, name: str, content: _Content) -> Side:
    port = reserve_port()
    child = stack.enter_context(_COMMANDS[name](name, port, content))
    return Side(name, f"http://127.0.0.1:{port}", child)


def nginx_settings(name: str, place: Path, folder: Path, port: int) -> str:
    """Return the configuration of nginx: `place` for its own files, `folder` for the document."""
    return _NGINX.format(place=place, folder=folder, port=port, content_type=CONTENT_TYPE, files=_NGINX_FILES[name])


def _nginx(name: str, port: int, content: _Content) -> Child:
    place = content.folder / name.replace(" ", "-")
    place.mkdir()
    settings = place / "nginx.conf"
    settings.write_text(nginx_settings(name, place, content.folder, port), encoding="utf-8")
    arguments = ["nginx", "-p", str(place), "-c", str(settings), "-e", "stderr"]
    return Child(arguments, core=SERVER_CORE, log=content.log)


def haproxy_settings(port: int, body: Path, etag: str) -> str:
    """Return the configuration of HAProxy, which sends the file from memory; its log format doubles `%`."""
    return _HAPROXY.format(port=port, content_type=CONTENT_TYPE, body=body, etag=etag.replace("%", "%%"))


def _haproxy(_name: str, port: int, content: _Content) -> Child:
    settings = content.folder / "haproxy.cfg"
    settings.write_text(haproxy_settings(port, content.body, content.etag), encoding="utf-8")
    return Child(["haproxy", "-db", "-f", str(settings)], core=SERVER_CORE, log=content.log)


def _go(_name: str, port: int, content: _Content) -> Child:
    program = content.folder / "server"
    go = find_tool("go")
    assert go is not None
    environment = {
        "HOME": str(content.folder),
        "GOCACHE": str(content.folder / "go-cache"),
        "GO111MODULE": "off",
        "PATH": "/usr/bin:/bin",
    }
    source = str(_SIDES_FOLDER / "server.go")
    subprocess.run([go, "build", "-o", str(program), source], check=True, env=environment, timeout=300)
    arguments = ["env", "GOMAXPROCS=1", str(program), f"127.0.0.1:{port}", str(content.body), content.etag]
    return Child(arguments, core=SERVER_CORE, log=content.log)


def _asgi(name: str, port: int, content: _Content) -> Child:
    arguments = (name.lower(), str(port), str(content.body), content.etag)
    return python_child("bench.sides.asgi", *arguments, core=SERVER_CORE, log=content.log)


_COMMANDS: dict[str, Callable[[str, int, _Content], Child]] = {
    "nginx": _nginx,
    "nginx tuned": _nginx,
    "HAProxy": _haproxy,
    "Go net/http": _go,
    "Starlette": _asgi,
    "FastAPI": _asgi,
}
"""For each other server, by name, the function that prepares its process."""

SIDES = (FOREWARN, *_COMMANDS)
"""Names of all servers, in the order of the table."""
