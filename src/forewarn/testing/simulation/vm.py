"""A VM with an agent: the real agent and its real HTTP client, with simulated steps and disk."""

from __future__ import annotations

import asyncio
import random

from forewarn.agent.agent import Agent
from forewarn.agent.codec import decode_json, encode_json
from forewarn.agent.configuration import Configuration
from forewarn.agent.record import EventRecord
from forewarn.agent.rule import EventStep
from forewarn.agent.state import AgentState
from forewarn.agent.steps import Remember
from forewarn.client import AsyncClient, Pace
from forewarn.errors import HookFailed
from forewarn.testing.simulation.machine_clock import MachineClock
from forewarn.testing.simulation.network import Node
from forewarn.testing.simulation.trace import Trace
from forewarn.testing.simulation.virtual_loop import SimulatedProcess

__all__ = ["SimulatedVm"]


class SimulatedVm:
    """A VM, which may be killed, frozen and started again.

    Attributes:
        disk: State of the agent as its disk holds it.
        failures: Probability that a step fails.
    """

    def __init__(  # noqa: PLR0913 - its parts
        self,
        node: Node,
        configuration: Configuration,
        pace: Pace,
        clock: MachineClock,
        trace: Trace,
        rng: random.Random,
    ) -> None:
        self.name = node.name
        self.node = node
        self.clock = clock
        self.disk = b""
        self.failures = 0.0
        self.agent: Agent | None = None
        self._configuration = configuration
        self._pace = pace
        self._trace = trace
        self._rng = rng
        self._process: SimulatedProcess | None = None

    @property
    def is_running(self) -> bool:
        """True while its agent is alive."""
        return self._process is not None and self._process.is_alive

    def start(self) -> None:
        """Start the agent, unless it runs."""
        if not self.is_running:
            self._trace.note(self.name, "start")
            self._process = SimulatedProcess(self.name, self.node, self.clock)
            self._process.start(self._run())

    def kill(self, *, is_power_loss: bool = False) -> None:
        """Kill the agent, or the whole VM."""
        if self._process is not None and self._process.is_alive:
            self._trace.note(self.name, "kill", power=is_power_loss)
            self._process.kill(is_power_loss=is_power_loss)
            self.agent = None

    async def _run(self) -> None:
        async with AsyncClient("http://169.254.169.254", pace=self._pace, chance=self._rng.random) as client:
            agent = self.agent = Agent(
                self._configuration,
                client=client,
                clock=self.clock,
                steps=_Steps(self.name, self._trace, self._rng, lambda: self.failures),
                storage=_Storage(self),
                fallback_name=self.name,
            )
            await agent.run()


class _Storage:
    """`StateStorage` on the VM's disk."""

    def __init__(self, vm: SimulatedVm) -> None:
        self._vm = vm

    def load(self) -> AgentState:
        return decode_json(self._vm.disk, AgentState) if self._vm.disk else AgentState()

    def save(self, state: AgentState) -> None:
        self._vm.disk = encode_json(state)


class _Steps:
    """`StepExecutor` whose steps take a while, and may fail."""

    def __init__(self, vm: str, trace: Trace, rng: random.Random, failures: object) -> None:
        self._vm = vm
        self._trace = trace
        self._rng = rng
        self._failures = failures

    async def run(self, record: EventRecord, step: EventStep, vm: str, save_memory: Remember, reason: str = "") -> str:
        """Take some seconds; see `StepExecutor.run`."""
        del vm, save_memory, reason
        self._trace.note(self._vm, "step", step=step.value, event=record.event.id)
        how = "stopped"
        try:
            await asyncio.sleep(self._rng.choice([0.0, 0.5, 2.0, 10.0]))
            how = "failed" if self._rng.random() < self._failures() else "done"  # type: ignore[operator]
            if how == "failed":
                raise HookFailed("the step failed")
            return ""
        finally:
            self._trace.note(self._vm, "step-end", step=step.value, event=record.event.id, how=how)
