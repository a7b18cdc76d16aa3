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
from forewarn.testing.simulation.machine_clock import MachineClock
from forewarn.testing.simulation.network import Network, Node
from forewarn.testing.simulation.trace import Trace
from forewarn.testing.simulation.virtual_loop import SimulatedProcess

__all__ = ["CONTROL_PORT", "Replica"]

CONTROL_PORT = 8170
_METADATA_PORT = 8169


class Replica:
    """One replica, which may be killed and started again.

    Attributes:
        link: Its connection to the database.
        clock: Clock of its machine.
    """

    def __init__(  # noqa: PLR0913 - its parts
        self,
        node: Node,
        network: Network,
        database: Database,
        link: LinkState,
        clock: MachineClock,
        actuator: Actuator,
        trace: Trace,
        state_dir: Path,
    ) -> None:
        self.name = node.name
        self.link = link
        self.clock = clock
        self._node = node
        self._network = network
        self._database = database
        self._actuator = actuator
        self._trace = trace
        self._state_dir = state_dir
        self._process: SimulatedProcess | None = None

    @property
    def is_running(self) -> bool:
        """True while its process is alive."""
        return self._process is not None and self._process.is_alive

    def start(self) -> None:
        """Start its process, unless it runs."""
        if self.is_running:
            return
        self._trace.note(self.name, "start")
        self._process = SimulatedProcess(self.name, self._node, self.clock)
        self._process.start(self._run())

    def kill(self, *, is_power_loss: bool = False) -> None:
        """Kill its process."""
        if self._process is not None and self._process.is_alive:
            self._trace.note(self.name, "kill", power=is_power_loss)
            self._process.kill(is_power_loss=is_power_loss)

    async def _run(self) -> None:
        settings = Settings(
            control_listen=f"{self._node.address}:{CONTROL_PORT}",
            metadata_listen=f"{self._node.address}:{_METADATA_PORT}",
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
            self._trace.note(self.name, "ready")
            await asyncio.get_running_loop().create_future()

    @contextmanager
    def _bind(self, host: str, port: int) -> Iterator[socket.socket]:
        sock = self._network.listen(self._node, host, port)
        try:
            yield cast("socket.socket", sock)
        finally:
            sock.close()
