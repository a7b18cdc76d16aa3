"""Player of scenarios: runs each step against a complete service, on virtual time or on a running clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from forewarn.client import AsyncClient, EndpointError, Event, Pace
from forewarn.clock import Clock, VirtualClock
from forewarn.core.model import Event as CoreEvent
from forewarn.core.model import MaintenanceState
from forewarn.core.request import Request
from forewarn.errors import ForewarnError
from forewarn.testing.companion import Companion
from forewarn.testing.lab import ACTOR, Lab
from forewarn.testing.loading import Scenario
from forewarn.testing.scenario import (
    Approve,
    At,
    Defer,
    Expect,
    Extend,
    FaultStep,
    HostStep,
    Impact,
    Schedule,
    Step,
    VmStep,
)
from forewarn.testing.values import request_of
from forewarn.util.duration import format_span
from forewarn.util.ids import SeededIds

__all__ = ["GivenIds", "Outcome", "Player", "lab_of"]

_ANSWER_S = 60.0
"""Maximum time that another VM waits for an answer, generous because a machine may be busy."""

_WITHHELD_S = 1.0
"""Maximum time that another VM waits while an answer may be withheld on purpose."""

_LOOK_S = 0.02
_DOCUMENT_SHOWN = 60
_TRIES = 3
"""Number of attempts of a scenario's VM to send an approval."""

