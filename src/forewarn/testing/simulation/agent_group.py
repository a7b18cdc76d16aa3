"""Agreement between the agents of an availability set: which of them approves an event that names several VMs."""

from __future__ import annotations

import random
from collections.abc import Mapping

from forewarn.agent.agreement import TogetherSettings
from forewarn.agent.peer_exchange import PeerExchange

__all__ = ["AgentGroup"]

_GROUPED = 0.4
"""Share of the worlds in which the VMs of the availability set share a host, so that events name several of them."""

_PORT = 9470
_SECRET = b"the secret of all agents in the simulation"
_MODES = ("all-prepared", "all-prepared", "leader", "each", "primary")


class AgentGroup:
    """Agreement between the agents of one availability set.

    Args:
        rng: Draws whether the VMs share a host, and the mode.
        addresses: Address of each of its VMs, by name.
        has_one_host: True if the cluster has only one host.

    Attributes:
        mode: Mode of the agents, as in `TogetherSettings`; ``""`` if no event names several VMs.
    """

    def __init__(self, rng: random.Random, addresses: Mapping[str, str], *, has_one_host: bool) -> None:
        is_grouped = rng.random() < _GROUPED
        self.mode = rng.choice(_MODES) if is_grouped else "leader" if has_one_host else ""
        self._addresses = addresses

    def make_settings(self, vm: str) -> TogetherSettings:
        """Return the settings of a VM's agent."""
        is_first = vm == next(iter(self._addresses))
        match self.mode:
            case "all-prepared":
                return TogetherSettings(
                    mode="all-prepared",
                    listen=f"{self._addresses[vm]}:{_PORT}",
                    peers={name: f"http://{address}:{_PORT}" for name, address in self._addresses.items()},
                    secret_file="in the simulation",  # noqa: S106 - not a secret
                )
            case "primary":
                return TogetherSettings(mode="primary" if is_first else "secondary")
            case "each":
                return TogetherSettings(mode="each")
            case _:
                return TogetherSettings()

    def make_exchange(self, settings: TogetherSettings) -> PeerExchange | None:
        """Return the exchange between the agents; None if the mode needs none."""
        return PeerExchange(settings, _SECRET) if settings.mode == "all-prepared" else None
