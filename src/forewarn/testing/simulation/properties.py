"""What must hold of every run, whatever happened in it.

Each property is a function of the outcome. It yields a line for each time that it was broken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from forewarn.agent.rule import EventStep
from forewarn.core.model import EntryKind
from forewarn.testing.simulation.outcome import Outcome

__all__ = ["PROPERTIES", "find_complaints"]

Property = Callable[[Outcome], Iterator[str]]

_UNDOING = {EventStep.RECOVER.value, EventStep.CANCELED.value}


def everything_ends(outcome: Outcome) -> Iterator[str]:
    """Once everything is healed, each maintenance ends and each agent comes to rest."""
    yield from outcome.left


def accepted_approvals_are_kept(outcome: Outcome) -> Iterator[str]:
    """An approval that was answered with 200 is in the audit log (invariant 5)."""
    stored = {entry.event_id for entry in outcome.entries if entry.kind is EntryKind.APPROVED}
    for fact in outcome.facts:
        if fact.kind != "approved" or fact.details["event"] in stored:
            continue
        maintenance = outcome.by_event.get(fact.details["event"])
        # An event that has started without it needs no approval any more; one that comes then is answered 200, too.
        if maintenance is None or maintenance.started_at is None:
            yield f"{fact.subject}: the approval of {fact.details['event']} at {fact.at_s:.3f} s is lost"


def documents_never_go_back(outcome: Outcome) -> Iterator[str]:
    """The incarnation that a VM is shown never falls (R42), and no event goes from Started to Scheduled."""
    newest: dict[str, int] = defaultdict(int)
    started: dict[str, set[str]] = defaultdict(set)
    for fact in outcome.facts:
        if fact.kind != "document":
            continue
        vm, incarnation = fact.subject, fact.details["incarnation"]
        if incarnation < newest[vm]:
            yield f"{vm}: incarnation {incarnation} at {fact.at_s:.3f} s after {newest[vm]}"
        newest[vm] = max(newest[vm], incarnation)
        for event_id, (status, _) in fact.details["events"].items():
            if status == "Started":
                started[vm].add(event_id)
            elif event_id in started[vm]:
                yield f"{vm}: event {event_id} is Scheduled again at {fact.at_s:.3f} s"


def documents_show_the_own_scope_only(outcome: Outcome) -> Iterator[str]:
    """A VM is shown events of its scope only (invariant 8)."""
    for fact in outcome.facts:
        if fact.kind == "document":
            for event_id, (_, resources) in fact.details["events"].items():
                if not outcome.visible[fact.subject].issuperset(resources):
                    yield f"{fact.subject}: event {event_id} of {', '.join(resources)} at {fact.at_s:.3f} s"


def starts_wait_for_approval(outcome: Outcome) -> Iterator[str]:
    """Nothing starts before NotBefore unless every event is approved, or an operator forced it (invariant 4)."""
    for maintenance in outcome.maintenances:
        started_at, not_before = maintenance.started_at, maintenance.not_before
        if started_at is None or not_before is None or started_at >= not_before:
            continue
        for event in outcome.events.get(maintenance.id, ()):
            if event.approved_at is None and maintenance.force_reason is None:
                yield f"maintenance {maintenance.id} started at {started_at} without approval of {event.id}"


def impacts_follow_starts(outcome: Outcome) -> Iterator[str]:
    """No VM is interrupted unless its maintenance has started (invariant 3)."""
    started = {maintenance.id for maintenance in outcome.maintenances if maintenance.started_at is not None}
    for fact in outcome.facts:
        if fact.kind == "impact" and fact.details["maintenance"] not in started:
            yield f"maintenance {fact.details['maintenance']}: impact at {fact.at_s:.3f} s without a start"


def impacts_wait_for_preparation(outcome: Outcome) -> Iterator[str]:
    """No VM is interrupted while its agent prepares for that, unless NotBefore has passed."""
    preparing: dict[tuple[str, str], None] = {}
    by_id = {maintenance.id: maintenance for maintenance in outcome.maintenances}
    for fact in outcome.facts:
        match fact.kind:
            case "step" if fact.details["step"] == EventStep.PREPARE.value:
                preparing[fact.subject, fact.details["event"]] = None
            case "step-end" if fact.details["step"] == EventStep.PREPARE.value:
                preparing.pop((fact.subject, fact.details["event"]), None)
            case "kill" | "failed":
                preparing = {key: None for key in preparing if key[0] != fact.subject}
            case "impact":
                maintenance = by_id[fact.details["maintenance"]]
                not_before = maintenance.not_before
                if not_before is None or outcome.find_true_time(fact.at_s) >= not_before:
                    continue
                own = {event.id for event in outcome.events.get(maintenance.id, ())}
                for vm, event_id in preparing:
                    if event_id in own and vm in fact.details["vms"]:
                        yield f"{vm}: impact of {event_id} at {fact.at_s:.3f} s while it prepares"


def preparations_are_undone(outcome: Outcome) -> Iterator[str]:
    """Each preparation that succeeded is undone after the event."""
    prepared: dict[tuple[str, str], float] = {}
    for fact in outcome.facts:
        if fact.kind != "step-end" or fact.details["how"] != "done":
            continue
        key = fact.subject, fact.details["event"]
        if fact.details["step"] == EventStep.PREPARE.value:
            prepared[key] = fact.at_s
        elif fact.details["step"] in _UNDOING:
            prepared.pop(key, None)
    for (vm, event_id), at_s in prepared.items():
        yield f"{vm}: the preparation for {event_id} at {at_s:.3f} s was never undone"


PROPERTIES: tuple[Property, ...] = (
    everything_ends,
    accepted_approvals_are_kept,
    documents_never_go_back,
    documents_show_the_own_scope_only,
    starts_wait_for_approval,
    impacts_follow_starts,
    impacts_wait_for_preparation,
    preparations_are_undone,
)
"""All properties."""


def find_complaints(outcome: Outcome) -> list[str]:
    """Check every property, and return a line for each time that one was broken."""
    return [f"{each.__name__}: {line}" for each in PROPERTIES for line in each(outcome)]
