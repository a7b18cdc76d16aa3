"""The VMs of the simulation: two hosts with tenants, an availability set, a scale set, one on Spot, two alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from forewarn.core.model import NotificationProfile, VirtualMachine
from tests.support.simulated import Simulated
from tests.support.world import minutes
from tests.unit.core.builders import availability_set, scale_set, vm

__all__ = ["CAUSE_VM", "SCOPES", "VMS", "at", "live", "seconds"]

SCOPES = (
    availability_set("web"),
    replace(
        scale_set("fleet", notifies_of_os_image=True),
        terminate_notification=NotificationProfile(enable=True, not_before_timeout=minutes(9)),
    ),
)
_PLAIN = (
    vm("web-0", host="host-1", scope="web", fault_domain=0),
    vm("web-1", host="host-2", scope="web", fault_domain=1, update_domain=1),
    vm("fleet-0", host="host-2", scope="fleet", fault_domain=0),
    vm("fleet-1", host="host-3", scope="fleet", fault_domain=1),
    vm("db", host="host-1"),
    vm("spot", host="host-3", priority="Spot"),
    vm("lone", host="host-3"),
)


def at(name: str) -> str:
    """Where that VM calls from."""
    number = next(n for n, each in enumerate(_PLAIN) if each.name == name)
    return f"10.9.0.{number + 1}"


VMS: tuple[VirtualMachine, ...] = tuple(replace(each, addresses=(at(each.name),)) for each in _PLAIN)

CAUSE_VM = {
    "live-migration": "db",
    "host-maintenance": "web-0",
    "platform-redeploy": "lone",
    "predicted-failure": "db",
    "user-restart": "web-1",
    "user-redeploy": "db",
    "spot-eviction": "spot",
    "scale-set-delete": "fleet-0",
    "os-upgrade": "fleet-1",
    "reimage": "fleet-0",
}
"""A VM on which each cause makes an event."""


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


async def live(made: Simulated, span: timedelta, *names: str) -> None:
    """Let time pass while those VMs ask often enough to stay enabled."""
    step = timedelta(hours=8)
    while span > timedelta(0):
        await made.advance(min(step, span))
        span -= step
        for name in names:
            await made.get(name)
