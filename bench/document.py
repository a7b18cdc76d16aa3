"""The service with one document in it: what most parts ask for."""

from __future__ import annotations

import json
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.process import SERVER_CORE, BenchError, Child, python_child

__all__ = ["PATH", "Served", "control", "fetch", "service_child"]

PATH = "/metadata/scheduledevents?api-version=2020-07-01"

_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a side answers to GET: everything that must be the same on all sides."""

    status: int
    content_type: str
    etag: str
    body: bytes


_INVENTORY = {"hosts": [{"name": "host-1"}], "vms": [{"name": "vm-1", "host": "host-1", "addresses": ["127.0.0.1"]}]}


def service_child(folder: Path, log: Path, **settings: object) -> Child:
    """The service on a database in `folder`, both listeners on free ports of loopback; unless told otherwise with one VM."""
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
    """One GET, as the load generator will send it.

    Raises:
        BenchError: Nobody answers within 10 s.
    """
    headers = {"Metadata": "true"} | ({"Connection": "close"} if closes else {})
    deadline = time.monotonic() + 10
    while True:
        try:
            with _NO_PROXY.open(urllib.request.Request(url + PATH, headers=headers), timeout=10) as answer:
                return Served(
                    status=answer.status,
                    content_type=answer.headers["content-type"],
                    etag=answer.headers["etag"] or "",
                    body=answer.read(),
                )
        except OSError as error:
            if time.monotonic() > deadline:
                raise BenchError(f"{url} does not answer: {error}") from error
            time.sleep(0.05)


def control(url: str, token: str, path: str, content: dict[str, Any]) -> dict[str, Any]:
    """One POST to the control API."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(url + path, json.dumps(content).encode(), headers, method="POST")
    with _NO_PROXY.open(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
        return found
