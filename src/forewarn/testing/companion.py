"""A handler that runs beside a scenario: time waits for it, and its approvals count when the timeline says so.

The timeline decides when an event is approved. A quick handler would otherwise start an operation that the timeline is
about to cancel, or to leave to its NotBefore. So its approvals are accepted but held, until the step in which its VM
approves. To the handler this looks like an event that another tenant has not yet approved.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from http import HTTPStatus

from forewarn.core.approval import Approval, Approver
from forewarn.core.decision import Changes
from forewarn.core.fault import FAULTS, Place
from forewarn.core.model import EntryKind, EventType
from forewarn.publishing.feed import Channel
from forewarn.testing.finding import Findings
from forewarn.testing.handler import Handler
from forewarn.testing.lab import Lab
from forewarn.testing.preparation import PreparationMonitor
from forewarn.testing.scenario import FaultStep
from forewarn.wire.document import Event
from forewarn.wire.exchange import Exchange

__all__ = ["Companion", "answered_gets"]

_SILENCE_S = 135.0
"""Maximum time-out of a handler if no answer comes: that for a first answer, which may take 120 s."""

_LOOK_S = 0.02

_COUNTED_MAX_S = 0.25
"""Maximum part of one polling round that counts against the handler's patience; a round takes a tenth of that."""
_INCARNATION = re.compile(rb'"_?DocumentIncarnation"\s*:\s*(\d+)')
_READABLE = frozenset(
    {
        "",
        "text-plain",
        "unknown-members",
        "unknown-type",
        "large-document",
        "repeated-event",
        "slow-headers",
        "slow-body",
        "late",
    }
)
"""Faults after which a client still has the current document."""

_REBOOTS = frozenset({EventType.REBOOT, EventType.REDEPLOY})
_FINAL = frozenset({"Preempt", "Terminate"})
"""Event types after which a VM is gone, so it need not return to service."""

_NOT_REPEATED = (
    "its approval was not answered with 200, and it did not send it again: an approval counts as given after a 200 "
    "only, so send it with each poll until then (R49, R104)"
)
_NO_TIME_OUT = (
    f"it still waited for an answer after {_SILENCE_S:g} s: give each request a time-out, 130 s for the first and some "
    "seconds for the others (R104)"
)


def answered_gets(exchanges: Iterable[Exchange]) -> list[Exchange]:
    """Return the GETs for events that were answered, faulty or not, but not refused; the first of them may be held."""
    return [
        each
        for each in exchanges
        if each.method == "GET" and each.is_about_events and (each.fault or each.status == HTTPStatus.OK)
    ]


async def _always() -> bool:
    return True


