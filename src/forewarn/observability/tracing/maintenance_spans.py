"""Trace of a maintenance: the spans that a commit adds to it. Pure: changes in, moments out.

A moment becomes a span when it is over. Its times are those of the audit log, whenever and wherever it is exported:

- the root, at the creation, from the process that created the maintenance;
- a row of `_STEPS` for each entry of the audit log, with no duration;
- a row of `_PHASES` for the phase that ended with such an entry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from forewarn.core.maintenance.decision import ChangeSet
from forewarn.core.model import AuditEntry, EntryKind, Maintenance

__all__ = ["NAMES_MAX", "MaintenanceSpan", "Value", "build_attributes", "build_list_attributes", "derive_spans"]

NAMES_MAX = 20
"""Maximum number of names of VMs or hosts in one attribute; another attribute holds the total."""

Value = str | int | float | bool | tuple[str, ...]
"""Value of an attribute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSpan:
    """Span in the trace of a maintenance.

    Attributes:
        name: Name from a small set; details are in the attributes.
        ended_at: End; the same as `began_at` for a step.
        failure: Reason of the failure; None if it succeeded.
        is_root: True for the root span of the trace.
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
"""Span names by kind of audit log entry."""

_PHASES = {
    EntryKind.STARTED: "waiting",
    EntryKind.CANCELED: "waiting",
    EntryKind.COMPLETED: "under way",
    EntryKind.FAILED: "under way",
}
"""Phases that end with an audit log entry of that kind."""

_FAILURES = frozenset({EntryKind.FAILED, EntryKind.ATTEMPT_FAILED})
_SETS_A_MOMENT = frozenset({EntryKind.SCHEDULED, EntryKind.DEFERRED, EntryKind.EXTENDED, EntryKind.STARTED})


def derive_spans(changes: ChangeSet) -> Iterator[MaintenanceSpan]:
    """Yield the moments that a commit adds to its maintenances' traces: first the roots, then the rest in order."""
    events: Counter[str] = Counter(e.maintenance_id for e in changes.events.values() if e.id in changes.created)
    for maintenance in changes.maintenances.values():
        if maintenance.id in changes.created:
            yield _make_root(maintenance)
    for entry in changes.entries:
        if entry.maintenance_id is None or entry.kind not in _STEPS:
            continue
        known = changes.maintenances.get(entry.maintenance_id)
        if known is not None and entry.kind in _PHASES:
            yield from _make_phase(known, entry)
        yield _make_step(entry, known, events[entry.maintenance_id])


def _make_root(maintenance: Maintenance) -> MaintenanceSpan:
    return MaintenanceSpan(
        maintenance_id=maintenance.id,
        name=f"maintenance {maintenance.type.value}",
        began_at=maintenance.created_at,
        ended_at=maintenance.created_at,
        attributes=build_attributes(maintenance),
        is_root=True,
    )


def build_attributes(maintenance: Maintenance) -> dict[str, Value]:
    """Return the attributes that describe a maintenance."""
    attributes: dict[str, Value] = {
        "forewarn.maintenance.id": maintenance.id,
        "forewarn.maintenance.request_id": maintenance.request_id,
        "forewarn.maintenance.type": maintenance.type.value,
        "forewarn.maintenance.cause": maintenance.cause,
        "forewarn.maintenance.source": maintenance.source.value,
        "forewarn.maintenance.duration_s": maintenance.duration_s,
        **build_list_attributes("forewarn.maintenance.vms", maintenance.vms),
        **build_list_attributes(
            "forewarn.maintenance.hosts", dict.fromkeys(claim.host for claim in maintenance.claims)
        ),
    }
    if maintenance.force_reason is not None:
        attributes["forewarn.maintenance.force_reason"] = maintenance.force_reason
    return attributes


def build_list_attributes(name: str, items: Iterable[str]) -> dict[str, Value]:
    """Return attributes with the first names and their total number."""
    names = tuple(items)
    return {name: names[:NAMES_MAX], f"{name}.count": len(names)}


def _make_phase(maintenance: Maintenance, entry: AuditEntry) -> Iterator[MaintenanceSpan]:
    name = _PHASES[entry.kind]
    began_at = maintenance.created_at if name == "waiting" else maintenance.started_at
    # Without a duration there was no such phase, as in a maintenance that starts when it is created.
    if began_at is None or began_at >= entry.at:
        return
    yield MaintenanceSpan(
        maintenance_id=maintenance.id,
        name=name,
        began_at=began_at,
        ended_at=entry.at,
        attributes={"forewarn.maintenance.id": maintenance.id},
    )


def _make_step(entry: AuditEntry, known: Maintenance | None, events: int) -> MaintenanceSpan:
    assert entry.maintenance_id is not None  # noqa: S101 - checked by the caller
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
    return MaintenanceSpan(
        maintenance_id=entry.maintenance_id,
        name=_STEPS[entry.kind],
        began_at=entry.at,
        ended_at=entry.at,
        attributes=attributes,
        failure=(entry.reason or "") if entry.kind in _FAILURES else None,
    )
