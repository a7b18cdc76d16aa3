"""A machine of the simulation with one process, which may be killed and started again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from forewarn.testing.simulation.machine_clock import MachineClock
from forewarn.testing.simulation.network import Network, Node
from forewarn.testing.simulation.trace import Trace
from forewarn.testing.simulation.virtual_loop import SimulatedProcess

__all__ = ["Machine"]


class Machine(ABC):
    """A machine; what its process does is `run` of a subclass.

    Args:
        node: Its place on the network.
        network: Network.
        clock: Its clock.
        trace: Trace of the run.

    Attributes:
        name: Name for the trace.
        is_off: True while it cannot be started.
    """

    def __init__(self, node: Node, network: Network, clock: MachineClock, trace: Trace) -> None:
        self.name = node.name
        self.node = node
        self.network = network
        self.clock = clock
        self.trace = trace
        self.is_off = False
        self._process: SimulatedProcess | None = None

    @property
    def is_running(self) -> bool:
        """True while its process is alive."""
        return self._process is not None and self._process.is_alive

    def start(self) -> None:
        """Start its process, unless it runs or is off."""
        if self.is_running or self.is_off:
            return
        self.note("start")
        process = self._process = SimulatedProcess(self.name, self.node, self.clock)
        process.on_failure = self._end
        process.start(self.run())

    def kill(self, *, is_power_loss: bool = False) -> None:
        """Kill its process like ``kill -9``, or with the whole machine."""
        if self._process is not None and self._process.is_alive:
            self.note("kill", power=is_power_loss)
            self._process.kill(is_power_loss=is_power_loss)
            self.on_kill()

    def halt(self) -> None:
        """Stop its process like ``kill -STOP``, if it runs."""
        if self._process is not None and self._process.is_alive:
            self.note("halt")
            self._process.halt()

    def resume(self) -> None:
        """Let its process go on, if it was halted."""
        if self._process is not None:
            self._process.resume()

    def _end(self, error: BaseException) -> None:
        """Note that the process has failed; a supervisor would start it again."""
        self.note("failed", error=f"{type(error).__name__}: {error}"[:300])
        assert self._process is not None  # noqa: S101 - it has just ended
        self._process.kill(is_power_loss=False)
        self.on_kill()

    @abstractmethod
    async def run(self) -> None:
        """Do what its process does, until it is killed."""

    def on_kill(self) -> None:  # noqa: B027 - not every machine holds something
        """Forget what the process held."""

    def note(self, kind: str, **details: Any) -> None:  # noqa: ANN401 - JSON
        """Note a fact about it."""
        self.trace.note(self.name, kind, **details)
