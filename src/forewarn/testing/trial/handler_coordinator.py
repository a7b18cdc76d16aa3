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

from forewarn.core.fault import FAULTS, FaultPoint
from forewarn.core.maintenance.approval import ApprovalResult, Approver
from forewarn.core.maintenance.decision import ChangeSet
from forewarn.core.model import EntryKind, EventType
from forewarn.publishing.feed import Channel
from forewarn.testing.lab import Lab
from forewarn.testing.scenario.scenario_model import FaultStep
from forewarn.testing.trial.finding import Findings
from forewarn.testing.trial.handler import TrialHandler
from forewarn.testing.trial.preparation import PreparationMonitor
from forewarn.testing.trial.reaction_time import ReactionTimer
from forewarn.wire.document import Event
from forewarn.wire.exchange import Exchange

__all__ = ["HandlerCoordinator", "select_answered_gets"]

_SILENCE_S = 135.0
"""Maximum time-out of a handler if no answer comes: that for a first answer, which may take 120 s."""

_LOOK_S = 0.02
_LOOK_MAX_S = 0.1
"""First and longest pause between two looks at whether a condition holds."""

_LOOK_GROWTH = 1.5
"""Factor between two pauses: they are short at first, so that a quick reaction is seen at once."""

_COUNT_S = 0.05
"""Seconds between two looks at how long the handler has waited for a processor, which costs some file reads."""
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
    "its approval got no 200, and it did not repeat the approval: an approval counts only after a 200, so repeat it "
    "with each poll until the answer is 200 (R49, R104)"
)
_NO_TIME_OUT = (
    f"it still waited for an answer after {_SILENCE_S:g} s: give each request a time-out, 130 s for the first and a "
    "few seconds for the others (R104)"
)


def select_answered_gets(exchanges: Iterable[Exchange]) -> list[Exchange]:
    """Return the GETs for events that were answered, faulty or not, but not refused; the first of them may be held."""
    return [
        each
        for each in exchanges
        if each.method == "GET" and each.is_about_events and (each.fault or each.status == HTTPStatus.OK)
    ]


