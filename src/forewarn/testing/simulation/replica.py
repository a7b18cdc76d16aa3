"""A replica of the control plane: the real service, on the simulated network and database."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import cast

from forewarn.actuators import Actuator
from forewarn.config import Settings
from forewarn.server.service import Service
from forewarn.testing.simulation.database import Database, LinkState, ReplicaStore
from forewarn.testing.simulation.machine import Machine

__all__ = ["CONTROL_PORT", "Replica"]

CONTROL_PORT = 8170
_METADATA_PORT = 8169


class Replica(Machine):
    """One replica of the control plane.

    Attributes:
        link: Its connection to the database.
    """

    def prepare(self, database: Database, link: LinkState, actuator: Actuator, state_dir: Path) -> None:
        """Set up what its processes share; before the first start."""
        self.link = link
        self._database = database
        self._actuator = actuator
        self._state_dir = state_dir

    async def run(self) -> None:
        """Run the service."""
        settings = Settings(
            control_listen=f"{self.node.address}:{CONTROL_PORT}",
            metadata_listen=f"{self.node.address}:{_METADATA_PORT}",
            state_dir=self._state_dir,
            insecure=True,
            metadata_process="shared",
            history_retention=timedelta(days=30),
        )
        service = Service(
            settings,
            store=ReplicaStore(self._database, self.link),
            clock=self.clock,
            actuator=self._actuator,
            bind=self._bind,
        )
        async with service.running():
            self.note("ready")
            await asyncio.get_running_loop().create_future()

    @contextmanager
    def _bind(self, host: str, port: int) -> Iterator[socket.socket]:
        sock = self.network.listen(self.node, host, port)
        try:
            yield cast("socket.socket", sock)
        finally:
            sock.close()
