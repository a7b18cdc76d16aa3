"""What must hold of every run, whatever happened in it.

Each property is a function of the world at its end; it returns a line for each time that it was broken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from forewarn.core.model import EntryKind

if TYPE_CHECKING:
    from forewarn.testing.simulation.world import World

__all__ = ["PROPERTIES", "find_complaints"]

Property = Callable[["World"], Iterator[str]]

_PREPARING = "prepare"
_UNDOING = {"recover", "canceled"}


def everything_ends(world: World) -> Iterator[str]:
    """Once everything is healed, each maintenance ends and each agent comes to rest."""
    yield from world.left


def accepted_approvals_are_kept(world: World) -> Iterator[str]:
    """An approval that was answered with 200 is in the audit log (invariant 5)."""
    stored = {entry.event_id for entry in world.entries if entry.kind is EntryKind.APPROVED}
    for fact in world.trace.facts:
        # An event that has started in the meantime is not approved any more, but such an approval is answered 200 too.
        if fact.kind == "approved" and fact.details["event"] not in stored:
            maintenance = world.find_maintenance(fact.details["event"])
            if maintenance is None or maintenance.started_at is None:
                yield f"{fact.subject}: the approval of {fact.details['event']} at {fact.at_s:.3f} s is lost"


def documents_never_go_back(world: World) -> Iterator[str]:
    """The incarnation that a VM is shown never falls (R42), and an event never goes from Started to Scheduled."""
    shown: dict[str, int] = defaultdict(int)
    started: dict[str, set[str]] = defaultdict(set)
    for fact in world.trace.facts:
        if fact.kind != "document":
            continue
        vm, incarnation = fact.subject, fact.details["incarnation"]
        if incarnation < shown[vm]:
            yield f"{vm}: incarnation {incarnation} at {fact.at_s:.3f} s after {shown[vm]}"
        shown[vm] = max(shown[vm], incarnation)
        for event_id, (status, _) in fact.details["events"].items():
            if status == "Started":
                started[vm].add(event_id)
            elif event_id in started[vm]:
                yield f"{vm}: event {event_id} is Scheduled again at {fact.at_s:.3f} s"


def documents_show_the_own_scope_only(world: World) -> Iterator[str]:
    """A VM is shown events of its own scope only (invariant 8)."""
    for fact in world.trace.facts:
        if fact.kind == "document":
            visible = world.scope_of(fact.subject)
            for event_id, (_, resources) in fact.details["events"].items():
                if not visible.issuperset(resources):
                    yield f"{fact.subject}: event {event_id} of {', '.join(resources)} at {fact.at_s:.3f} s"


def impacts_wait_for_approval(world: World) -> Iterator[str]:
    """Nothing starts before NotBefore unless every event with a vote is approved (invariant 4)."""
    for maintenance in world.maintenances:
        started_at = maintenance.started_at
        if started_at is None or maintenance.not_before is None or started_at >= maintenance.not_before:
            continue
        for event in world.events.get(maintenance.id, ()):
            if event.approved_at is None and maintenance.force_reason is None:
                yield f"maintenance {maintenance.id} started at {started_at} without approval of {event.id}"


def impacts_wait_for_preparation(world: World) -> Iterator[str]:
    """No impact while an agent prepares for it, unless NotBefore has passed."""
    preparing: dict[tuple[str, str], float] = {}
    for fact in world.trace.facts:
        if fact.kind == "step" and fact.details["step"] == _PREPARING:
            preparing[fact.subject, fact.details["event"]] = fact.at_s
        elif fact.kind == "step-end":
            preparing.pop((fact.subject, fact.details["event"]), None)
        elif fact.kind == "kill":
            for key in [key for key in preparing if key[0] == fact.subject]:
                del preparing[key]
        elif fact.kind == "impact":
            maintenance = next(m for m in world.maintenances if m.id == fact.details["maintenance"])
            if maintenance.not_before is None or world.true_time(fact.at_s) >= maintenance.not_before:
                continue
            events = {event.id for event in world.events.get(maintenance.id, ())}
            for vm, event_id in preparing:
                if event_id in events and vm in maintenance.vms:
                    yield f"{vm}: impact of {event_id} at {fact.at_s:.3f} s while it prepares"


def recoveries_follow_preparations(world: World) -> Iterator[str]:
    """Each preparation that succeeded is undone, and once."""
    prepared: dict[tuple[str, str], int] = defaultdict(int)
    undone: dict[tuple[str, str], int] = defaultdict(int)
    for fact in world.trace.facts:
        if fact.kind == "step-end" and fact.details["how"] == "done":
            key = (fact.subject, fact.details["event"])
            if fact.details["step"] == _PREPARING:
                prepared[key] += 1
            elif fact.details["step"] in _UNDOING:
                undone[key] += 1
    for key in prepared:
        if undone[key] == 0:
            yield f"{key[0]}: the preparation for {key[1]} was never undone"


PROPERTIES: tuple[Property, ...] = (
    everything_ends,
    accepted_approvals_are_kept,
    documents_never_go_back,
    documents_show_the_own_scope_only,
    impacts_wait_for_approval,
    impacts_wait_for_preparation,
    recoveries_follow_preparations,
)


def find_complaints(world: World) -> list[str]:
    """Check every property, and return what was broken."""
    return [f"{each.__name__}: {line}" for each in PROPERTIES for line in each(world)]
