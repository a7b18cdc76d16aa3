"""Who plays: the platform, and three VMs of two tenants that share one host."""

from __future__ import annotations

import json
from dataclasses import dataclass

__all__ = ["CAST", "HOST", "LANES", "PLATFORM", "Vm", "encode_inventory"]

HOST = "host-1"
PLATFORM = "platform"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vm:
    """A VM, and how it behaves.

    Attributes:
        scope: Its availability set; None for a standalone VM.
        address: Where it asks from, by which it is known (R2).
        is_waiting: Whether it holds a long poll (X1); it polls once a second otherwise (R97).
        first_request_s: When it asks for the first time, so that not all ask in the same moment.
        prepares: What it does before it approves.
        preparation_s: How long that takes.
        recovers: What it does when the event is gone.
    """

    name: str
    tenant: str
    scope: str | None = None
    update_domain: int = 0
    address: str
    is_waiting: bool = False
    first_request_s: float
    prepares: str
    preparation_s: float
    recovers: str

    @property
    def asks(self) -> str:
        """How it learns what is new."""
        return "long poll" if self.is_waiting else "polls once a second"

    @property
    def configuration(self) -> str:
        """The rules of its agent, in TOML."""
        prepare = f'prepare = [["sleep", "{self.preparation_s:g}"]]\n' if self.preparation_s else ""
        approve = "when-prepared" if self.preparation_s else "at-once"
        return f'wait = "{20 if self.is_waiting else 0}s"\n\n[[rule]]\n{prepare}approve = "{approve}"\n'

    @property
    def plan(self) -> str:
        """What it does about an event that is announced."""
        return f"{self.prepares} for {self.preparation_s:g} s" if self.preparation_s else self.prepares


CAST = (
    Vm(
        name="WestNO_0",
        tenant="tenant 1, availability set web",
        scope="web",
        address="127.0.0.11",
        first_request_s=0.2,
        prepares="approves at once",
        preparation_s=0,
        recovers="serves again",
    ),
    Vm(
        name="WestNO_1",
        tenant="tenant 1, availability set web",
        scope="web",
        update_domain=1,
        address="127.0.0.12",
        first_request_s=0.5,
        prepares="drains",
        preparation_s=2,
        recovers="takes load again",
    ),
    Vm(
        name="db",
        tenant="tenant 2, standalone",
        address="127.0.0.13",
        is_waiting=True,
        first_request_s=0.7,
        prepares="saves a checkpoint",
        preparation_s=4,
        recovers="resumes",
    ),
)
"""The VMs, in the order of their lanes."""

LANES = (PLATFORM, *(vm.name for vm in CAST))
"""Every lane of the timeline, from the left."""


def encode_inventory() -> str:
    """The inventory file that declares the cast."""
    scopes = dict.fromkeys(vm.scope for vm in CAST if vm.scope is not None)
    return json.dumps(
        {
            "hosts": [{"name": HOST}],
            "scopes": [{"name": name, "kind": "availability-set"} for name in scopes],
            "vms": [
                {
                    "name": vm.name,
                    "host": HOST,
                    "scope": vm.scope,
                    "update_domain": vm.update_domain,
                    "addresses": [vm.address],
                }
                for vm in CAST
            ],
        }
    )
