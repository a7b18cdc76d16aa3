"""A handler that runs beside a scenario: time waits for it, and what it approves counts when the timeline says so.

A timeline says when somebody approves. A handler that is quick would otherwise begin what the timeline has yet to
cancel, or to leave to its NotBefore. So its approvals are taken, and wait: for the step that has its VM approve. To the
handler it looks like an event that another tenant has yet to approve.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from forewarn.core.approval import Approval, Approver
from forewarn.core.fault import FAULTS, Place
from forewarn.testing.lab import Lab
from forewarn.testing.scenario import FaultStep

__all__ = ["Companion"]

_LOOK_S = 0.02
_INCARNATION = re.compile(rb'"_?DocumentIncarnation"\s*:\s*(\d+)')


async def _always() -> bool:
    return True


class Companion:
    """A handler that runs, and how long it is waited for.

    Args:
        lab: Where it finds its endpoint; running.
        vm: Whose handler it is.
        patience_s: How many real seconds it has to react to each change, before time goes on.
        is_running: Whether it has not ended.
        is_recovered: Whether its VM is as it was before any event; asked when no event hits it any more.

    Attributes:
        not_recovered: How often it was not recovered when patience was over.
    """

    def __init__(
        self,
        lab: Lab,
        vm: str,
        *,
        patience_s: float,
        is_running: Callable[[], bool],
        is_recovered: Callable[[], Awaitable[bool]] = _always,
    ) -> None:
        self.vm = vm
        self.patience_s = patience_s
        self.is_running = is_running
        self.not_recovered = 0
        self._lab = lab
        self._is_recovered = is_recovered
        self._held: dict[str, Approver] = {}
        self._was_hit = False
        self._reacted_to: tuple[int, int] | None = None
        lab.backend.app.approve = self._take

    # Approvals

    async def _take(self, event_ids: Sequence[str], approver: Approver) -> Approval:
        """In the place of the engine: what this VM approves is taken, and waits."""
        if approver.vm != self.vm:
            return await self._lab.backend.engine.approve(event_ids, approver)
        shown = {event.id for document in self._lab.documents(self.vm) for event in document.events}
        unknown = tuple(event_id for event_id in event_ids if event_id not in shown)
        if not unknown:
            self._held |= dict.fromkeys(event_ids, approver)
        return Approval(unknown=unknown)

    async def give_approvals(self, event_ids: set[str]) -> None:
        """What it has approved of these counts from now on."""
        for event_id in event_ids & self._held.keys():
            await self._lab.backend.engine.approve([event_id], self._held[event_id])

    async def let_approve(self, event_id: str) -> bool:
        """Wait until it has approved; hands back whether it did. Its approval counts from now on."""

        async def has_approved() -> bool:
            return event_id in self._held

        if not await self._wait(has_approved):
            return False
        await self.give_approvals({event_id})
        return True

    # Reactions

    async def let_react(self, is_so: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Give it real time to see what has changed for its VM, to approve what waits for it, and to recover.

        Args:
            is_so: What the timeline waits for; it need not react any more once that is so.
        """
        channel = self._lab.backend.feed.channel(self._lab.backend.identity.audience(self.vm))
        change = (channel.epoch, channel.incarnation)
        if change == self._reacted_to:
            return
        self._reacted_to = change
        hits = [event for event in self._lab.document(self.vm).events if event.affects(self.vm)]

        async def has_reacted() -> bool:
            if any(not event.is_started and event.id not in self._held for event in hits):
                return is_so is not None and await is_so()
            return self._last_seen() == channel.incarnation

        await self._wait(has_reacted)
        if self._was_hit and not hits and not await self._wait(self._is_recovered):
            self.not_recovered += 1
        self._was_hit = bool(hits)

    async def let_meet(self, fault: FaultStep, asked: int) -> bool:
        """Wait until the fault has struck it, and it has asked again; hands back whether it did.

        Args:
            fault: Has just been injected.
            asked: Number of the last request before that.
        """
        is_of_requests = FAULTS[fault.kind].place not in {Place.ONCE, Place.NOTICE}
        is_mine = fault.vms is None or self.vm in fault.vms
        if not is_of_requests or not is_mine or fault.count is None or fault.method == "POST":
            return True  # it may never meet it

        async def has_gone_on() -> bool:
            requests = self._lab.requests(self.vm)
            struck = [each.number for each in requests if each.fault == fault.kind and each.number > asked]
            return bool(struck) and requests[-1].number > struck[-1]

        return await self._wait(has_gone_on)

    async def let_ask(self) -> bool:
        """Wait until it has asked at all; hands back whether it did."""

        async def has_asked() -> bool:
            return self.last_request > 0

        return await self._wait(has_asked)

    def stay_awake(self) -> timedelta:
        """It asks again and again, also while hours pass in a moment; hands back for how long this is said (R67)."""
        channel = self._lab.backend.feed.channel(self._lab.backend.identity.audience(self.vm))
        if self.is_running() and channel.is_enabled:
            channel.asked_at = self._lab.clock.now()
        return self._lab.backend.settings.disable_after / 2

    def _last_seen(self) -> int | None:
        """The incarnation that it was shown last."""
        for exchange in reversed(self._lab.requests(self.vm)):
            found = _INCARNATION.search(exchange.answer) if exchange.method == "GET" else None
            if found is not None:
                return int(found[1])
        return None

    @property
    def last_request(self) -> int:
        """The number of its VM's last request; 0: there was none."""
        return max((each.number for each in self._lab.requests(self.vm)), default=0)

    async def _wait(self, is_so: Callable[[], Awaitable[bool]]) -> bool:
        """Until it is so, or patience is at its end by real time, or the handler is; hands back whether it is so."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self.patience_s
        while not await is_so():
            if loop.time() >= end_s or not self.is_running():
                return await is_so()
            await asyncio.sleep(_LOOK_S)
        return True
