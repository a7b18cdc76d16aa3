"""The sentences of the actors, made from the observations."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from forewarn.demo.act_record import ActRecord, Sighting
from forewarn.demo.vms import CAST
from forewarn.wire.document import Event

__all__ = ["describe_approval", "describe_sighting", "format_not_before", "join_names"]


def describe_sighting(sighting: Sighting, previous: Sighting | None) -> str:
    """Return a VM's sentences on a document that is new to it, and on its reaction."""
    vm = sighting.vm
    seen = f"sees incarnation {sighting.incarnation}{' at once' if vm.uses_long_poll else ''}"
    if previous is None:
        return f"asks for the first time: incarnation {sighting.incarnation}, no events"
    if not sighting.events:
        return f"{seen}: event gone, {vm.recovers}"
    if previous.events:
        return f'{seen}: Started, NotBefore ""'
    whose = "its own event" if vm.scope is None else f"the events of all of {vm.scope}"
    rows = [f"{seen}: {whose}"]
    rows += [f"  {describe_event(event)}" for event in sighting.events]
    is_announced = sighting.own_event is not None and sighting.own_event.status == "Scheduled"
    if not is_announced:
        rows.append("there is nothing to approve")
    elif vm.preparation_s:
        rows.append(f"{vm.reaction} before it approves")
    return "\n".join(rows)


def describe_event(event: Event) -> str:
    """Describe one event of a document."""
    not_before = format_not_before(event.not_before)
    return f"{event.type} of {', '.join(event.resources)} {event.status}, NotBefore {not_before}"


def format_not_before(not_before: datetime | None) -> str:
    """Return the time of day in GMT, or ``""``, as documents show it once the event has started."""
    return '""' if not_before is None else f"{not_before:%H:%M:%S}"


def describe_approval(name: str, record: ActRecord) -> str:
    """Return the platform's sentence for a stored approval."""
    approved = {entry.vm for entry in record.entries if entry.kind == "approved"}
    missing = [vm.name for vm in CAST if vm.name not in approved]
    if missing:
        return f"{name} has approved; waits for {join_names(missing)}"
    return f"{name} has approved; all VMs have approved"


def join_names(names: Iterable[str]) -> str:
    """Join names as ``a, b and c``."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
