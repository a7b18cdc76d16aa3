"""Parts of a world that a caller replaces with their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forewarn.actuators import Actuator
from forewarn.testing.simulation.handler_vm import Handler
from forewarn.testing.simulation.hypervisor import Hypervisor

__all__ = ["Parts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts that a caller replaces; None keeps Forewarn's own.

    Attributes:
        handler: Runs in each VM, instead of the agent.
        make_actuator: Makes the actuator of a replica, again each time the replica starts.
    """

    handler: Handler | None = None
    make_actuator: Callable[[Hypervisor], Actuator] | None = None
