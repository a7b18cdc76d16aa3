"""The observations of an act so far: documents, approvals, audit log entries. The claims are checked against them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from forewarn.demo.vms import DemoVm
from forewarn.errors import ForewarnError
from forewarn.wire.document import Event

__all__ = ["ActRecord", "DemoFailed", "SentApproval", "Sighting", "WatchedEntry"]


class DemoFailed(ForewarnError):
    """The demo did not go as promised."""

    code = "demo_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A document that was new to a VM.

    Attributes:
        body: The document, as received.
    """

    at: datetime
    vm: DemoVm
    incarnation: int
    events: tuple[Event, ...]
    body: str

    @property
    def own_event(self) -> Event | None:
        """The event that names the VM itself."""
        return next((event for event in self.events if event.affects(self.vm.name)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentApproval:
    """An approval: its VM, and the time at which the VM sent it."""

    at: datetime
    vm: DemoVm


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedEntry:
    """A line of the service's audit log."""

    at: datetime
    sequence: int
    kind: str
    vm: str | None = None


@dataclass(slots=True)
class ActRecord:
    """All observations of one act.

    Args:
        check: Called at each change; returns one sentence on a broken claim, or None.
    """

    check: Callable[[ActRecord], str | None] = lambda _: None
    sightings: list[Sighting] = field(default_factory=list)
    approvals: list[SentApproval] = field(default_factory=list)
    entries: list[WatchedEntry] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add_observation(self, observation: Sighting | SentApproval | WatchedEntry) -> None:
        """Add an observation.

        Raises:
            DemoFailed: It breaks a claim.
        """
        match observation:
            case Sighting():
                self.sightings.append(observation)
            case SentApproval():
                self.approvals.append(observation)
            case WatchedEntry():
                self.entries.append(observation)
        fault = self.check(self)
        if fault is not None:
            raise DemoFailed(fault)
        self._changed.set()

    async def wait_until(self, condition: Callable[[ActRecord], bool], expected: str, timeout_s: float = 30.0) -> None:
        """Wait until `condition` holds.

        Raises:
            DemoFailed: It did not hold in time; the message names `expected`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                # Nothing is awaited between the check and the wait, so no change can be missed.
                while not condition(self):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            raise DemoFailed(f"not seen within {timeout_s:g} s: {expected}") from error

    def find_latest(self, vm: DemoVm) -> Sighting | None:
        """Return the VM's latest sighting."""
        return next((s for s in reversed(self.sightings) if s.vm == vm), None)

    def find_first(self, vm: DemoVm, status: str) -> Sighting | None:
        """Return the VM's first sighting of the event that affects it, in that status."""
        return next(
            (s for s in self.sightings if s.vm == vm and s.own_event is not None and s.own_event.status == status), None
        )

    def find_time(self, kind: str) -> datetime | None:
        """Return the time of the first audit log entry of that kind."""
        return next((entry.at for entry in self.entries if entry.kind == kind), None)

    def find_approval_time(self, vm: DemoVm) -> datetime | None:
        """Return the time at which the VM sent its approval."""
        return next((a.at for a in self.approvals if a.vm == vm), None)

    def are_all_without_events(self, vms: Iterable[DemoVm]) -> bool:
        """Return True if every VM has received a document, and its latest has no events."""
        latest = [self.find_latest(vm) for vm in vms]
        return all(sighting is not None and not sighting.events for sighting in latest)

    def measure_span(self, start: datetime | None, end: datetime | None) -> timedelta:
        """Return the time between two moments.

        Raises:
            DemoFailed: One of them is not recorded.
        """
        if start is None or end is None:
            raise DemoFailed("cannot summarize the demo: a time is missing from the record")
        return end - start
