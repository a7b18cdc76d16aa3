"""The cast of the demo: the platform, and three VMs of two tenants on one host."""

from __future__ import annotations

import json
from dataclasses import dataclass

__all__ = ["CAST", "HOST", "LANES", "PLATFORM", "DemoVm", "encode_inventory"]

HOST = "host-1"
PLATFORM = "platform"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoVm:
    """A VM and its behaviour.

    Attributes:
        scope: Its availability set; None for a standalone VM.
        address: Source address of its requests, which identifies it (R2).
        uses_long_poll: True if it uses long polls (X1); otherwise it polls once a second (R97).
        first_request_s: Delay before its first request, so that the VMs do not all ask at the same moment.
        prepares: Action before approval.
        preparation_s: Duration of that action.
        recovers: Action once the event is gone.
    """

    name: str
    tenant: str
    scope: str | None = None
    update_domain: int = 0
    address: str
    uses_long_poll: bool = False
    first_request_s: float
    prepares: str
    preparation_s: float
    recovers: str

    @property
    def poll_method(self) -> str:
        """Method by which it receives changes, in words."""
        return "long poll" if self.uses_long_poll else "polls once a second"

    @property
    def configuration(self) -> str:
        """The configuration of its agent, in TOML."""
        prepare = f'prepare = [["sleep", "{self.preparation_s:g}"]]\n' if self.preparation_s else ""
        approve = "when-prepared" if self.preparation_s else "at-once"
        return f'wait = "{20 if self.uses_long_poll else 0}s"\n\n[[rule]]\n{prepare}approve = "{approve}"\n'

    @property
    def reaction(self) -> str:
        """Reaction to an announced event, in words."""
        return f"{self.prepares} for {self.preparation_s:g} s" if self.preparation_s else self.prepares


CAST = (
    DemoVm(
        name="WestNO_0",
        tenant="tenant 1, availability set web",
        scope="web",
        address="127.0.0.11",
        first_request_s=0.2,
        prepares="approves at once",
        preparation_s=0,
        recovers="serves again",
    ),
    DemoVm(
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
    DemoVm(
        name="db",
        tenant="tenant 2, standalone",
        address="127.0.0.13",
        uses_long_poll=True,
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
    """Return the inventory file that declares the cast."""
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
