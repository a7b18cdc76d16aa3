"""A host, its two guests, a control plane and an endpoint: everything real, nothing on this machine's own network."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guests.guest import FORGED, SHARED, Guest, define
from tests.guests.host import Host, hosting
from tests.guests.operating import declare, endpoint
from tests.support.processes import Served, served


@pytest.fixture
def host() -> Iterator[Host]:
    with hosting() as made:
        yield made


@pytest.fixture
def guests(host: Host) -> Iterator[tuple[Guest, Guest]]:
    """web-0 and web-1, not started yet. By the inventory, the address that both have is web-0's."""
    web_0 = Guest(host, "web-0", "52:54:00:00:00:10", (SHARED, FORGED))
    web_1 = Guest(host, "web-1", "52:54:00:00:00:11")
    define(host, web_0, web_1)
    yield web_0, web_1
    for guest in (web_0, web_1):
        sys.stdout.write(f"\n--- console of {guest.name}\n{guest.console}")  # shown where the test has failed


@pytest.fixture
def service(host: Host, guests: object, tmp_path: Path) -> Iterator[Served]:
    """`forewarn serve` and `forewarn endpoint` on that host, which know it from libvirt."""
    settings = {
        "FOREWARN_ACTUATOR": "libvirt",
        "FOREWARN_LIBVIRT_URI": host.uri,
        "FOREWARN_LIBVIRT_SHUTDOWN_TIMEOUT": "2m",
    }
    with served(tmp_path, prefix=host.prefix, settings=settings) as running:
        declare(host, running)
        with endpoint(running, tmp_path):
            yield running
        # Shown where the test has failed, as below: how far the maintenance came, and what became of the guests.
        sys.stdout.write(f"\n--- domains\n{host.virsh('list', '--all')}")
        for entry in running.forewarn("audit-log"):
            sys.stdout.write(f"{entry['at']} {entry['kind']} {entry.get('reason')}\n")
    for log in ("serve.log", "endpoint.log"):
        sys.stdout.write(f"\n--- {log}\n{(tmp_path / log).read_text()}")
    for file in (*host.folder.glob("libvirtd.*"), *(host.folder / "var/log/libvirt").rglob("*.log")):
        sys.stdout.write(f"\n--- {file.name}\n{file.read_text()}")
