"""What VMs of the demo may have seen."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from forewarn.demo.act_record import ActRecord, SentApproval, Sighting, WatchedEntry
from forewarn.demo.vms import CAST, DemoVm
from forewarn.wire.document import Event

__all__ = ["DB", "NOT_BEFORE", "T0", "WEST_0", "WEST_1", "after", "event", "id_of", "migration", "sighting"]

WEST_0, WEST_1, DB = CAST
T0 = datetime(2030, 1, 1, 12, tzinfo=UTC)
NOT_BEFORE = T0 + timedelta(minutes=15, seconds=1)


def after(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def id_of(vm: DemoVm) -> str:
    return f"ID-{CAST.index(vm)}"


def event(vm: DemoVm, status: str = "Scheduled", kind: str = "Freeze") -> Event:
    not_before = NOT_BEFORE if status == "Scheduled" else None
    return Event(id=id_of(vm), type=kind, status=status, resources=(vm.name,), not_before=not_before)


def sighting(vm: DemoVm, seconds: float, incarnation: int, status: str | None = None, kind: str = "Freeze") -> Sighting:
    """What that VM sees: every event of its scope in that status; None for no events."""
    events = [event(other, status, kind) for other in CAST if other.scope == vm.scope] if status is not None else []
    body = json.dumps([[e.id, *e.resources] for e in events])
    return Sighting(at=after(seconds), vm=vm, incarnation=incarnation, events=tuple(events), body=body)


def migration() -> ActRecord:
    """The act of the live migration as it should go: announced at 0 s, the last approval at 4 s, completed at 7 s."""
    record = ActRecord()
    seen: list[Sighting | SentApproval | WatchedEntry] = [
        WatchedEntry(at=after(0), sequence=1, kind="scheduled"),
        sighting(DB, 0.01, 2, "Scheduled"),
        sighting(WEST_0, 0.5, 2, "Scheduled"),
        sighting(WEST_1, 0.8, 2, "Scheduled"),
    ]
    for sequence, (vm, at) in enumerate(((WEST_0, 0.5), (WEST_1, 2.8), (DB, 4.0)), start=2):
        seen += [
            SentApproval(at=after(at), vm=vm),
            WatchedEntry(at=after(at + 0.01), sequence=sequence, kind="approved", vm=vm.name),
        ]
    seen += [
        WatchedEntry(at=after(4.01), sequence=5, kind="started"),
        *(sighting(vm, at, 3, "Started") for vm, at in ((DB, 4.02), (WEST_0, 4.5), (WEST_1, 4.8))),
        WatchedEntry(at=after(5), sequence=6, kind="impacted"),
        WatchedEntry(at=after(7), sequence=7, kind="completed"),
        *(sighting(vm, at, 4) for vm, at in ((DB, 7.005), (WEST_0, 7.5), (WEST_1, 7.8))),
    ]
    for one in seen:
        record.add_observation(one)
    return record
