"""libvirt's own test driver: domains without machines, which do at once whatever they are told."""

from __future__ import annotations

import importlib.util
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from forewarn.actuators.libvirt_connection import load_libvirt

__all__ = ["NEEDS_LIBVIRT", "URI", "Hypervisor", "domain_xml", "hypervisor"]

URI = "test:///default"
"""The same domains for every connection of this process, as long as one is open."""

NEEDS_LIBVIRT = pytest.mark.skipif(
    importlib.util.find_spec("libvirt") is None,
    reason="needs libvirt's library for Python: apt-get install libvirt-dev pkg-config gcc python3-dev, "
    "pip install 'forewarn[libvirt]'",
)


def domain_xml(name: str, metadata: str = "", *, mac: str = "") -> str:
    """A domain of the test driver."""
    interface = f"<devices><interface type='user'><mac address='{mac}'/></interface></devices>" if mac else ""
    return (
        f"<domain type='test'><name>{name}</name><uuid>{uuid.uuid4()}</uuid><metadata>{metadata}</metadata>"
        f"<memory unit='MiB'>4096</memory><vcpu>2</vcpu><os><type>hvm</type></os>{interface}</domain>"
    )


class Hypervisor:
    """What a test sees of it, over a connection of its own.

    Attributes:
        events: Lifecycle events, each as VM and number.
    """

    def __init__(self, connect: Any, library: Any) -> None:  # noqa: ANN401 - the library has no types
        self.connect = connect
        self.library = library
        self.events: list[tuple[str, int]] = []

    def define(self, *names: str, is_running: bool = True) -> None:
        """Have domains, persistent ones."""
        for name in names:
            domain = self.connect.defineXML(domain_xml(name))
            if is_running:
                domain.create()

    def domain(self, name: str) -> Any:  # noqa: ANN401 - the library has no types
        """One of them, as it is now."""
        return self.connect.lookupByName(name)

    def state(self, name: str) -> str:
        """running, paused or off."""
        library = self.library
        words = {library.VIR_DOMAIN_RUNNING: "running", library.VIR_DOMAIN_PAUSED: "paused"}
        return words.get(self.domain(name).state()[0], "off")

    def count(self, name: str, event: int) -> int:
        """How often that happened."""
        return self.events.count((name, event))


@contextmanager
def hypervisor(uri: str = URI) -> Iterator[Hypervisor]:
    """An empty one, watched."""
    library = load_libvirt()
    connect = library.open(uri)
    made = Hypervisor(connect, library)
    for domain in connect.listAllDomains():
        is_persistent = domain.isPersistent()  # what a test has left behind may not be
        if domain.isActive():
            domain.destroy()
        if is_persistent:
            domain.undefine()
    number = connect.domainEventRegisterAny(
        None,
        library.VIR_DOMAIN_EVENT_ID_LIFECYCLE,
        lambda _connect, domain, event, _detail, _opaque: made.events.append((domain.name(), event)),
        None,
    )
    try:
        yield made
    finally:
        connect.domainEventDeregisterAny(number)
        connect.close()