_CAUSES = {
    "restart": "user-restart",
    "redeploy": "user-redeploy",
    "reimage": "reimage",
    "evict": "spot-eviction",
    "delete": "scale-set-delete",
    "fail_host": "hardware-failure",
    "predict_failure": "predicted-failure",
}
_REACHED = {
    "scheduled": frozenset(MaintenanceState) - {MaintenanceState.QUEUED},
    "started": frozenset({MaintenanceState.STARTED, MaintenanceState.COMPLETED, MaintenanceState.FAILED}),
    "completed": frozenset({MaintenanceState.COMPLETED}),
    "canceled": frozenset({MaintenanceState.CANCELED}),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one step.

    Attributes:
        number: Position in the timeline, from 1.
        line: Line in the file.
        at: Time since the beginning when the step was done.
        verb: Action of the step.
        text: Description of the step.
        fault: Reason for its failure; empty on success.
        is_expectation: True if the step only checks something.
        file: The included file that `line` refers to; empty for the scenario's own file.
    """

    number: int
    line: int
    at: timedelta
    verb: str
    text: str
    fault: str = ""
    is_expectation: bool = False
    file: str = ""


class GivenIds:
    """Source of the event ids that a scenario gives, and then of ids from a seed."""

    def __init__(self, event_ids: tuple[str, ...], seed: int = 0) -> None:
        self._given = list(event_ids)
        self._others = SeededIds(seed)

    def __call__(self, kind: str) -> str:
        """Return the next id."""
        return self._given.pop(0) if kind == "event" and self._given else self._others(kind)


def lab_of(scenario: Scenario, clock: Clock | None = None) -> Lab:
    """Return the service for a scenario, on that clock or on virtual time; no VM has sent a request yet."""
    return Lab(
        scenario.inventory,
        clock=clock,
        is_enabled=False,
        new_id=GivenIds(scenario.event_ids),
        **scenario.settings,
    )


class _Stop(Exception):
    """The rest of the scenario cannot be played."""


class Player:
    """Plays one scenario once.

    Args:
        scenario: Scenario to play.
        lab: Running service to play it against.
        on_step: Called after each step with its outcome.
        on_wait: Called before each step, with its number and description.
        companion: Handler that runs beside the scenario; None if the scenario polls and approves for its VM as well.
    """

    def __init__(
        self,
        scenario: Scenario,
        lab: Lab,
        on_step: Callable[[Outcome], None] = lambda _outcome: None,
        *,
        on_wait: Callable[[int, str], None] = lambda _number, _text: None,
        companion: Companion | None = None,
    ) -> None:
        self._scenario = scenario
        self._lab = lab
        self._on_step = on_step
        self._on_wait = on_wait
        self._companion = companion
        self._began = lab.clock.now()
        self._operations: dict[str, list[str]] = {}
        self._clients: dict[str, AsyncClient] = {}

    async def play(self) -> list[Outcome]:
        """Carry out all steps; stop at one that cannot be carried out, but continue after a failed expectation."""
        self._began = self._lab.clock.now()
        outcomes: list[Outcome] = []
        try:
            mode = "play" if self._companion is None else "try"
            told = self._scenario
            for number, (step, line, file) in enumerate(zip(told.steps, told.lines, told.files, strict=True), 1):
                if step.only not in {None, mode}:
                    continue
                self._on_wait(number, step.note or describe(step))
                text, fault, is_over = await self._take(step)
                at = self._lab.clock.now() - self._began
                outcome = Outcome(
                    number, line, at, step.verb, text, fault, is_expectation=step.expect is not None, file=file
                )
                outcomes.append(outcome)
                self._on_step(outcome)
                if is_over:
                    break
            else:
                await self._let_react()  # to the last change as well
        finally:
            for client in self._clients.values():
                await client.close()
        return outcomes

    async def _take(self, step: Step) -> tuple[str, str, bool]:
        """Carry out one step; return its description, the reason for its failure, and True if nothing can follow."""
        text = step.note or describe(step)
        if self._companion is not None and not self._companion.is_running():
            return text, "the handler has ended", True
        try:
            await self._wait_for_its_turn(step)
            return text, await self._do(step), False
        except _Stop as stop:
            return text, str(stop), True
        except ForewarnError as error:
            return text, error.message, True

    # Time

    async def _wait_for_its_turn(self, step: Step) -> None:
        if isinstance(step.at, At):
            await self._let_react()
            since = self._lab.clock.now() if step.at.is_relative else self._began
            await self._move_to(since + step.at.span)
        elif step.after is not None:
            what, operation = step.after.what, step.after.operation
            limit = self._lab.clock.now() + step.within

            async def has_come() -> bool:
                if what == "approved" and self._companion is not None:
                    await self._companion.give_approvals(await self._ids(operation))
                return await self._has_happened(what, operation)

            if not await self._wait(has_come, limit):
                msg = f"{operation} was not {what} within {step.within}"
                raise _Stop(msg)

    async def _move_to(self, moment: datetime) -> None:
        clock = self._lab.clock
        if not isinstance(clock, VirtualClock):
            await clock.wait_until(moment)
            return
        while True:
            left = max(moment - clock.now(), timedelta(0))
            # Longer steps would let the service disable the scope of a handler that polls in real time (R67).
            span = left if self._companion is None else min(left, self._companion.stay_awake())
            await self._lab.advance(span)
            if span == left:
                return

    async def _wait(self, is_so: Callable[[], Awaitable[bool]], limit: datetime) -> bool:
        """Let time pass until the condition holds or the limit is reached; return True if it holds."""
        clock = self._lab.clock
        while not await is_so():
            await self._let_react(is_so)
            if await is_so():
                return True
            now = clock.now()
            if now >= limit:
                return False
            if isinstance(clock, VirtualClock):
                deadline = await self._lab.backend.engine.next_deadline()
                await self._move_to(limit if deadline is None else min(max(deadline, now), limit))
            else:
                await asyncio.sleep(_LOOK_S)
        return True

    async def _let_react(self, is_so: Callable[[], Awaitable[bool]] | None = None) -> None:
        if self._companion is not None:
            await self._companion.let_react(is_so)

    # Steps

    async def _do(self, step: Step) -> str:  # noqa: C901, PLR0912 - a case for each kind of action
        """Carry out a step; return the reason for its failure, or empty text."""
        action = step.action
        match action:
            case Expect():
                return await self._expect(action)
            case Approve() if self._companion is not None and action.by == self._companion.vm:
                return await self._let_approve(self._companion, action)
            case Approve():
                await self._approve(action)
            case FaultStep():
                return await self._inject(action)
            case Impact():
                for maintenance_id in self._operations[action.operation]:
                    await self._lab.backend.engine.impact(maintenance_id, action.duration, actor=ACTOR)
            case Defer() | Extend():
                await self._put_off(action)
            case VmStep() | HostStep() | Schedule():
                assert step.makes is not None  # noqa: S101 - only these three begin an operation
                made = await self._lab.carry_out(_request(step, self._lab.clock.now()))
                self._operations[step.makes] = [maintenance.id for maintenance, _ in made]
            case tuple():
                for vm in action:
                    await self._poll(vm)
            case timedelta():
                await self._linger(action)
            case bool():
                await self._lab.clear_faults()
            case str():
                await self._change(step.verb, action)
        return ""

    async def _inject(self, fault: FaultStep) -> str:
        companion = self._companion
        asked = 0 if companion is None else companion.last_request
        await self._lab.inject(
            fault.kind,
            vms=fault.vms or (),
            method=fault.method or "",
            count=fault.count,
            rate=fault.rate,
            lasts=fault.lasts,
            delay=fault.delay,
        )
        if companion is None or await companion.let_meet(fault, asked):
            return ""
        return f"after fault {fault.kind} the handler did not ask again: it asks on, whatever it was answered"

    async def _linger(self, span: timedelta) -> None:
        """Let real time pass for the handler, and none for the scenario."""
        if self._companion is not None:
            await self._companion.let_react()
            await asyncio.sleep(span.total_seconds())

    async def _put_off(self, action: Defer | Extend) -> None:
        engine = self._lab.backend.engine
        for maintenance_id in self._operations[action.operation]:
            if isinstance(action, Defer):
                await engine.defer(maintenance_id, by=action.by, actor=ACTOR, reason="the scenario")
            else:
                await engine.extend(maintenance_id, action.by, tenant=action.scope, actor=ACTOR, reason="the scenario")

    async def _change(self, verb: str, operation: str) -> None:
        engine = self._lab.backend.engine
        for maintenance_id in self._operations[operation]:
            if verb == "cancel":
                await engine.cancel(maintenance_id, actor=ACTOR)
            elif verb == "start":
                await engine.start(maintenance_id, actor=ACTOR, reason="the scenario")
            else:
                await engine.complete(maintenance_id, actor=ACTOR)

    async def _poll(self, vm: str) -> None:
        """Poll as that VM, and ignore failures."""
        if self._companion is not None and vm == self._companion.vm:
            await self._companion.let_ask()
            await self._companion.let_react()
            return
        client = await self._client(vm)
        try:
            async with asyncio.timeout(self._answer_s):
                await client.fetch()
        except (EndpointError, TimeoutError):
            return

    @property
    def _answer_s(self) -> float:
        backend = self._lab.backend
        is_withheld = any(fault.kind.delay is not None for fault in backend.faults.all)
        return _WITHHELD_S if is_withheld or backend.settings.first_answer_delay else _ANSWER_S

    async def _approve(self, approve: Approve) -> None:
        """Approve, as the VM, the event that it is shown for an operation.

        Raises:
            _Stop: It is shown none, or its approval is not accepted.
        """
        shown = await self._shown(approve.operation, approve.by)
        if shown is None:
            msg = f"{approve.by} is shown nothing of {approve.operation} that it could approve"
            raise _Stop(msg)
        client = await self._client(approve.by)
        complaint = ""
        for _ in range(_TRIES):
            try:
                async with asyncio.timeout(self._answer_s):
                    await client.approve_once([shown.id])
            except (EndpointError, TimeoutError) as error:
                complaint = str(error) or "no answer in time"
            else:
                return
        msg = f"the approval was not taken: {complaint}"
        raise _Stop(msg)

    async def _let_approve(self, companion: Companion, approve: Approve) -> str:
        """Wait for the handler's approval; return the complaint, or empty text."""
        shown = await self._shown(approve.operation, approve.by)
        if shown is None:
            msg = f"{approve.by} is shown nothing of {approve.operation} that it could approve"
            raise _Stop(msg)
        if await companion.let_approve(shown.id):
            return ""
        return f"the handler did not approve {approve.operation} within {companion.patience_s:g} s"

    async def _client(self, vm: str) -> AsyncClient:
        if vm not in self._clients:
            # One attempt only: with retries within a step, the client would never see a fault that occurs once.
            self._clients[vm] = AsyncClient(await self._lab.url(vm), pace=Pace(retry_for_s=0.0))
        return self._clients[vm]

    # Checks

    async def _has_happened(self, what: str, operation: str) -> bool:
        found = [await self._lab.look(each) for each in self._operations[operation]]
        if what == "approved":
            return all(event.is_approved for _, events in found for event in events)
        return all(maintenance.state in _REACHED[what] for maintenance, _ in found)

    async def _ids(self, operation: str) -> set[str]:
        found = [await self._lab.look(each) for each in self._operations[operation]]
        return {event.id for _, events in found for event in events}

    async def _shown(self, operation: str, vm: str) -> Event | None:
        """Return the event that a VM is shown for an operation now: the one that names the VM, or else the first."""
        ids = await self._ids(operation)
        shown = [event for event in self._lab.document(vm).events if event.id in ids]
        return next((event for event in shown if event.affects(vm)), shown[0] if shown else None)

    async def _expect(self, expect: Expect) -> str:
        """Return the reason why an expectation failed; empty on success."""
        limit = self._lab.clock.now() + expect.within
        faults: list[str] = [""]

        async def holds() -> bool:
            faults[0] = await self._fault(expect)
            return not faults[0]

        async def fails() -> bool:
            return not await holds()

        if expect.always:
            await self._wait(fails, limit)
        else:
            await self._wait(holds, limit)
        return faults[0]

    async def _fault(self, expect: Expect) -> str:
        """Return the first difference from the expectation now; empty if there is none."""
        vm = expect.vm or self._scenario.handler
        document = self._lab.document(vm)
        is_enabled = self._lab.backend.feed.channel(self._lab.backend.identity.audience(vm)).is_enabled
        for what, wanted, found in (
            ("enabled", expect.enabled, is_enabled),
            ("incarnation", expect.incarnation, document.incarnation),
            ("events", expect.events, len(document.events)),
        ):
            if wanted is not None and wanted != found:
                return f"{what} is {found}, and {wanted} was expected"
        if expect.document is not None:
            found_bytes = self._lab.body(vm, expect.version)
            if found_bytes != expect.document.encode():
                return f"the document is {found_bytes.decode()}, and {expect.document} was expected"
        return "" if expect.operation is None else await self._fault_of_event(expect, expect.operation, vm)

    async def _fault_of_event(self, expect: Expect, operation: str, vm: str) -> str:
        """Return the first difference in the event that an operation shows to a VM; empty if there is none."""
        shown = await self._shown(operation, vm)
        found = [event for each in self._operations[operation] for event in (await self._lab.look(each))[1]]
        ids = {event.id for event in found}
        was_there = any(event.id in ids for document in self._lab.documents(vm) for event in document.events)
        status = shown.status if shown is not None else "gone" if was_there else "absent"
        mine = [e for e in found if vm in e.resources] or [e for e in found if shown is not None and e.id == shown.id]
        pairs: list[tuple[str, object, object]] = [
            ("status", expect.status, status),
            ("approved", expect.approved, bool(mine) and all(self._is_approved(event) for event in mine)),
        ]
        of_shown = ("type", "description", "duration", "source", "resources")
        if shown is not None:
            values = (shown.type, shown.description, shown.duration_s, shown.source, shown.resources)
            pairs += [(name, getattr(expect, name), value) for name, value in zip(of_shown, values, strict=True)]
            left = timedelta(0) if shown.not_before is None else shown.not_before - self._lab.clock.now()
            if expect.notice_at_least is not None and left < expect.notice_at_least:
                return f"{operation} has {left} of notice, and at least {expect.notice_at_least} was expected"
        elif any(getattr(expect, name) is not None for name in of_shown):
            return f"{operation} is {status}"
        wrong = next(((what, wanted, value) for what, wanted, value in pairs if wanted not in {None, value}), None)
        return "" if wrong is None else f"{wrong[0]} of {operation} is {wrong[2]}, and {wrong[1]} was expected"

    def _is_approved(self, event: CoreEvent) -> bool:
        """Return True if it is approved, or if the handler's approval is held for a later step."""
        return event.is_approved or (self._companion is not None and self._companion.has_approved(event.id))


def _request(step: Step, now: datetime) -> Request:
    """Return the request for an operation."""
    action = step.action
    if isinstance(action, Schedule):
        latest_start = None if action.latest_start is None else now + action.latest_start
        return replace(_announcement(action), latest_start=latest_start)
    assert isinstance(action, VmStep | HostStep)  # noqa: S101 - all other operations
    is_host = isinstance(action, HostStep)
    return Request(
        cause=_CAUSES[step.verb],
        type=action.type if isinstance(action, HostStep) else None,
        notice=action.notice,
        hosts=(action.name,) if is_host else (),
        vms=() if is_host else (action.name,),
        force_reason="the scenario" if action.notice is not None else None,
    )


def _announcement(action: Schedule) -> Request:
    """Return the request for an announced operation, without its latest start."""
    event_type = action.type.value if action.type is not None else None
    if event_type is None or action.cause is not None:
        return Request(
            cause=action.cause or "",
            type=action.type,
            source=action.source,
            description=action.description,
            duration_s=action.duration,
            impact=action.turns_out_as,
            notice=action.notice,
            hosts=action.hosts or (),
            vms=action.vms or (),
            force_reason="the scenario" if action.notice is not None else None,
        )
    return request_of(
        event_type,
        vms=action.vms or (),
        hosts=action.hosts or (),
        source=None if action.source is None else action.source.value,
        description=action.description,
        duration_s=action.duration,
        notice=action.notice,
        turns_out_as=None if action.turns_out_as is None else action.turns_out_as.value,
    )


def describe(step: Step) -> str:  # noqa: C901, PLR0911, PLR0912 - one return for each kind of action
    """Return a description of a step."""
    action = step.action
    match action:
        case Expect():
            said = action.model_dump(exclude_none=True, exclude_defaults=True, exclude={"within", "version", "always"})
            if action.document is not None:
                said["document"] = _shortened(action.document)
            words = ", ".join(f"{name} {_plain(value)}" for name, value in said.items())
            return f"expect {words}"
        case Schedule():
            where = ", ".join(action.vms or action.hosts or ())
            return f"{action.type or action.cause} is announced to {where}"
        case Approve():
            return f"{action.by} approves {action.operation}"
        case FaultStep():
            return f"fault {action.kind} for {', '.join(action.vms) if action.vms else 'all'}"
        case Defer():
            return f"{action.operation} is deferred by {format_span(action.by)}"
        case Extend():
            asking = "" if action.scope is None else f" for {action.scope}"
            return f"{action.operation} is extended by {format_span(action.by)}{asking}"
        case Impact():
            return f"a further impact of {action.operation}, {action.duration} s"
        case VmStep() | HostStep():
            return f"{step.verb.replace('_', ' ')} {action.name}"
        case tuple():
            return f"{', '.join(action)} {'asks' if len(action) == 1 else 'ask'}"
        case timedelta():
            return f"nothing changes for {format_span(action)} of the handler's time"
        case bool():
            return "all faults end"
        case _:
            return f"{step.verb} {action}"


def _shortened(document: str) -> str:
    """Return the beginning and end of a document, and its length."""
    if len(document) <= _DOCUMENT_SHOWN:
        return document
    half = _DOCUMENT_SHOWN // 2
    return f"{document[:half]} … {document[-half:]} ({len(document.encode())} bytes)"


def _plain(value: object) -> str:
    text = str(getattr(value, "value", value))
    return text or '""'
