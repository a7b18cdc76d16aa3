"""VMs and an operator that ask a `forewarn serve` over HTTP, and the processes in which it answers VMs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil

from tests.support.processes import Served, wait_for
from tests.support.spans import GUARD_S

__all__ = ["OPENED", "PATH", "Vm", "halted", "metric", "operator", "raw_post", "schedule", "workers_of"]

PATH = "/metadata/scheduledevents?api-version=2020-07-01"

OPENED = ExitStack()
"""Connections of VMs, for a fixture to close: they end with the test, whatever becomes of it."""


class Vm:
    """A VM that asks from its own address, on one connection."""

    def __init__(self, service: Served, address: str) -> None:
        self.address = address
        transport = httpx.HTTPTransport(local_address=address)
        headers = {"metadata": "true"}
        self.http = httpx.Client(base_url=service.metadata_url, transport=transport, headers=headers, timeout=GUARD_S)
        OPENED.callback(self.http.close)

    def get(self, **headers: str) -> httpx.Response:
        return self.http.get(PATH, headers=headers)

    def document(self, **headers: str) -> dict[str, Any]:
        answer = self.get(**headers)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    @property
    def events(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.document()["Events"]
        return found

    @property
    def statuses(self) -> list[str]:
        return [each["EventStatus"] for each in self.events]

    def approve(self, event_id: str) -> int:
        return self.http.post(PATH, json={"StartRequests": [{"EventId": event_id}]}).status_code


def raw_post(service: Served, address: str, event_id: str) -> socket.socket:
    """Send a whole approval from that address; its answer is for the caller to read."""
    place = urlsplit(service.metadata_url)
    sock = socket.create_connection((place.hostname, place.port), source_address=(address, 0), timeout=GUARD_S)
    OPENED.callback(sock.close)
    body = json.dumps({"StartRequests": [{"EventId": event_id}]})
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nMetadata: true\r\nContent-Length: {len(body)}\r\n\r\n"
    sock.sendall((head + body).encode())
    return sock


def workers_of(service: Served) -> list[psutil.Process]:
    """Return the processes that answer VMs."""
    return [p for p in psutil.Process(service.process.pid).children() if "forewarn.endpoint" in p.cmdline()]


@contextmanager
def halted(pid: int) -> Iterator[None]:
    """Halt a process until the block ends."""
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def operator(service: Served, folder: Path) -> httpx.Client:
    """Return a client of the control API with the operator's token in that folder."""
    token = (folder / "operator.token").read_text().strip()
    return httpx.Client(base_url=service.control_url, headers={"authorization": f"Bearer {token}"}, timeout=GUARD_S)


def schedule(http: httpx.Client, *vms: str) -> str:
    """Schedule a freeze of these VMs; return the id of the first maintenance."""
    answer = http.post("/v1/maintenance", json={"vms": list(vms), "type": "Freeze"})
    assert answer.status_code == 201, answer.text
    id_: str = answer.json()["items"][0]["id"]
    return id_


def metric(http: httpx.Client, name: str) -> float:
    """Return the value of a metric, named with its labels."""
    match = re.search(rf"^{re.escape(name)} (\S+)$", http.get("/metrics").text, re.MULTILINE)
    assert match is not None, name
    return float(match[1])
