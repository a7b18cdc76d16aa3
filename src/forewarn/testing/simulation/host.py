"""The endpoint on a hypervisor: its real parts, on the simulated network."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import cast

from forewarn.endpoint import MetadataApp, MetadataServer
from forewarn.endpoint.fault_registry import FaultRegistry
from forewarn.endpoint.traffic import EndpointLimits, Traffic
from forewarn.host.control_plane_client import ControlPlaneClient
from forewarn.host.remote_authority import RemoteAuthority, build_empty_state
from forewarn.testing.simulation.libraries import TLS
from forewarn.testing.simulation.machine import Machine
from forewarn.testing.simulation.publications import note_publications
from forewarn.wire.hostfeed import HostFeedState, parse_line

__all__ = ["METADATA_ADDRESS", "HostEndpoint"]

METADATA_ADDRESS = "169.254.169.254"
_PORT = 80


class HostEndpoint(Machine):
    """`forewarn endpoint` on one host.

    Attributes:
        disk: State as its disk holds it.
    """

    def prepare(self, urls: Sequence[str], token: str) -> None:
        """Set up its connection to the control plane; before the first start."""
        self.disk = b""
        self._urls = urls
        self._token = token

    async def run(self) -> None:
        """Run the endpoint."""
        client = ControlPlaneClient(self.name, self._urls, self._token, TLS)
        state = parse_line(self.disk) if self.disk else build_empty_state(self.name)
        assert isinstance(state, HostFeedState)  # noqa: S101 - written by `_save`
        remote = RemoteAuthority(client, state, self.clock, self._save)
        note_publications(self, remote.feed)
        traffic = Traffic(EndpointLimits(), len(remote.feed.versions), FaultRegistry(self.clock))
        app = MetadataApp(remote, self.clock, traffic, 0.0)
        server = MetadataServer(app, traffic, remote.identity, self.clock)
        sock = self.network.listen(self.node, METADATA_ADDRESS, _PORT)
        await server.start([cast("socket.socket", sock)])
        async with asyncio.TaskGroup() as group:
            group.create_task(remote.watch())
            group.create_task(remote.report_periodically())
            group.create_task(remote.save_updates())

    def _save(self, state: bytes) -> None:
        self.disk = state
