"""The endpoint on a hypervisor: its real parts, on the simulated network."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from typing import cast

from forewarn.endpoint import MetadataApp, MetadataServer
from forewarn.endpoint.fault_registry import FaultRegistry
from forewarn.endpoint.traffic import EndpointLimits, Traffic
from forewarn.host.control_plane_client import ControlPlaneClient
from forewarn.host.remote_authority import RemoteAuthority, build_empty_state
from forewarn.testing.simulation.machine_clock import MachineClock
from forewarn.testing.simulation.network import Network, Node
from forewarn.testing.simulation.trace import Trace
from forewarn.testing.simulation.virtual_loop import SimulatedProcess

__all__ = ["METADATA_ADDRESS", "TLS", "HostEndpoint"]

METADATA_ADDRESS = "169.254.169.254"
_PORT = 80
# Not used, since the simulation has no TLS; made once, because that takes a tenth of a second.
TLS = ssl.create_default_context()


class HostEndpoint:
    """`forewarn endpoint` on one host, which may be killed and started again."""

    def __init__(  # noqa: PLR0913 - its parts
        self, node: Node, network: Network, clock: MachineClock, trace: Trace, urls: Sequence[str], token: str
    ) -> None:
        self.name = node.name
        self.node = node
        self.clock = clock
        self._network = network
        self._trace = trace
        self._urls = urls
        self._token = token
        self._process: SimulatedProcess | None = None

    @property
    def is_running(self) -> bool:
        """True while its process is alive."""
        return self._process is not None and self._process.is_alive

    def start(self) -> None:
        """Start its process, unless it runs."""
        if not self.is_running:
            self._trace.note(self.name, "start")
            self._process = SimulatedProcess(self.name, self.node, self.clock)
            self._process.start(self._run())

    def kill(self, *, is_power_loss: bool = False) -> None:
        """Kill its process."""
        if self._process is not None and self._process.is_alive:
            self._trace.note(self.name, "kill", power=is_power_loss)
            self._process.kill(is_power_loss=is_power_loss)

    async def _run(self) -> None:
        client = ControlPlaneClient(self.name, self._urls, self._token, TLS)
        remote = RemoteAuthority(client, build_empty_state(self.name), self.clock)
        traffic = Traffic(EndpointLimits(), len(remote.feed.versions), FaultRegistry(self.clock))
        app = MetadataApp(remote, self.clock, traffic, 0.0)
        server = MetadataServer(app, traffic, remote.identity, self.clock)
        sock = self._network.listen(self.node, METADATA_ADDRESS, _PORT)
        await server.start([cast("socket.socket", sock)])
        async with asyncio.TaskGroup() as group:
            group.create_task(remote.watch())
            group.create_task(remote.report_periodically())
            group.create_task(remote.save_updates())
