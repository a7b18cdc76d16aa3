"""Hosts that two tenants share, with VMs at addresses of their own, that ask and approve as real ones do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EventType, Maintenance
from tests.support.service import Running
from tests.support.wire import Wire, approval, get, post

__all__ = ["Estate", "Tenant", "announce", "estates", "write_inventory"]

_HOSTS = 60
_ASK_EVERY_S = 0.2


@dataclass(frozen=True)
class Tenant:
    """Who approves for itself: a scope, or a VM that stands alone.

    Attributes:
        name: Of the scope or the VM.
        vms: Names of its VMs on this host.
        address: Of its first VM.
    """

    name: str
    vms: tuple[str, ...]
    address: str

    def ask(self, service: Running) -> list[dict[str, Any]]:
        """What it is shown now."""
        with Wire(service.address, self.address) as wire:
            answer = wire.ask(get())
        assert answer.status == 200
        events: list[dict[str, Any]] = answer.json["Events"]
        return events

    def approve(self, service: Running) -> None:
        """Approve all that it is shown, as its handler would."""
        events = self.ask(service)
        assert events
        with Wire(service.address, self.address) as wire:
            answer = wire.ask(post(approval(*(event["EventId"] for event in events))))
        assert answer.status == 200

    @contextmanager
    def asking(self, service: Running) -> Iterator[None]:
        """It asks again and again until the block ends."""
        is_over = threading.Event()

        def ask() -> None:
            with Wire(service.address, self.address) as wire:
                while not is_over.wait(_ASK_EVERY_S):
                    wire.ask(get())

        self.ask(service)
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


@dataclass(frozen=True)
class Estate:
    """A host, and the two tenants that share it."""

    host: str
    web: Tenant
    db: Tenant


def announce(service: Running, estate: Estate, event_type: EventType = EventType.FREEZE, **more: Any) -> Maintenance:  # noqa: ANN401 - fields of `MaintenanceRequest`
    """A maintenance of that host."""
    request = MaintenanceRequest(**{"cause": "host-maintenance", "type": event_type, "hosts": (estate.host,), **more})
    return service.run(service.service.engine.maintenances.schedule(request, actor="operator:test"))[0]


def _estate(number: int) -> Estate:
    base = 3 * (number % 80) + 1
    subnet = 50 + number // 80
    web = Tenant(f"web-{number}", (f"web-{number}-a", f"web-{number}-b"), f"127.0.{subnet}.{base}")
    return Estate(f"rack-{number}", web, Tenant(f"db-{number}", (f"db-{number}",), f"127.0.{subnet}.{base + 2}"))


def estates() -> Iterator[Estate]:
    """Each once."""
    return iter([_estate(number) for number in range(_HOSTS)])


def write_inventory(folder: Path, policy: dict[str, Any] | None = None) -> Path:
    """All of them, as a file; with that policy of each scope."""
    hosts: list[dict[str, Any]] = []
    scopes: list[dict[str, Any]] = []
    vms: list[dict[str, Any]] = []
    for each in estates():
        hosts.append({"name": each.host})
        scopes.append({"name": each.web.name, "kind": "availability-set", "policy": policy or {}})
        first, second = each.web.vms
        front, _, last = each.web.address.rpartition(".")
        shared = {"host": each.host, "scope": each.web.name}
        vms.append({"name": first, "addresses": [each.web.address], **shared})
        vms.append({"name": second, "addresses": [f"{front}.{int(last) + 1}"], "update_domain": 0, **shared})
        vms.append({"name": each.db.name, "addresses": [each.db.address], "host": each.host})
    path = folder / "estates.json"
    path.write_text(json.dumps({"hosts": hosts, "scopes": scopes, "vms": vms}))
    return path
