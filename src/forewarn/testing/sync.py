"""A service for tests that do not use asyncio: `ScheduledEvents`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from forewarn.clock import VIRTUAL_START, VirtualClock
from forewarn.core.fault import Fault
from forewarn.core.request import Request
from forewarn.testing import loop
from forewarn.testing.event import ScheduledEvent
from forewarn.testing.lab import ACTOR, Announced, Lab
from forewarn.testing.values import (
    AnyInventory,
    AnySpan,
    EventTypeName,
    FaultName,
    MethodName,
    SourceName,
    as_fault,
    as_inventory,
    as_moment,
    as_span,
    request_of,
)
from forewarn.wire.advice import Advice
from forewarn.wire.document import Document
from forewarn.wire.exchange import Exchange

__all__ = ["ScheduledEvents"]


class ScheduledEvents:
    """A metadata endpoint in this process, on virtual time, and everything that can happen behind it.

    A context manager: it answers until its block ends. ::

        with ScheduledEvents() as events:
            event = events.schedule("Reboot")
            my_handler.poll_once(events.url)
            events.advance("15m")
            assert event.status == "Started"

    Args:
        inventory: Names of standalone VMs, an inventory's content or its file; None for one VM, ``vm-1``.
        start: Where time begins; UTC where it has no zone.
        enabled: Whether every VM has asked before, so that events are announced from the first moment (R67).
        settings: Settings of `forewarn serve`, for example ``first_answer_delay="2m"`` or ``rate_limit_per_s=5``.
    """

    def __init__(
        self,
        inventory: AnyInventory = None,
        *,
        start: datetime = VIRTUAL_START,
        enabled: bool = True,
        **settings: Any,  # noqa: ANN401 - settings are of any kind
    ) -> None:
        declared = as_inventory(inventory)
        moment = as_moment(start)
        self._lab = loop.run(lambda: Lab(declared, clock=VirtualClock(moment), is_enabled=enabled, **settings))
        self._running = self._lab.running()

    def __enter__(self) -> Self:
        loop.call(self._running.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop.call(self._running.__aexit__(None, None, None))

    # Where VMs ask

    @property
    def url(self) -> str:
        """Base URL of the endpoint for the first VM, without a path."""
        return self.url_of()

    def url_of(self, vm: str | None = None) -> str:
        """Base URL under which that VM reaches the endpoint: whoever asks there is that VM."""
        return loop.call(self._lab.url(vm))

    # Time

    @property
    def now(self) -> datetime:
        """The service's time."""
        return self._lab.clock.now()

    def advance(self, by: AnySpan) -> datetime:
        """Move the time; everything that falls due on the way happens at its own moment, in order."""
        return loop.call(self._lab.advance(as_span(by)))

    # What happens

    def schedule(  # noqa: PLR0913 - what a maintenance is made of
        self,
        type: EventTypeName = "Freeze",
        vm: str | Sequence[str] | None = None,
        *,
        duration_s: int | None = None,
        notice: AnySpan | None = None,
        not_before: datetime | None = None,
        source: SourceName = "Platform",
        description: str | None = None,
        turns_out_as: EventTypeName | None = None,
    ) -> ScheduledEvent:
        """Announce maintenance for a VM, or for several at once; None: the first.

        Args:
            type: ``Freeze``, ``Reboot``, ``Redeploy``, ``Preempt`` or ``Terminate``.
            vm: Which.
            duration_s: Expected impact; 0 none, -1 unknown; None: as usual for that type.
            notice: From now to NotBefore; None: the least that is promised. It may be shorter than that.
            not_before: Instead of `notice`.
            source: ``Platform`` or ``User``.
            description: None: as usual for that type.
            turns_out_as: ``Freeze``, for a Reboot that does not restart the VM in the end (R81).

        Returns:
            What the first of them is shown.

        Raises:
            CallerError: It makes no sense, or stands against something that is under way.
        """
        names = self._names(vm)
        return self._carry_out(
            request_of(
                type,
                vms=names,
                source=source,
                description=description,
                duration_s=duration_s,
                notice=notice,
                not_before=not_before,
                turns_out_as=turns_out_as,
            )
        )[0]

    def restart(self, vm: str | None = None) -> ScheduledEvent:
        """A user restarts a VM (R87)."""
        return self._operate("user-restart", vm)

    def redeploy(self, vm: str | None = None) -> ScheduledEvent:
        """A user redeploys a VM (R87)."""
        return self._operate("user-redeploy", vm)

    def evict(self, vm: str | None = None) -> ScheduledEvent:
        """The platform takes a Spot VM back (R90)."""
        return self._operate("spot-eviction", vm)

    def delete(self, vm: str | None = None) -> ScheduledEvent:
        """A VM of a scale set is deleted (R91)."""
        return self._operate("scale-set-delete", vm)

    def maintain(  # noqa: PLR0913 - what a maintenance is made of
        self,
        host: str | Sequence[str],
        type: EventTypeName = "Freeze",
        *,
        duration_s: int | None = None,
        notice: AnySpan | None = None,
        source: SourceName = "Platform",
        description: str | None = None,
    ) -> list[ScheduledEvent]:
        """Announce maintenance for hosts with all their VMs, as `schedule` does for VMs; an item for each event."""
        hosts = [host] if isinstance(host, str) else host
        return self._carry_out(
            request_of(type, hosts=hosts, source=source, description=description, duration_s=duration_s, notice=notice)
        )

    def fail_host(self, host: str) -> list[ScheduledEvent]:
        """A host fails: its VMs see a Reboot that has started (R73)."""
        return self._carry_out(Request(cause="hardware-failure", hosts=(host,)))

    def predict_failure(self, host: str, within: AnySpan = "7d") -> list[ScheduledEvent]:
        """A host will fail: its VMs see a Redeploy days ahead (R72)."""
        notice = as_span(within)
        return self._carry_out(Request(cause="predicted-failure", hosts=(host,), notice=notice, force_reason="a test"))

    def approve(self, event: ScheduledEvent | str) -> None:
        """Approve an event in the place of its VM, given as itself or as its id."""
        loop.call(self._lab.approve([event if isinstance(event, str) else event.id]))

    def cancel(self, event: ScheduledEvent) -> None:
        """Take a scheduled operation back (R77)."""
        loop.call(self._lab.backend.engine.cancel(event.maintenance_id, actor=ACTOR))

    def start(self, event: ScheduledEvent) -> None:
        """Start a scheduled operation now, whoever has approved it and whatever was promised."""
        loop.call(self._lab.backend.engine.start(event.maintenance_id, actor=ACTOR, reason="a test"))

    def complete(self, event: ScheduledEvent) -> None:
        """End a started operation now (R79)."""
        loop.call(self._lab.backend.engine.complete(event.maintenance_id, actor=ACTOR))

    def impact(self, event: ScheduledEvent, duration_s: int = 1) -> None:
        """A further impact while it is started; no document shows it (R80)."""
        loop.call(self._lab.backend.engine.impact(event.maintenance_id, duration_s, actor=ACTOR))

    # What goes wrong

    def inject(  # noqa: PLR0913 - what a fault is made of
        self,
        fault: FaultName,
        *,
        vm: str | Sequence[str] | None = None,
        method: MethodName = "",
        count: int | None = None,
        rate: float = 1.0,
        lasts: AnySpan | None = None,
        delay: AnySpan | None = None,
    ) -> Fault:
        """Have something go wrong at the endpoint (R66); `forewarn fault kinds` lists what can.

        Args:
            fault: The kind, for example ``"503"``, ``"late"`` or ``"truncated"``.
            vm: Whose requests; None: everybody's.
            method: Only ``GET`` or only ``POST``; empty: both.
            count: For so many requests; None: for any number.
            rate: For that part of the requests.
            lasts: For that time, on the service's clock; None: until `clear_faults`.
            delay: How long it takes, where it takes time.

        Raises:
            CallerError: There is no such fault or VM, or a number makes no sense.
        """
        return loop.call(
            self._lab.inject(
                as_fault(fault),
                vms=[] if vm is None else self._names(vm),
                method=method,
                count=count,
                rate=rate,
                lasts=None if lasts is None else as_span(lasts),
                delay=None if delay is None else as_span(delay),
            )
        )

    def clear_faults(self) -> int:
        """End all faults; hands back how many were in force."""
        return loop.call(self._lab.clear_faults())

    # What was seen

    @property
    def document(self) -> Document:
        """What the first VM is shown now, in the newest version."""
        return loop.run(self._lab.document)

    @property
    def documents(self) -> list[Document]:
        """Everything that the first VM was shown so far, oldest first."""
        return self.documents_of()

    def documents_of(self, vm: str | None = None) -> list[Document]:
        """Everything that a VM was shown so far, oldest first."""
        return loop.run(lambda: self._lab.documents(vm))

    @property
    def requests(self) -> list[Exchange]:
        """Every request of every VM so far, with its answer, oldest first; the last 1,000."""
        return self.requests_of()

    def requests_of(self, vm: str | None = None) -> list[Exchange]:
        """The requests of one VM; None: of all."""
        return loop.run(lambda: self._lab.requests(vm))

    @property
    def warnings(self) -> list[tuple[Exchange, Advice]]:
        """Where a client relied on what real endpoints refuse or do not promise."""
        return loop.run(self._lab.warnings)

    def assert_no_warnings(self) -> None:
        """Check that no client relied on what real endpoints refuse or do not promise.

        Raises:
            AssertionError: One did; the message says which request, and what is wrong or unwise about it.
        """
        __tracebackhide__ = True  # pytest shows the line of the test instead
        lines = [
            f"{exchange.vm}: {exchange.method} {exchange.target}: it {advice.text} ({advice.spec}) [{advice.code}]"
            for exchange, advice in self.warnings
        ]
        if lines:
            raise AssertionError("\n  ".join([f"{len(lines)} warnings about what clients asked:", *lines]))

    # Within

    def _names(self, vm: str | Sequence[str] | None) -> list[str]:
        return [self._lab.default_vm] if vm is None else [vm] if isinstance(vm, str) else list(vm)

    def _operate(self, cause: str, vm: str | None) -> ScheduledEvent:
        return self._carry_out(Request(cause=cause, vms=(vm or self._lab.default_vm,)))[0]

    def _carry_out(self, request: Request) -> list[ScheduledEvent]:
        found = loop.call(self._lab.carry_out(request))
        return [event for announced in found for event in ScheduledEvent.of(announced, self._look)]

    def _look(self, maintenance_id: str) -> Announced:
        return loop.call(self._lab.look(maintenance_id))