class HandlerCoordinator:
    """Runs a handler beside a scenario, and waits for its reactions.

    Args:
        patience_s: Real seconds that the handler has to react to each change before time advances.
        is_recovered: Returns True if its VM is as it was before any event; called when no event affects it any more.
    """

    def __init__(  # noqa: PLR0913 - the parts of a trial
        self,
        lab: Lab,
        vm: str,
        *,
        patience_s: float,
        handler: TrialHandler,
        findings: Findings,
        preparation: PreparationMonitor,
        is_recovered: Callable[[], Awaitable[bool]],
    ) -> None:
        self.vm = vm
        self.patience_s = patience_s
        self._handler = handler
        self._lab = lab
        self._findings = findings
        self._preparation = preparation
        self._is_recovered = is_recovered
        self._held_approvals: dict[str, Approver] = {}
        self._last_own_events: dict[str, Event] = {}
        self._last_change: tuple[int, int] | None = None
        self._current_reboot: asyncio.Future[None] | None = None
        self._is_powered_off = False
        self._lost_approval = False
        self._last_exchange_number = 0
        self._gets_received = 0
        """GETs for events that have arrived, answered or not."""
        self._gets_answered = 0
        """GETs for events that were answered, refused, or given up by the handler."""
        self._has_first_answer = False
        self._shown_incarnation: tuple[int | None, int] = (None, 0)
        """Incarnation shown to it last, and the number of GETs that had arrived when it was first shown."""
        self._last_fault: tuple[str, int] = ("", 0)
        """Fault that last affected it, and the number of GETs that had arrived by then."""
        lab.approval_hook = self._hold_approvals
        # Called before the answer: the handler cannot act on a new document until the previous one is checked.
        lab.backend.app.before_answer = self._check_before_answer
        lab.backend.journal.listeners.append(self._record_answers)

    def is_running(self) -> bool:
        """Return True until the handler ends, other than by a reboot of its VM."""
        return self._handler.is_running

    # Reboots

    @asynccontextmanager
    async def following_reboots(self) -> AsyncIterator[None]:
        """Kill and restart the handler at each Reboot or Redeploy that affects its VM, until the block ends."""

        def note(changes: ChangeSet) -> None:
            impacted = [entry.maintenance_id for entry in changes.entries if entry.kind is EntryKind.IMPACTED]
            if impacted or self._is_powered_off:
                self._current_reboot = asyncio.ensure_future(self._carry_out_reboot(self._current_reboot, impacted))

        self._lab.backend.engine.listeners.append(note)
        try:
            yield
        finally:
            self._lab.backend.engine.listeners.remove(note)
            await self._wait_for_reboot()

    async def _carry_out_reboot(self, earlier: asyncio.Future[None] | None, impacted: Sequence[str | None]) -> None:
        # One reboot after the other: another impact may come while the handler is still being killed.
        if earlier is not None:
            await earlier
        for maintenance_id in impacted:
            if maintenance_id is not None and not self._is_powered_off and await self._is_reboot_of_vm(maintenance_id):
                self._is_powered_off = True
                await self._handler.power_off()
        # Some VMs are back while their event is Started, others only when it is gone: alternate between the two.
        is_slow = self._handler.reboots % 2 == 0
        if self._is_powered_off and not (
            is_slow and any(event.is_started for event in self._lab.find_own_events(self.vm).values())
        ):
            await self._handler.power_on()
            # A restarted handler remembers nothing, so it has to read the current document again.
            self._shown_incarnation = (None, self._gets_received)
            self._last_change = None
            self._preparation.drop_duty()
            self._is_powered_off = False

    async def _is_reboot_of_vm(self, maintenance_id: str) -> bool:
        maintenance, events = await self._lab.fetch_maintenance(maintenance_id)
        is_hit = any(self.vm in event.resources for event in events)
        return maintenance.impact in _REBOOTS and is_hit and self.is_running()

    async def _wait_for_reboot(self) -> None:
        """Wait until the current reboot has been carried out, if there is one."""
        if self._current_reboot is not None:
            # Shielded, or a cancelled caller would leave the handler killed and not restarted.
            await asyncio.shield(self._current_reboot)

    # Requests

    async def _check_before_answer(self, vm: str, method: str) -> None:
        """Check the preparation: a new request shows that the handler has acted on the previous answer."""
        if vm == self.vm and method == "GET":
            await self._preparation.check_preparation()
            self._gets_received += 1

    def _record_answers(self) -> None:
        for exchange in self._lab.backend.journal.list_exchanges(after=self._last_exchange_number, vm=self.vm):
            self._last_exchange_number = exchange.number
            self._gets_answered += exchange.method == "GET" and exchange.is_about_events
            self._lost_approval |= exchange.method == "POST" and bool(exchange.fault)
            if exchange.fault:
                self._last_fault = (exchange.fault, self._gets_received)
            # A stale document is an earlier one, in which the event may be missing: a handler that believes it does no
            # wrong.
            if exchange.fault == "stale":
                self._preparation.drop_duty()
            incarnation = _decode_incarnation(exchange)
            if incarnation is not None and incarnation != self._shown_incarnation[0]:
                self._shown_incarnation = (incarnation, self._gets_received)

    # Approvals

    async def _hold_approvals(self, event_ids: Sequence[str], approver: Approver) -> ApprovalResult:
        """Accept approvals in place of the engine; those of this VM are held."""
        if approver.vm != self.vm:
            return await self._lab.backend.engine.authority.approve(event_ids, approver)
        shown = {event.id: event for document in self._lab.list_documents(self.vm) for event in document.events}
        # The engine is not asked, so an id is known if a document for this VM ever held it.
        unknown = tuple(event_id for event_id in event_ids if event_id not in shown)
        if not unknown:
            await self._preparation.check_at_approval(event_ids)
            self._check_approved_vms([shown[event_id] for event_id in event_ids])
            self._held_approvals |= dict.fromkeys(event_ids, approver)
        return ApprovalResult(unknown=unknown)

    def _check_approved_vms(self, events: list[Event]) -> None:
        for event in events:
            if not event.affects(self.vm):
                self._findings.add(
                    "approved-another",
                    f"it approved an event of {', '.join(event.resources)}, which is not its VM and may not be ready: "
                    "look for the VM's own name in Resources (R26, R60)",
                )

    def has_approved(self, event_id: str) -> bool:
        """Return True if it has approved, even if the approval does not count yet."""
        return event_id in self._held_approvals

    async def release_approvals(self, event_ids: set[str]) -> None:
        """Make its held approvals of these events count."""
        for event_id in event_ids & self._held_approvals.keys():
            await self._lab.backend.engine.authority.approve([event_id], self._held_approvals[event_id])

    async def wait_for_approval(self, event_id: str) -> bool:
        """Wait until it has approved, and make its approval count; return False if it did not approve in time."""

        async def has_approved() -> bool:
            return event_id in self._held_approvals

        if not await self._wait_until(has_approved):
            if self._lost_approval:
                self._findings.add("approval-not-repeated", _NOT_REPEATED)
            return False
        self._lost_approval = False
        await self.release_approvals({event_id})
        return True

    # Reactions

    async def wait_for_reaction(self, is_satisfied: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Give it real time to see the changes for its VM, to prepare and approve, and to recover.

        Args:
            is_satisfied: Condition that the timeline waits for; once it holds, the handler need not approve any more.
        """
        await self._wait_for_reboot()
        if self._is_powered_off:
            return
        channel = self._channel
        # The epoch as well: the incarnation starts over when the scope is disabled or a fault resets it.
        change = (channel.epoch, channel.incarnation)
        if change == self._last_change:
            return
        # Noted before waiting: the handler gets its patience once for each change, not once for each step.
        self._last_change = change
        hits = self._lab.find_own_events(self.vm)

        async def has_reacted() -> bool:
            # An event of this VM is not approved yet: wait on, unless the timeline already has what it waits for.
            if any(not event.is_started and event.id not in self._held_approvals for event in hits.values()):
                return is_satisfied is not None and await is_satisfied()
            return (
                self._has_current_document()
                and self._has_polled_again()
                and await self._preparation.check_reaction(is_late=False)
            )

        if not await self._wait_until(has_reacted) and self.is_running():
            await self._report_late_reaction(hits)
        gone = [event for event_id, event in self._last_own_events.items() if event_id not in hits]
        if gone and not hits and not await self._wait_until(lambda: self._has_recovered(gone)) and self.is_running():
            text = f"it had not recovered {self.patience_s:g} s after the last event of its VM was gone (R100, R104)"
            self._findings.add("unrecovered", text)
        self._last_own_events = hits

    async def _report_late_reaction(self, hits: dict[str, Event]) -> None:
        """Record a finding for a handler that has used up its time."""
        if self._has_current_document():
            await self._preparation.check_reaction(is_late=True)
        elif hits.keys() - self._last_own_events.keys() and not self._is_last_request_faulty():
            text = (
                f"it did not poll for {self.patience_s:g} s after its VM got a new event: poll once a second, "
                "because a Preempt may give only 30 s (R90, R97)"
            )
            self._findings.add("asks-too-rarely", text)

    async def _has_recovered(self, gone: list[Event]) -> bool:
        if not self._has_current_document() or not await self._is_recovered():
            return False
        is_final = any(event.type in _FINAL for event in gone)
        return await self._preparation.check_return_to_service() or is_final

    def _has_current_document(self) -> bool:
        return self._shown_incarnation[0] == self._channel.incarnation

    def _is_last_request_faulty(self) -> bool:
        """Return True if a fault affected its last request."""
        return bool(self._last_fault[0]) and self._last_fault[1] == self._gets_received

    def _has_polled_again(self) -> bool:
        """Return True if it has sent another GET since it saw the document: then it has acted on it."""
        return not self._preparation.is_active or self._gets_received > self._shown_incarnation[1]

    async def wait_for_fault(self, fault: FaultStep, last_request_number: int) -> bool:
        """Wait until the fault has affected it and it has sent another request; return False if that took too long.

        Args:
            fault: The fault, injected just before.
            last_request_number: Number of the last request before the fault.
        """
        is_of_requests = FAULTS[fault.kind].place not in {FaultPoint.ONCE, FaultPoint.NOTICE}
        is_mine = fault.vms is None or self.vm in fault.vms
        if not is_of_requests or not is_mine or fault.count is None or fault.method == "POST":
            return True  # it may never encounter this fault

        async def has_gone_on() -> bool:
            return (
                self._last_exchange_number > last_request_number
                and self._last_fault[0] == fault.kind
                and self._gets_received > self._last_fault[1]
            )

        self._last_fault = ("", 0)
        delay = fault.delay or FAULTS[fault.kind].delay or timedelta(0)
        has_gone_on_in_time = await self._wait_until(has_gone_on, min(delay.total_seconds(), _SILENCE_S))
        if fault.kind == "time-out" and not has_gone_on_in_time and self.is_running():
            self._findings.add("no-time-out", _NO_TIME_OUT)
        self._last_fault = ("", 0)
        return has_gone_on_in_time

    async def wait_for_first_answer(self) -> None:
        """Wait until a request for events by the handler has been answered, or its patience is used up.

        If the first answer is held, time does not advance meanwhile, for that would release the answer (R67).
        """
        delay_s = self._lab.backend.settings.first_answer_delay.total_seconds()

        async def has_asked() -> bool:
            return bool(self._answered_requests) and (not delay_s or self._gets_answered >= self._gets_received)

        # Only the first request is waited for; later ones are waited for after each change of the document.
        if not self._has_first_answer:
            await self._wait_until(has_asked, delay_s)
            self._has_first_answer = bool(self._answered_requests)

    @property
    def _answered_requests(self) -> list[Exchange]:
        return select_answered_gets(self._lab.list_requests(self.vm))

    def count_as_polling(self) -> timedelta:
        """Count its VM as polling, also while virtual hours pass at once; return the time until the next call (R67)."""
        channel = self._channel
        if self.is_running() and channel.is_enabled:
            channel.last_polled_at = self._lab.clock.now()
        return self._lab.backend.settings.disable_after / 2

    @property
    def _channel(self) -> Channel:
        return self._lab.get_channel(self.vm)

    @property
    def last_request_number(self) -> int:
        """Number of its VM's last request; 0 if there was none."""
        return max((each.number for each in self._lab.list_requests(self.vm)), default=0)

    async def _wait_until(self, is_satisfied: Callable[[], Awaitable[bool]], extra_s: float = 0.0) -> bool:
        """Wait until the condition holds, patience runs out, or the handler ends; return True if the condition holds.

        Patience is measured in time that the handler could use, see `ReactionTimer`.
        """
        loop = asyncio.get_running_loop()
        timer = ReactionTimer(self.patience_s + extra_s)
        self._handler.measure_processor_wait()  # what it has waited until now is not of this reaction
        counted_s = loop.time()
        pause_s = _LOOK_S
        # Polled rather than notified: the conditions depend on a foreign process and on shell commands.
        while not await is_satisfied():
            if timer.is_over or not self.is_running():
                return await is_satisfied()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * _LOOK_GROWTH, _LOOK_MAX_S)
            if (round_s := loop.time() - counted_s) >= _COUNT_S:
                counted_s += round_s
                timer.count_round(round_s, self._handler.measure_processor_wait())
        return True


def _decode_incarnation(exchange: Exchange) -> int | None:
    """Return the incarnation that a client reads in an answer; None without a current and complete document."""
    if exchange.method != "GET" or exchange.fault not in _READABLE:
        return None
    found = _INCARNATION.search(exchange.answer)
    return None if found is None else int(found[1])
