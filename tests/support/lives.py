"""What must hold of an audit log and of the maintenances beside it, whatever happened."""

from __future__ import annotations

from collections import defaultdict

from forewarn.core.causes import CAUSES
from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.model import AuditEntry, EntryKind, Event, EventType, Maintenance, MaintenanceState

__all__ = ["FINAL", "check_audit_log", "check_starts"]

K = EntryKind
FINAL = {K.COMPLETED, K.CANCELED, K.FAILED}


def check_audit_log(entries: list[AuditEntry]) -> None:
    """In order, and one life for each maintenance: each state once, impact and end after a start (R75 to R79, R82)."""
    assert [e.sequence for e in entries] == sorted({e.sequence for e in entries})
    assert [e.at for e in entries] == sorted(e.at for e in entries)
    lives: dict[str, list[EntryKind]] = defaultdict(list)
    for entry in entries:
        if entry.maintenance_id is not None:
            lives[entry.maintenance_id].append(entry.kind)
    for id_, kinds in lives.items():
        for kind in (K.QUEUED, K.SCHEDULED, K.STARTED, K.COMPLETED, K.CANCELED, K.FAILED):
            assert kinds.count(kind) <= 1, f"{id_} was {kind} {kinds.count(kind)} times"
        assert sum(kind in FINAL for kind in kinds) <= 1, f"{id_} ended twice"
        if K.COMPLETED in kinds:
            assert kinds.index(K.STARTED) < kinds.index(K.COMPLETED)
        if K.IMPACTED in kinds:
            assert kinds.index(K.STARTED) < kinds.index(K.IMPACTED)
            ends = [kinds.index(kind) for kind in FINAL if kind in kinds]
            last = len(kinds) - 1 - kinds[::-1].index(K.IMPACTED)
            assert all(last < end for end in ends), f"{id_} had an impact after its end"
        if K.CANCELED in kinds:
            assert K.STARTED not in kinds


def check_starts(
    maintenances: list[Maintenance], events: dict[str, list[Event]], entries: list[AuditEntry], rules: DecisionRules
) -> None:
    """R76, R83, R84, invariant 4: not before NotBefore, unless all voted, it was forced, or the hardware failed."""
    starts = {e.maintenance_id: e for e in entries if e.kind is K.STARTED}
    withdrawn = {e.event_id: e.sequence for e in entries if e.kind is K.WITHDRAWN}
    for m in maintenances:
        if m.started_at is None:
            continue
        start = starts[m.id]
        assert (start.at, m.started_at >= m.created_at) == (m.started_at, True)
        assert m.not_before is not None
        if m.started_at >= m.not_before or start.reason == "now" or CAUSES[m.cause].is_immediate:
            continue
        votes = [v for v in events.get(m.id, []) if withdrawn.get(v.id, start.sequence) >= start.sequence]
        assert votes, f"{m.id} started early without any vote"
        assert all(v.approved_at is not None and v.approved_at <= m.started_at for v in votes), f"{m.id} started early"
        # What a policy approves never shows as Scheduled, so there is nothing to delay (X5).
        last = max(
            (v.approved_at for v in votes if v.approved_at is not None and v.approved_by != "policy"), default=None
        )
        assert last is None or m.started_at >= last + rules.start_delay, f"{m.id} started sooner than the delay"
    _check_power(maintenances)


def _check_power(maintenances: list[Maintenance]) -> None:
    """R74, R90: what takes a VM away happens to it once."""
    gone: set[str] = set()
    for m in maintenances:
        if m.state is MaintenanceState.COMPLETED and m.type in {EventType.PREEMPT, EventType.TERMINATE}:
            assert gone.isdisjoint(m.vms)
            gone.update(m.vms)
