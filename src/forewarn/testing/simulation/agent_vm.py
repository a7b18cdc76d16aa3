"""A VM with an agent: the real agent and its real HTTP client, with simulated steps and disk."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from http import HTTPStatus

from forewarn.agent.agent import Agent
from forewarn.agent.codec import decode_json, encode_json
from forewarn.agent.configuration import Configuration
from forewarn.agent.record import EventRecord
from forewarn.agent.rule import EventStep
from forewarn.agent.state import AgentState
from forewarn.agent.steps import Remember
from forewarn.client import AsyncClient, Pace
from forewarn.client.exchange import HttpAnswer, HttpRequest
from forewarn.client.transport import AsyncHttpTransport
from forewarn.testing.simulation.agent_group import AgentGroup
from forewarn.testing.simulation.vm import SimulatedVm
from forewarn.wire.document import NoDocument, decode_document
from forewarn.wire.imds import decode_approval

__all__ = ["AgentVm"]


class AgentVm(SimulatedVm):
    """A VM in which Forewarn's agent runs.

    Attributes:
        agent: The agent that runs; None if there is none.
    """

    def configure(self, configuration: Configuration, pace: Pace, group: AgentGroup) -> None:
        """Configure the agent; before the first start."""
        self.agent: Agent | None = None
        self._group = group
        self._configuration = configuration
        self._pace = pace

    @property
    def is_at_rest(self) -> bool:
        """True if the agent runs and has nothing left to do."""
        return self.is_running and self.agent is not None and not self.agent.records

    async def run(self) -> None:
        """Run the agent."""
        transport = _ObservedTransport(self)
        exchange = self._group.make_exchange(self._configuration.together)
        async with AsyncClient(transport=transport, pace=self._pace, chance=self.rng.random) as client:
            agent = self.agent = Agent(
                self._configuration,
                client=client,
                clock=self.clock,
                steps=_Steps(self),
                storage=_Storage(self),
                fallback_name=self.name,
                reports=exchange,
            )
            if exchange is None:
                await agent.run()
                return
            await exchange.open(agent)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(agent.run())
                tasks.create_task(exchange.run())

    def on_kill(self) -> None:
        """Forget the agent."""
        super().on_kill()
        self.agent = None

    def retry_failed_recoveries(self) -> None:
        """Do what a person would who repairs the cause: have failed recoveries run again."""
        if self.agent is None:
            return
        for record in self.agent.records:
            if record.has_failed(EventStep.RECOVER) or record.has_failed(EventStep.CANCELED):
                with suppress(LookupError):
                    self.agent.retry_recovery(record.event.id)


class _ObservedTransport:
    """The agent's own transport; documents and accepted approvals are noted in the trace."""

    def __init__(self, vm: AgentVm) -> None:
        self._vm = vm
        self._transport = AsyncHttpTransport("http://169.254.169.254")
        self._shown = b""

    async def send(self, request: HttpRequest) -> HttpAnswer:
        """Send one request."""
        answer = await self._transport.send(request)
        if "scheduledevents" not in request.path:
            return answer
        if answer.status >= HTTPStatus.BAD_REQUEST:
            self._vm.note("refused", method=request.method, status=answer.status)
        if answer.status != HTTPStatus.OK:
            return answer
        if request.method == "POST":
            for event_id in decode_approval(request.body, 1000):
                self._vm.note("approved", event=event_id)
        elif answer.body != self._shown:
            self._shown = answer.body
            with suppress(NoDocument):
                document = decode_document(answer.body)
                events = {e.id: [e.status, sorted(e.resources)] for e in document.events}
                self._vm.note("document", incarnation=document.incarnation, events=events)
        return answer

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()


class _Storage:
    """`StateStorage` on the VM's disk."""

    def __init__(self, vm: AgentVm) -> None:
        self._vm = vm

    def load(self) -> AgentState:
        return decode_json(self._vm.disk, AgentState) if self._vm.disk else AgentState()

    def save(self, state: AgentState) -> None:
        self._vm.write(encode_json(state))


class _Steps:
    """`StepExecutor` whose steps are the VM's."""

    def __init__(self, vm: AgentVm) -> None:
        self._vm = vm

    async def run(self, record: EventRecord, step: EventStep, vm: str, save_memory: Remember, reason: str = "") -> str:
        """Take some seconds; see `StepExecutor.run`."""
        del vm, save_memory, reason
        await self._vm.run_step(step, record.event.id)
        return ""
