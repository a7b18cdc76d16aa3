"""The life of a maintenance as a trace: what a commit adds to it. Pure: changes in, moments out.

A moment becomes a span when it is over, so its times are those of the ledger, whenever and wherever it is told:

- the root, at the creation, in the process that created it;
- a row of `_STEPS` for each entry of the ledger: it took no time;
- a row of `_PHASES` for what lasted until such an entry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from forewarn.core.decision import Changes
from forewarn.core.model import Entry, EntryKind, Maintenance

__all__ = ["NAMES_MAX", "Moment", "Value", "described", "listed", "moments_of"]

NAMES_MAX = 20
"""Names of VMs or hosts that are told of one maintenance; beside them stands how many there are."""

Value = str | int | float | bool | tuple[str, ...]
"""Of an attribute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A span in the trace of a maintenance.

    Attributes:
        name: One of few; what differs stands in the attributes.
        ended_at: The same as `began_at` where it took no time.
        failure: Why it failed; None: it did not.
        is_root: Whether the others of the trace are below it.
    """

    maintenance_id: str
    name: str
    began_at: datetime
    ended_at: datetime
    attributes: Mapping[str, Value] = field(default_factory=dict)
    failure: str | None = None
    is_root: bool = False


_STEPS = {
    EntryKind.QUEUED: "queued",
    EntryKind.SCHEDULED: "announced",
    EntryKind.ANNOUNCED: "announced late",
    EntryKind.APPROVED: "approved",
    EntryKind.WITHDRAWN: "withdrawn",
    EntryKind.UNSEEN: "not seen",
    EntryKind.LATE: "late",
    EntryKind.DEFERRED: "deferred",
    EntryKind.EXTENDED: "extended",
    EntryKind.STARTED: "started",
    EntryKind.IMPACTED: "impacted",
    EntryKind.IMPACT_MEASURED: "impact measured",
    EntryKind.ATTEMPT_FAILED: "attempt failed",
    EntryKind.COMPLETED: "completed",
    EntryKind.CANCELED: "canceled",
    EntryKind.FAILED: "failed",
}
"""What an entry of the ledger is called in a trace."""

_PHASES = {
    EntryKind.STARTED: "waiting",
    EntryKind.CANCELED: "waiting",
    EntryKind.COMPLETED: "under way",
    EntryKind.FAILED: "under way",
}
"""What came to its end with an entry of the ledger."""

_FAILURES = frozenset({EntryKind.FAILED, EntryKind.ATTEMPT_FAILED})
_SETS_A_MOMENT = frozenset({EntryKind.SCHEDULED, EntryKind.DEFERRED, EntryKind.EXTENDED, EntryKind.STARTED})


def moments_of(changes: Changes) -> Iterator[Moment]:
    """What a commit adds to the traces of its maintenances: first the roots, then what happened, in its order."""
    events: Counter[str] = Counter(e.maintenance_id for e in changes.events.values() if e.id in changes.created)
    for maintenance in changes.maintenances.values():
        if maintenance.id in changes.created:
            yield _root(maintenance)
    for entry in changes.entries:
        if entry.maintenance_id is None or entry.kind not in _STEPS:
            continue
        known = changes.maintenances.get(entry.maintenance_id)
        if known is not None and entry.kind in _PHASES:
            yield from _phase(known, entry)
        yield _step(entry, known, events[entry.maintenance_id])


def _root(maintenance: Maintenance) -> Moment:
    return Moment(
        maintenance_id=maintenance.id,
        name=f"maintenance {maintenance.type.value}",
        began_at=maintenance.created_at,
        ended_at=maintenance.created_at,
        attributes=described(maintenance),
        is_root=True,
    )


def described(maintenance: Maintenance) -> dict[str, Value]:
    """What a maintenance is, as attributes."""
    attributes: dict[str, Value] = {
        "forewarn.maintenance.id": maintenance.id,
        "forewarn.maintenance.request_id": maintenance.request_id,
        "forewarn.maintenance.type": maintenance.type.value,
        "forewarn.maintenance.cause": maintenance.cause,
        "forewarn.maintenance.source": maintenance.source.value,
        "forewarn.maintenance.duration_s": maintenance.duration_s,
        **listed("forewarn.maintenance.vms", maintenance.vms),
        **listed("forewarn.maintenance.hosts", dict.fromkeys(claim.host for claim in maintenance.claims)),
    }
    if maintenance.force_reason is not None:
        attributes["forewarn.maintenance.force_reason"] = maintenance.force_reason
    return attributes


def listed(name: str, items: Iterable[str]) -> dict[str, Value]:
    """Some of the names, and how many there are."""
    names = tuple(items)
    return {name: names[:NAMES_MAX], f"{name}.count": len(names)}


def _phase(maintenance: Maintenance, entry: Entry) -> Iterator[Moment]:
    name = _PHASES[entry.kind]
    began_at = maintenance.created_at if name == "waiting" else maintenance.started_at
    if began_at is None or began_at >= entry.at:
        return
    yield Moment(
        maintenance_id=maintenance.id,
        name=name,
        began_at=began_at,
        ended_at=entry.at,
        attributes={"forewarn.maintenance.id": maintenance.id},
    )


def _step(entry: Entry, known: Maintenance | None, events: int) -> Moment:
    assert entry.maintenance_id is not None  # noqa: S101 - the caller has looked
    said = {
        "forewarn.maintenance.id": entry.maintenance_id,
        "forewarn.actor": entry.actor,
        "forewarn.event.id": entry.event_id,
        "forewarn.audience": entry.audience,
        "forewarn.vm": entry.vm,
        "forewarn.api_version": entry.api_version,
        "client.address": entry.source_address,
        "forewarn.reason": entry.reason,
    }
    attributes: dict[str, Value] = {name: value for name, value in said.items() if value is not None}
    if entry.kind is EntryKind.SCHEDULED:
        attributes["forewarn.events.count"] = events
    if known is not None and known.not_before is not None and entry.kind in _SETS_A_MOMENT:
        attributes["forewarn.maintenance.not_before"] = known.not_before.isoformat()
    return Moment(
        maintenance_id=entry.maintenance_id,
        name=_STEPS[entry.kind],
        began_at=entry.at,
        ended_at=entry.at,
        attributes=attributes,
        failure=(entry.reason or "") if entry.kind in _FAILURES else None,
    )
