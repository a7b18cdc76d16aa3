"""A replica of the control plane: the real service, on the simulated network and database."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from forewarn.actuators import Actuator
from forewarn.config.settings import Settings
from forewarn.control import Context, make_control_app
from forewarn.server.service import Service
from forewarn.testing.simulation.database import Database, LinkState, ReplicaStore
from forewarn.testing.simulation.machine import Machine
from forewarn.testing.simulation.publications import note_publications

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["CONTROL_PORT", "Replica"]

CONTROL_PORT = 8170
_METADATA_PORT = 8169


class Replica(Machine):
    """One replica of the control plane.

    Attributes:
        link: Its connection to the database.
    """

    def prepare(
        self, database: Database, link: LinkState, make_actuator: Callable[[], Actuator], state_dir: Path
    ) -> None:
        """Set up what its processes share; before the first start."""
        self.link = link
        self._database = database
        self._make_actuator = make_actuator
        self._settings = Settings(
            control_listen=f"{self.node.address}:{CONTROL_PORT}",
            metadata_listen=f"{self.node.address}:{_METADATA_PORT}",
            state_dir=state_dir,
            insecure=True,
            metadata_process="shared",
            history_retention=timedelta(days=30),
            actuator_attempts_max=6,  # the default waits for 20 minutes until work that was lost has failed
        )

    async def run(self) -> None:
        """Run the service."""
        service = Service(
            self._settings,
            store=ReplicaStore(self._database, self.link),
            clock=self.clock,
            actuator=self._make_actuator(),
            bind=self._bind,
            make_app=_use_shared_app,
        )
        note_publications(self, service.feed)
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


_CONTEXT: ContextVar[Context] = ContextVar("context of the replica")


class _CurrentContext:
    """The `Context` of the replica whose process asks for it."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the context has
        return getattr(_CONTEXT.get(), name)


@cache
def _make_shared_app() -> ASGIApp:
    # FastAPI prepares each route at its first request, which would take half of the time of a simulation if each
    # replica had its own app.
    return make_control_app(cast("Context", _CurrentContext()))


def _use_shared_app(context: Context, _telemetry: object) -> ASGIApp:
    _CONTEXT.set(context)
    return _make_shared_app()
