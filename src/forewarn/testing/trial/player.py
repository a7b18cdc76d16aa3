"""Player of scenarios: runs each step against a complete service, on virtual time or on a running clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from forewarn.client import AsyncClient, EndpointError, Pace
from forewarn.clock import Clock, VirtualClock
from forewarn.errors import ForewarnError
from forewarn.testing.lab import ACTOR, Lab
from forewarn.testing.scenario.scenario_loader import Scenario
from forewarn.testing.scenario.scenario_model import (
    ApproveStep,
    DeferStep,
    ExpectStep,
    ExtendStep,
    FaultStep,
    HostStep,
    ImpactStep,
    ScheduleStep,
    StepTime,
    TimelineStep,
    VmStep,
)
from forewarn.testing.scenario.scenario_timeline import describe_step
from forewarn.testing.trial.handler_coordinator import HandlerCoordinator
from forewarn.testing.trial.scenario_expectation import find_difference
from forewarn.testing.trial.scenario_operations import ScenarioOperations
from forewarn.util.ids import SeededIds

__all__ = ["ScenarioPlayer", "StepOutcome", "create_lab"]

_ANSWER_S = 60.0
"""Maximum time that another VM waits for an answer, generous because a machine may be busy."""

_WITHHELD_S = 1.0
"""Maximum time that another VM waits while an answer may be withheld on purpose."""

_LOOK_S = 0.02
_TRIES = 3
"""Number of attempts of a scenario's VM to send an approval."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Outcome of one step.

    Attributes:
        number: Position in the timeline, from 1.
        line: Line in the file.
        at: Time since the beginning when the step was done.
        verb: Action of the step.
        text: Description of the step.
        failure: Reason for its failure; empty on success.
        is_expectation: True if the step only checks something.
        file: The included file that `line` refers to; empty for the scenario's own file.
    """

    number: int
    line: int
    at: timedelta
    verb: str
    text: str
    failure: str = ""
    is_expectation: bool = False
    file: str = ""


def create_lab(scenario: Scenario, clock: Clock | None = None) -> Lab:
    """Return the service for a scenario, on that clock or on virtual time; no VM has sent a request yet.

    Its first events get the ids that the scenario gives.
    """
    given, seeded = list(scenario.event_ids), SeededIds()

    def new_id(kind: str) -> str:
        return given.pop(0) if kind == "event" and given else seeded(kind)

    return Lab(scenario.inventory, clock=clock, is_enabled=False, new_id=new_id, **scenario.settings)


class _PlaybackStopped(Exception):
    """The rest of the scenario cannot be played."""


class ScenarioPlayer:
    """Plays one scenario once.

    Args:
        lab: Running service to play it against.
        on_step: Called after each step with its outcome.
        on_wait: Called before each step, with its number and description.
        coordinator: Handler that runs beside the scenario; None if the scenario polls and approves for its VM as well.
    """

    def __init__(
        self,
        scenario: Scenario,
        lab: Lab,
        on_step: Callable[[StepOutcome], None] = lambda _outcome: None,
        *,
        on_wait: Callable[[int, str], None] = lambda _number, _text: None,
        coordinator: HandlerCoordinator | None = None,
    ) -> None:
        self._scenario = scenario
        self._lab = lab
        self._on_step = on_step
        self._on_wait = on_wait
        self._coordinator = coordinator
        self._began = lab.clock.now()
        self._operations = ScenarioOperations(lab)
        self._clients: dict[str, AsyncClient] = {}

    async def play(self) -> list[StepOutcome]:
        """Carry out all steps; stop at one that cannot be carried out, but continue after a failed expectation."""
        self._began = self._lab.clock.now()
        outcomes: list[StepOutcome] = []
        try:
            mode = "play" if self._coordinator is None else "try"
            steps = zip(self._scenario.steps, self._scenario.lines, self._scenario.files, strict=True)
            for number, (step, line, file) in enumerate(steps, 1):
                # The number still counts steps of the other mode, so that it stays the position in the file.
                if step.only not in {None, mode}:
                    continue
                text = step.note or describe_step(step)
                self._on_wait(number, text)
                fault, is_over = await self._run_step(step)
                at = self._lab.clock.now() - self._began
                outcome = StepOutcome(
                    number, line, at, step.action_name, text, fault, is_expectation=step.expect is not None, file=file
                )
                outcomes.append(outcome)
                self._on_step(outcome)
                if is_over:
                    break
            else:
                await self._wait_for_reaction()  # to the last change as well
        finally:
            for client in self._clients.values():
                await client.close()
        return outcomes

    async def _run_step(self, step: TimelineStep) -> tuple[str, bool]:
        """Carry out one step; return the reason for its failure, and True if nothing can follow."""
        if self._coordinator is not None and not self._coordinator.is_running():
            return "the handler has ended", True
        try:
            await self._wait_for_start(step)
            return await self._carry_out_step(step), False
        except (_PlaybackStopped, ForewarnError) as stop:
            return str(stop), True

    # Time

    async def _wait_for_start(self, step: TimelineStep) -> None:
        if isinstance(step.at, StepTime):
            await self._wait_for_reaction()
            since = self._lab.clock.now() if step.at.is_relative else self._began
            await self._advance_to(since + step.at.span)
        elif step.after is not None:
            what, operation = step.after.transition, step.after.operation
            limit = self._lab.clock.now() + step.within

            async def has_come() -> bool:
                # The step waits for the approval itself, so those that the handler has already sent must count now.
                if what == "approved" and self._coordinator is not None:
                    events = await self._operations.list_events(operation)
                    await self._coordinator.release_approvals({event.id for event in events})
                return await self._operations.has_reached(operation, what)

            if not await self._wait_until(has_come, limit):
                raise _PlaybackStopped(f"{operation} was not {what} within {step.within}")

    async def _advance_to(self, moment: datetime) -> None:
        clock = self._lab.clock
        if not isinstance(clock, VirtualClock):
            await clock.wait_until(moment)
            return
        while True:
            left = max(moment - clock.now(), timedelta(0))
            # Longer steps would let the service disable the scope of a handler that polls in real time (R67).
            span = left if self._coordinator is None else min(left, self._coordinator.count_as_polling())
            await self._lab.advance(span)
            if span == left:
                return

    async def _wait_until(self, is_satisfied: Callable[[], Awaitable[bool]], limit: datetime) -> bool:
        """Let time pass until the condition holds or the limit is reached; return True if it holds."""
        clock = self._lab.clock
        while not await is_satisfied():
            await self._wait_for_reaction(is_satisfied)
            if await is_satisfied():
                return True
            now = clock.now()
            if now >= limit:
                return False
            if isinstance(clock, VirtualClock):
                # Nothing can change before the service's next deadline, so virtual time jumps straight to it.
                deadline = await self._lab.backend.engine.deadlines.next_deadline()
                await self._advance_to(limit if deadline is None else min(max(deadline, now), limit))
            else:
                await asyncio.sleep(_LOOK_S)
        return True

    async def _wait_for_reaction(self, is_satisfied: Callable[[], Awaitable[bool]] | None = None) -> None:
        if self._coordinator is not None:
            await self._coordinator.wait_for_reaction(is_satisfied)

    # Steps

    async def _carry_out_step(self, step: TimelineStep) -> str:  # noqa: C901, PLR0912 - a case for each kind of action
        """Carry out a step; return the reason for its failure, or empty text."""
        action = step.action
        maintenances = self._lab.backend.engine.maintenances
        match action:
            case ExpectStep():
                return await self._check_expectation(action)
            case ApproveStep():
                return await self._approve(action)
            case FaultStep():
                return await self._inject_fault(action)
            case ImpactStep():
                await self._change_operation(action.operation, maintenances.impact, duration_s=action.duration)
            case DeferStep():
                await self._change_operation(action.operation, maintenances.defer, by=action.by, reason="the scenario")
            case ExtendStep():
                change = partial(maintenances.extend, tenant=action.scope)
                await self._change_operation(action.operation, change, by=action.by, reason="the scenario")
            case VmStep() | HostStep() | ScheduleStep():
                await self._operations.begin(step)
            case tuple():
                for vm in action:
                    await self._poll_as_vm(vm)
            case timedelta():
                await self._pass_real_time(action)
            case bool():
                await self._lab.backend.engine.faults.clear(actor=ACTOR)
            case str() if step.start is not None:
                await self._change_operation(action, maintenances.start, reason="the scenario")
            case str() if step.complete is not None:
                await self._change_operation(action, maintenances.complete)
            case str():
                await self._change_operation(action, maintenances.cancel)
        return ""

    async def _change_operation(
        self, operation: str, change: Callable[..., Awaitable[object]], **options: object
    ) -> None:
        """Change each maintenance of an operation."""
        for maintenance_id in self._operations.maintenance_ids[operation]:
            await change(maintenance_id, actor=ACTOR, **options)

    async def _inject_fault(self, fault: FaultStep) -> str:
        coordinator = self._coordinator
        # Read before the fault is injected, or a request that it hits at once would be missed.
        asked = 0 if coordinator is None else coordinator.last_request_number
        await self._lab.backend.engine.faults.inject(
            fault.kind,
            actor=ACTOR,
            vms=fault.vms or (),
            method=fault.method or "",
            count=fault.count,
            rate=fault.rate,
            lasts=fault.lasts,
            delay=fault.delay,
        )
        if coordinator is None or await coordinator.wait_for_fault(fault, asked):
            return ""
        return f"the handler did not poll again after fault {fault.kind}: keep polling, whatever the answer"

    async def _pass_real_time(self, span: timedelta) -> None:
        """Let real time pass for the handler, and none for the scenario."""
        if self._coordinator is not None:
            await self._coordinator.wait_for_reaction()
            await asyncio.sleep(span.total_seconds())

    async def _poll_as_vm(self, vm: str) -> None:
        """Poll as that VM, and ignore failures."""
        if self._coordinator is not None and vm == self._coordinator.vm:
            await self._coordinator.wait_for_first_answer()
            await self._coordinator.wait_for_reaction()
            return
        client = await self._get_client(vm)
        try:
            async with asyncio.timeout(self._answer_timeout_s):
                await client.fetch()
        except (EndpointError, TimeoutError):
            return

    @property
    def _answer_timeout_s(self) -> float:
        backend = self._lab.backend
        is_withheld = any(fault.kind.delay is not None for fault in backend.faults.all)
        return _WITHHELD_S if is_withheld or backend.settings.first_answer_delay else _ANSWER_S

    async def _approve(self, approve: ApproveStep) -> str:
        """Approve, as the VM, the event that it is shown for an operation, or wait until its handler does.

        Returns:
            The complaint about the handler, or empty text.

        Raises:
            _PlaybackStopped: It is shown none, or its approval is not accepted.
        """
        shown = await self._operations.find_shown_event(approve.operation, approve.by)
        if shown is None:
            raise _PlaybackStopped(f"{approve.by} sees no event of {approve.operation} to approve")
        coordinator = self._coordinator
        if coordinator is not None and approve.by == coordinator.vm:
            if await coordinator.wait_for_approval(shown.id):
                return ""
            return f"the handler did not approve {approve.operation} within {coordinator.patience_s:g} s"
        client = await self._get_client(approve.by)
        complaint = ""
        # A fault that the scenario has injected may hit the approval, and every correct client repeats it.
        for _ in range(_TRIES):
            try:
                async with asyncio.timeout(self._answer_timeout_s):
                    await client.approve_once([shown.id])
            except (EndpointError, TimeoutError) as error:
                complaint = str(error) or "no answer in time"
            else:
                return ""
        raise _PlaybackStopped(f"the approval was not accepted: {complaint}")

    async def _get_client(self, vm: str) -> AsyncClient:
        if vm not in self._clients:
            # One attempt only: with retries within a step, the client would never see a fault that occurs once.
            self._clients[vm] = AsyncClient(await self._lab.open_endpoint(vm), pace=Pace(retry_for_s=0.0))
        return self._clients[vm]

    async def _check_expectation(self, expect: ExpectStep) -> str:
        """Return the reason why an expectation failed; empty on success."""
        limit = self._lab.clock.now() + expect.within
        vm = expect.vm or self._scenario.handler
        difference = ""

        async def is_decided() -> bool:
            nonlocal difference
            difference = await find_difference(expect, vm, self._operations, self._coordinator)
            # `always` waits for a difference, so reaching the limit is the success.
            return bool(difference) == expect.always

        await self._wait_until(is_decided, limit)
        return difference