class Companion:
    """Runs a handler beside a scenario, and waits for its reactions.

    Args:
        lab: Running service with the endpoint of the handler.
        vm: Name of the handler's VM.
        patience_s: Real seconds that the handler has to react to each change before time advances.
        handler: The process.
        findings: Findings to add to.
        preparation: Checks whether its VM is prepared.
        is_recovered: Returns True if its VM is as it was before any event; called when no event affects it any more.
    """

    def __init__(  # noqa: PLR0913 - the parts of a trial
        self,
        lab: Lab,
        vm: str,
        *,
        patience_s: float,
        handler: Handler,
        findings: Findings,
        preparation: PreparationMonitor,
        is_recovered: Callable[[], Awaitable[bool]] = _always,
    ) -> None:
        self.vm = vm
        self.patience_s = patience_s
        self._handler = handler
        self._lab = lab
        self._findings = findings
        self._preparation = preparation
        self._is_recovered = is_recovered
        self._held: dict[str, Approver] = {}
        self._was_hit: dict[str, Event] = {}
        self._reacted_to: tuple[int, int] | None = None
        self._reboot: asyncio.Future[None] | None = None
        self._is_off = False
        self._lost_approval = False
        self._noted = 0
        self._arrivals = 0
        """GETs for events that have arrived, answered or not."""
        self._answers = 0
        """GETs for events that were answered, refused, or given up by the handler."""
        self._has_first_answer = False
        self._seen: tuple[int | None, int] = (None, 0)
        """Incarnation shown to it last, and the number of GETs that had arrived when it was first shown."""
        self._struck: tuple[str, int] = ("", 0)
        """Fault that last affected it, and the number of GETs that had arrived by then."""
        lab.backend.app.approve = self._take
        lab.backend.app.before_answer = self._before_answer
        lab.backend.journal.listeners.append(self._note_answers)

    def is_running(self) -> bool:
        """Return True until the handler ends, other than by a reboot of its VM."""
        return self._handler.is_running

    # Reboots

    @asynccontextmanager
    async def rebooting(self) -> AsyncIterator[None]:
        """Kill and restart the handler at each Reboot or Redeploy that affects its VM, until the block ends."""

        def note(changes: Changes) -> None:
            impacted = [entry.maintenance_id for entry in changes.entries if entry.kind is EntryKind.IMPACTED]
            if impacted or self._is_off:
                self._reboot = asyncio.ensure_future(self._reboot_after(self._reboot, impacted))

        self._lab.backend.engine.listeners.append(note)
        try:
            yield
        finally:
            self._lab.backend.engine.listeners.remove(note)
            await self._end_reboot()

    async def _reboot_after(self, earlier: asyncio.Future[None] | None, impacted: Sequence[str | None]) -> None:
        if earlier is not None:
            await earlier
        for maintenance_id in impacted:
            if maintenance_id is not None and not self._is_off and await self._is_rebooted(maintenance_id):
                self._is_off = True
                await self._handler.power_off()
        # Some VMs are back while their event is Started, others only when it is gone: alternate between the two.
        is_slow = self._handler.reboots % 2 == 0
        if self._is_off and not (is_slow and any(event.is_started for event in self._hits().values())):
            await self._handler.power_on()
            self._seen = (None, self._arrivals)
            self._reacted_to = None
            self._preparation.excuse()
            self._is_off = False

    async def _is_rebooted(self, maintenance_id: str) -> bool:
        maintenance, events = await self._lab.look(maintenance_id)
        is_hit = any(self.vm in event.resources for event in events)
        return maintenance.impact in _REBOOTS and is_hit and self.is_running()

    async def _end_reboot(self) -> None:
        """Wait until the current reboot has been carried out, if there is one."""
        if self._reboot is not None:
            await asyncio.shield(self._reboot)

    # Requests

    async def _before_answer(self, vm: str, method: str) -> None:
        """Check the preparation: a new request shows that the handler has acted on the previous answer."""
        if vm == self.vm and method == "GET":
            await self._preparation.check()
            self._arrivals += 1

    def _note_answers(self) -> None:
        for exchange in self._lab.backend.journal.exchanges(after=self._noted, vm=self.vm):
            self._noted = exchange.number
            self._answers += exchange.method == "GET" and exchange.is_about_events
            self._lost_approval |= exchange.method == "POST" and bool(exchange.fault)
            if exchange.fault:
                self._struck = (exchange.fault, self._arrivals)
            if exchange.fault == "stale":
                self._preparation.excuse()
            incarnation = _incarnation_of(exchange)
            if incarnation is not None and incarnation != self._seen[0]:
                self._seen = (incarnation, self._arrivals)

    # Approvals

    async def _take(self, event_ids: Sequence[str], approver: Approver) -> Approval:
        """Accept approvals in place of the engine; those of this VM are held."""
        if approver.vm != self.vm:
            return await self._lab.backend.engine.approve(event_ids, approver)
        shown = {event.id: event for document in self._lab.documents(self.vm) for event in document.events}
        unknown = tuple(event_id for event_id in event_ids if event_id not in shown)
        if not unknown:
            await self._preparation.note_approval(event_ids)
            self._look_whose([shown[event_id] for event_id in event_ids])
            self._held |= dict.fromkeys(event_ids, approver)
        return Approval(unknown=unknown)

    def _look_whose(self, events: list[Event]) -> None:
        for event in events:
            if not event.affects(self.vm):
                self._findings.add(
                    "approved-another",
                    f"it approved an event of {', '.join(event.resources)}, which is not its VM: it may not be ready. "
                    "Look for the VM's own name in Resources (R26, R60)",
                )

    def has_approved(self, event_id: str) -> bool:
        """Return True if it has approved, even if the approval does not count yet."""
        return event_id in self._held

    async def give_approvals(self, event_ids: set[str]) -> None:
        """Make its held approvals of these events count."""
        for event_id in event_ids & self._held.keys():
            await self._lab.backend.engine.approve([event_id], self._held[event_id])

    async def let_approve(self, event_id: str) -> bool:
        """Wait until it has approved, and make its approval count; return False if it did not approve in time."""

        async def has_approved() -> bool:
            return event_id in self._held

        if not await self._wait(has_approved):
            if self._lost_approval:
                self._findings.add("approval-not-repeated", _NOT_REPEATED)
            return False
        self._lost_approval = False
        await self.give_approvals({event_id})
        return True

    # Reactions

    async def let_react(self, is_so: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Give it real time to see the changes for its VM, to prepare and approve, and to recover.

        Args:
            is_so: Condition that the timeline waits for; once it holds, the handler need not approve any more.
        """
        await self._end_reboot()
        if self._is_off:
            return
        channel = self._channel
        change = (channel.epoch, channel.incarnation)
        if change == self._reacted_to:
            return
        self._reacted_to = change
        hits = self._hits()

        async def has_reacted() -> bool:
            if any(not event.is_started and event.id not in self._held for event in hits.values()):
                return is_so is not None and await is_so()
            return self._has_seen() and self._has_gone_on() and await self._preparation.note_reaction(is_late=False)

        if not await self._wait(has_reacted) and self.is_running():
            await self._note_late(hits)
        gone = [event for event_id, event in self._was_hit.items() if event_id not in hits]
        if gone and not hits and not await self._wait(lambda: self._has_recovered(gone)) and self.is_running():
            text = f"it had not recovered {self.patience_s:g} s after the last event was gone (R100, R104)"
            self._findings.add("unrecovered", text)
        self._was_hit = hits

    async def _note_late(self, hits: dict[str, Event]) -> None:
        """Record a finding for a handler that has used up its time."""
        if self._has_seen():
            await self._preparation.note_reaction(is_late=True)
        elif hits.keys() - self._was_hit.keys() and not self._is_struck():
            text = (
                f"it did not ask for {self.patience_s:g} s while an event was announced to its VM: ask once a second, "
                "for a Preempt may give no more than 30 s (R90, R97)"
            )
            self._findings.add("asks-too-rarely", text)

    async def _has_recovered(self, gone: list[Event]) -> bool:
        if not self._has_seen() or not await self._is_recovered():
            return False
        is_final = any(event.type in _FINAL for event in gone)
        return await self._preparation.note_end() or is_final

    def _hits(self) -> dict[str, Event]:
        return {event.id: event for event in self._lab.document(self.vm).events if event.affects(self.vm)}

    def _has_seen(self) -> bool:
        return self._seen[0] == self._channel.incarnation

    def _is_struck(self) -> bool:
        """Return True if a fault affected its last request."""
        return bool(self._struck[0]) and self._struck[1] == self._arrivals

    def _has_gone_on(self) -> bool:
        """Return True if it has sent another GET since it saw the document: then it has acted on it."""
        return not self._preparation.is_active or self._arrivals > self._seen[1]

    async def let_meet(self, fault: FaultStep, asked: int) -> bool:
        """Wait until the fault has affected it and it has sent another request; return False if that took too long.

        Args:
            fault: The fault, injected just before.
            asked: Number of the last request before the fault.
        """
        is_of_requests = FAULTS[fault.kind].place not in {Place.ONCE, Place.NOTICE}
        is_mine = fault.vms is None or self.vm in fault.vms
        if not is_of_requests or not is_mine or fault.count is None or fault.method == "POST":
            return True  # it may never encounter this fault

        async def has_gone_on() -> bool:
            return self._noted > asked and self._struck[0] == fault.kind and self._arrivals > self._struck[1]

        self._struck = ("", 0)
        delay_s = 0.0 if fault.delay is None else fault.delay.total_seconds()
        has_gone_on_in_time = await self._wait(has_gone_on, min(delay_s, _SILENCE_S))
        if fault.kind == "time-out" and not has_gone_on_in_time and self.is_running():
            self._findings.add("no-time-out", _NO_TIME_OUT)
        self._struck = ("", 0)
        return has_gone_on_in_time

    async def let_ask(self) -> bool:
        """Wait until a request for events by the handler has been answered; return False if none was.

        If the first answer is held, time does not advance meanwhile, for that would release the answer (R67).
        """
        delay_s = self._lab.backend.settings.first_answer_delay.total_seconds()

        async def has_asked() -> bool:
            return bool(self._answered) and (not delay_s or self._answers >= self._arrivals)

        if not self._has_first_answer:
            await self._wait(has_asked, delay_s)
            self._has_first_answer = bool(self._answered)
        return self._has_first_answer

    @property
    def _answered(self) -> list[Exchange]:
        return answered_gets(self._lab.requests(self.vm))

    def stay_awake(self) -> timedelta:
        """Count its VM as polling, also while virtual hours pass at once; return the time until the next call (R67)."""
        channel = self._channel
        if self.is_running() and channel.is_enabled:
            channel.asked_at = self._lab.clock.now()
        return self._lab.backend.settings.disable_after / 2

    @property
    def _channel(self) -> Channel:
        return self._lab.backend.feed.channel(self._lab.backend.identity.audience(self.vm))

    @property
    def last_request(self) -> int:
        """Number of its VM's last request; 0 if there was none."""
        return max((each.number for each in self._lab.requests(self.vm)), default=0)

    async def _wait(self, is_so: Callable[[], Awaitable[bool]], more_s: float = 0.0) -> bool:
        """Wait until the condition holds, patience runs out, or the handler ends; return True if the condition holds.

        Patience is measured in real seconds of a machine that has time for the handler: if this loop is delayed, so was
        the handler, and the delay is not counted. It never lasts twice as long, or a handler that is really slow would
        pass on a busy machine.
        """
        loop = asyncio.get_running_loop()
        left_s = self.patience_s + more_s
        looked_s = loop.time()
        end_s = looked_s + 2 * left_s
        while not await is_so():
            if left_s <= 0 or looked_s >= end_s or not self.is_running():
                return await is_so()
            await asyncio.sleep(_LOOK_S)
            left_s -= min(loop.time() - looked_s, _COUNTED_MAX_S)
            looked_s = loop.time()
        return True


def _incarnation_of(exchange: Exchange) -> int | None:
    """Return the incarnation that a client reads in an answer; None without a current and complete document."""
    if exchange.method != "GET" or exchange.fault not in _READABLE:
        return None
    found = _INCARNATION.search(exchange.answer)
    return None if found is None else int(found[1])
