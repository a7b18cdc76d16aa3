"""A service for tests that do not use asyncio: `ScheduledEvents`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Self

from forewarn.clock import VIRTUAL_START, VirtualClock
from forewarn.core.fault import InjectedFault
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.engine.maintenances import MaintenanceCommands
from forewarn.testing.background_loop import run_coroutine, run_function
from forewarn.testing.lab import ACTOR, Announced, Lab
from forewarn.testing.scheduled_event import ScheduledEvent
from forewarn.testing.values import (
    AnyInventory,
    AnySpan,
    EventTypeName,
    FaultName,
    MethodName,
    SourceName,
    build_request,
    parse_any_inventory,
    parse_fault_kind,
    parse_time_span,
    to_utc,
)
from forewarn.wire.advice import Advice
from forewarn.wire.document import Document
from forewarn.wire.exchange import Exchange

__all__ = ["ScheduledEvents"]


class ScheduledEvents:
    """A metadata endpoint in this process, on virtual time, with methods to schedule maintenance and inject faults.

    Use it as a context manager: it answers until its block ends. ::

        with ScheduledEvents() as events:
            event = events.schedule("Reboot")
            my_handler.poll_once(events.url)
            events.advance("15m")
            assert event.status == "Started"

    Args:
        inventory: Names of standalone VMs, the content of an inventory, or its file; None for one VM, ``vm-1``.
        start: Start of virtual time; UTC if it has no time zone.
        enabled: True if every VM has already sent a request, so events are announced from the start (R67).
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
        declared = parse_any_inventory(inventory)
        moment = to_utc(start)
        # The lab's objects belong to the loop's thread, so they are created there as well.
        self._lab = run_function(lambda: Lab(declared, clock=VirtualClock(moment), is_enabled=enabled, **settings))
        self._running = self._lab.running()

    def __enter__(self) -> Self:
        run_coroutine(self._running.__aenter__())
        return self

    def __exit__(self, *_error: object) -> None:
        # The service stops the same way whether the test passed or failed, so it is not given the test's error.
        run_coroutine(self._running.__aexit__(None, None, None))

    # Addresses

    @property
    def url(self) -> str:
        """Base URL of the endpoint for the first VM, without a path."""
        return self.url_of()

    def url_of(self, vm: str | None = None) -> str:
        """Return the base URL of the endpoint for that VM: every caller at this URL is taken for that VM."""
        return run_coroutine(self._lab.open_endpoint(vm))

    # Time

    @property
    def now(self) -> datetime:
        """Current time of the service."""
        return self._lab.clock.now()

    def advance(self, by: AnySpan) -> datetime:
        """Advance virtual time; everything due on the way happens at its own moment, in order."""
        return run_coroutine(self._lab.advance(parse_time_span(by)))

    # Operations

    def schedule(  # noqa: PLR0913 - the parts of a maintenance
        self,
        type: EventTypeName = "Freeze",
        vm: str | Sequence[str] | None = None,
        *,
        duration_s: int | None = None,
        notice: AnySpan | None = None,
        not_before: datetime | None = None,
        source: SourceName = "Platform",
        description: str | None = None,
        impact: EventTypeName | None = None,
    ) -> ScheduledEvent:
        """Announce maintenance for one VM, or for several at once; None for the first VM.

        Args:
            type: ``Freeze``, ``Reboot``, ``Redeploy``, ``Preempt`` or ``Terminate``.
            vm: Name of the VM, or names of several.
            duration_s: Expected impact in seconds; 0 none, -1 unknown; None for the default of that type.
            notice: Time from now to NotBefore; None for the guaranteed minimum. It may be shorter than that.
            not_before: Alternative to `notice`.
            source: ``Platform`` or ``User``.
            description: Text for the event; None for the default of that type.
            impact: ``Freeze``, for a Reboot that does not restart the VM in the end (R81).

        Returns:
            The event as announced to the first audience.

        Raises:
            CallerError: The request makes no sense, or conflicts with an operation under way.
        """
        return self._announce_operation(
            build_request(
                type,
                vms=self._resolve_vm_names(vm),
                source=source,
                description=description,
                duration_s=duration_s,
                notice=notice,
                not_before=not_before,
                impact=impact,
            )
        )[0]

    def restart(self, vm: str | None = None) -> ScheduledEvent:
        """Restart a VM as its user (R87)."""
        return self._begin_operation("user-restart", vm)

    def redeploy(self, vm: str | None = None) -> ScheduledEvent:
        """Redeploy a VM as its user (R87)."""
        return self._begin_operation("user-redeploy", vm)

    def evict(self, vm: str | None = None) -> ScheduledEvent:
        """Evict a Spot VM (R90)."""
        return self._begin_operation("spot-eviction", vm)

    def delete(self, vm: str | None = None) -> ScheduledEvent:
        """Delete a VM of a scale set (R91)."""
        return self._begin_operation("scale-set-delete", vm)

    def maintain(  # noqa: PLR0913 - the parts of a maintenance
        self,
        host: str | Sequence[str],
        type: EventTypeName = "Freeze",
        *,
        duration_s: int | None = None,
        notice: AnySpan | None = None,
        source: SourceName = "Platform",
        description: str | None = None,
    ) -> list[ScheduledEvent]:
        """Announce maintenance for hosts with all their VMs, like `schedule` for VMs; return an item for each event."""
        hosts = [host] if isinstance(host, str) else host
        request = build_request(
            type, hosts=hosts, source=source, description=description, duration_s=duration_s, notice=notice
        )
        return self._announce_operation(request)

    def fail_host(self, host: str) -> list[ScheduledEvent]:
        """Make a host fail: its VMs see a Reboot that has started (R73)."""
        return self._announce_operation(MaintenanceRequest(cause="hardware-failure", hosts=(host,)))

    def predict_failure(self, host: str, within: AnySpan = "7d") -> list[ScheduledEvent]:
        """Predict the failure of a host: its VMs see a Redeploy days ahead (R72)."""
        notice = parse_time_span(within)
        # `within` may be shorter than the notice that the cause guarantees, and the core accepts that only with a
        # reason.
        return self._announce_operation(
            MaintenanceRequest(cause="predicted-failure", hosts=(host,), notice=notice, force_reason="a test")
        )

    def approve(self, event: ScheduledEvent | str) -> None:
        """Approve an event, given as object or id, on behalf of its VM."""
        run_coroutine(self._lab.approve_events([event if isinstance(event, str) else event.id]))

    def cancel(self, event: ScheduledEvent) -> None:
        """Cancel a scheduled operation (R77)."""
        run_coroutine(self._maintenances.cancel(event.maintenance_id, actor=ACTOR))

    def start(self, event: ScheduledEvent) -> None:
        """Start a scheduled operation now, regardless of approvals and of the promised notice."""
        run_coroutine(self._maintenances.start(event.maintenance_id, actor=ACTOR, reason="a test"))

    def complete(self, event: ScheduledEvent) -> None:
        """End a started operation now (R79)."""
        run_coroutine(self._maintenances.complete(event.maintenance_id, actor=ACTOR))

    def impact(self, event: ScheduledEvent, duration_s: int = 1) -> None:
        """Report a further impact of a started operation; no document shows it (R80)."""
        run_coroutine(self._maintenances.impact(event.maintenance_id, duration_s, actor=ACTOR))

    # Faults

    def inject(  # noqa: PLR0913 - the parts of a fault
        self,
        fault: FaultName,
        *,
        vm: str | Sequence[str] | None = None,
        method: MethodName = "",
        count: int | None = None,
        rate: float = 1.0,
        lasts: AnySpan | None = None,
        delay: AnySpan | None = None,
    ) -> InjectedFault:
        """Inject a fault at the endpoint (R66); `forewarn fault kinds` lists them.

        Args:
            fault: Kind of fault, for example ``"503"``, ``"late"`` or ``"truncated"``.
            vm: VMs whose requests are affected; None for all.
            method: ``GET`` or ``POST``; empty for both.
            count: Number of requests affected; None for no limit.
            rate: Fraction of requests affected, from 0 to 1.
            lasts: Duration on the service's clock; None for until `clear_faults`.
            delay: Delay of the faults that take time.

        Raises:
            CallerError: There is no such fault or VM, or a number is out of range.
        """
        return run_coroutine(
            self._lab.backend.engine.faults.inject(
                parse_fault_kind(fault),
                actor=ACTOR,
                vms=[] if vm is None else self._resolve_vm_names(vm),
                method=method,
                count=count,
                rate=rate,
                lasts=None if lasts is None else parse_time_span(lasts),
                delay=None if delay is None else parse_time_span(delay),
            )
        )

    def clear_faults(self) -> int:
        """End all faults; return the number that were in force."""
        return run_coroutine(self._lab.backend.engine.faults.clear(actor=ACTOR))

    # Observations

    @property
    def document(self) -> Document:
        """Current document of the first VM, in the newest api-version."""
        return run_function(self._lab.get_document)

    @property
    def documents(self) -> list[Document]:
        """Every document shown to the first VM so far, oldest first."""
        return self.documents_of()

    def documents_of(self, vm: str | None = None) -> list[Document]:
        """Return every document shown to a VM so far, oldest first."""
        return run_function(lambda: self._lab.list_documents(vm))

    @property
    def requests(self) -> list[Exchange]:
        """Requests of all VMs so far, with their answers, oldest first; the last 1,000."""
        return self.requests_of()

    def requests_of(self, vm: str | None = None) -> list[Exchange]:
        """Return the requests of one VM; None for all."""
        return run_function(lambda: self._lab.list_requests(vm))

    @property
    def warnings(self) -> list[tuple[Exchange, Advice]]:
        """Requests in which a client relied on something that real endpoints refuse or do not promise."""
        return run_function(self._lab.list_warnings)

    def assert_no_warnings(self) -> None:
        """Check that no client sent a request that real endpoints refuse, or that a good client avoids.

        Raises:
            AssertionError: A client did; the message names each such request, and what is wrong or unwise about it.
        """
        __tracebackhide__ = True  # pytest shows the line of the test instead
        lines = [
            f"{exchange.vm}: {exchange.method} {exchange.target}: it {advice.text} ({advice.spec}) [{advice.code}]"
            for exchange, advice in self.warnings
        ]
        if lines:
            raise AssertionError("\n  ".join([f"{len(lines)} warnings about client requests:", *lines]))

    # Internals

    @property
    def _maintenances(self) -> MaintenanceCommands:
        return self._lab.backend.engine.maintenances

    def _resolve_vm_names(self, vm: str | Sequence[str] | None) -> list[str]:
        return [self._lab.default_vm] if vm is None else [vm] if isinstance(vm, str) else list(vm)

    def _begin_operation(self, cause: str, vm: str | None) -> ScheduledEvent:
        return self._announce_operation(MaintenanceRequest(cause=cause, vms=(vm or self._lab.default_vm,)))[0]

    def _announce_operation(self, request: MaintenanceRequest) -> list[ScheduledEvent]:
        found = run_coroutine(self._lab.carry_out(request))
        return [
            event
            for announced in found
            for event in ScheduledEvent.from_announcement(announced, self._fetch_maintenance)
        ]

    def _fetch_maintenance(self, maintenance_id: str) -> Announced:
        return run_coroutine(self._lab.fetch_maintenance(maintenance_id))
