"""What has been seen so far in an act: documents, approvals, the ledger. The story's claims are checked against it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from forewarn.demo.cast import Vm
from forewarn.errors import ForewarnError

__all__ = ["Approved", "DemoFailed", "Entry", "Record", "SeenEvent", "Sighting"]


class DemoFailed(ForewarnError):
    """The demo did not go as it tells."""

    code = "demo_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenEvent:
    """An event in the document that a VM got, in the words of the wire."""

    id: str
    type: str
    status: str
    resources: tuple[str, ...]
    not_before: str

    @classmethod
    def from_wire(cls, event: dict[str, Any]) -> SeenEvent:
        """From an element of ``Events``."""
        return cls(
            id=event["EventId"],
            type=event["EventType"],
            status=event["EventStatus"],
            resources=tuple(event["Resources"]),
            not_before=event["NotBefore"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A document that was new to a VM.

    Attributes:
        body: As received.
    """

    at: datetime
    vm: Vm
    incarnation: int
    events: tuple[SeenEvent, ...]
    body: str

    @property
    def own(self) -> SeenEvent | None:
        """The event that names the VM itself."""
        return next((event for event in self.events if self.vm.name in event.resources), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Approved:
    """An approval: when the VM sent it, and of which event."""

    at: datetime
    vm: Vm
    event_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of the service's ledger."""

    at: datetime
    sequence: int
    kind: str
    vm: str | None = None


@dataclass(slots=True)
class Record:
    """Everything that was seen in one act.

    Args:
        check: Says what is wrong, or None; asked at each change.
    """

    check: Callable[[Record], str | None] = lambda _: None
    sightings: list[Sighting] = field(default_factory=list)
    approvals: list[Approved] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, seen: Sighting | Approved | Entry) -> None:
        """Remember.

        Raises:
            DemoFailed: It is not what was promised.
        """
        match seen:
            case Sighting():
                self.sightings.append(seen)
            case Approved():
                self.approvals.append(seen)
            case Entry():
                self.entries.append(seen)
        fault = self.check(self)
        if fault is not None:
            raise DemoFailed(fault)
        self._changed.set()

    async def wait_until(self, condition: Callable[[Record], bool], expected: str, timeout_s: float = 30.0) -> None:
        """Wait until `condition` holds.

        Raises:
            DemoFailed: It did not within that time; the message says what was expected.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not condition(self):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            msg = f"expected within {timeout_s:g} s, and not seen: {expected}"
            raise DemoFailed(msg) from error

    def latest(self, vm: Vm) -> Sighting | None:
        """What that VM saw last."""
        return next((s for s in reversed(self.sightings) if s.vm == vm), None)

    def first(self, vm: Vm, status: str) -> Sighting | None:
        """When that VM first saw its event in that status."""
        return next((s for s in self.sightings if s.vm == vm and s.own is not None and s.own.status == status), None)

    def moment(self, kind: str) -> datetime | None:
        """When the ledger first told of that."""
        return next((entry.at for entry in self.entries if entry.kind == kind), None)

    def approved_at(self, vm: Vm) -> datetime | None:
        """When that VM sent its approval."""
        return next((a.at for a in self.approvals if a.vm == vm), None)

    def are_all_quiet(self, vms: Iterable[Vm]) -> bool:
        """Whether each VM has seen its event come and go."""
        latest = [self.latest(vm) for vm in vms]
        return all(sighting is not None and not sighting.events for sighting in latest)

    def span(self, start: datetime | None, end: datetime | None) -> timedelta:
        """From one moment to another, both of which have come."""
        if start is None or end is None:
            msg = "the record misses a moment that the summary tells of"
            raise DemoFailed(msg)
        return end - start
