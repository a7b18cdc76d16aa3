"""A database with many VMs, written without the service: what it finds when it starts."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from forewarn.core.decision import Changes
from forewarn.core.inventory import Inventory
from forewarn.core.model import Audience, Host, VirtualMachine
from forewarn.store import SqlStore

__all__ = ["VMS_PER_HOST", "host_name", "vm_name", "write_fleet"]

VMS_PER_HOST = 20


def vm_name(number: int) -> str:
    """The name of a VM, counted from 0."""
    return f"vm-{number:06}"


def host_name(number: int) -> str:
    """The name of a host, counted from 0."""
    return f"host-{number:05}"


def write_fleet(folder: Path, count: int) -> str:
    """So many standalone VMs, twenty to a host, each with an address and each of them asking already.

    Returns:
        The URL of the database.
    """
    url = f"sqlite:///{folder}/fleet.db"
    now = datetime.now(UTC)
    hosts = tuple(Host(name=host_name(number)) for number in range(-(-count // VMS_PER_HOST)))
    vms = tuple(
        VirtualMachine(
            name=vm_name(number),
            host=host_name(number // VMS_PER_HOST),
            addresses=(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",),
        )
        for number in range(count)
    )
    audiences = {
        f"vm:{vm.name}": Audience(key=f"vm:{vm.name}", enabled_at=now, epoch=1, incarnation=1, active_until=now)
        for vm in vms
    }
    store = SqlStore(url)
    try:
        with store.write() as transaction:
            transaction.replace_inventory(Inventory(hosts=hosts, vms=vms), "benchmark")
            transaction.save(Changes(audiences=audiences))
    finally:
        store.close()
    return url
