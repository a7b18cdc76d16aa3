"""A service with one document, which most parts of the benchmark use."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bench.process import SERVER_CORE, BenchError, Child, python_child

__all__ = ["PATH", "Served", "fetch", "service_child"]

PATH = "/metadata/scheduledevents?api-version=2020-07-01"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Answer of one server to GET. All compared servers must give the same answer."""

    status: int
    content_type: str
    etag: str
    body: bytes


_INVENTORY = {"hosts": [{"name": "host-1"}], "vms": [{"name": "vm-1", "host": "host-1", "addresses": ["127.0.0.1"]}]}


def service_child(folder: Path, log: Path, **settings: object) -> Child:
    """Return a service with one VM, its database in `folder` and both listeners on free ports of loopback."""
    inventory = folder / "inventory.json"
    inventory.write_text(json.dumps(_INVENTORY), encoding="utf-8")
    flags = {
        "database_url": f"sqlite:///{folder}/forewarn.db",
        "inventory": str(inventory),
        "state_dir": str(folder),
        "metadata_listen": "127.0.0.1:0",
        "control_listen": "127.0.0.1:0",
        **settings,
    }
    flags = {name: value for name, value in flags.items() if value is not None}
    return python_child("bench.service", json.dumps(flags), core=SERVER_CORE, log=log)


def fetch(url: str, *, closes: bool = False) -> Served:
    """Send one GET as the load generator does, and retry for 10 s while the server starts.

    Raises:
        BenchError: The server does not answer.
    """
    deadline_s = time.monotonic() + 10
    while True:
        try:
            return _get(url, closes=closes)
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise BenchError(f"{url} does not answer: {error}") from error
            time.sleep(0.05)


def _get(url: str, *, closes: bool) -> Served:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    try:
        headers = {"Metadata": "true"} | ({"Connection": "close"} if closes else {})
        connection.request("GET", PATH, headers=headers)
        answer = connection.getresponse()
        return Served(
            status=answer.status,
            content_type=answer.headers["content-type"] or "",
            etag=answer.headers["etag"] or "",
            body=answer.read(),
        )
    finally:
        connection.close()
