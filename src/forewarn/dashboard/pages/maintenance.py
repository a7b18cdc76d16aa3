"""One maintenance: its tenants, who has approved, what happens next, and what has happened."""

from __future__ import annotations

from collections import defaultdict

from forewarn.core.lifecycle import Trigger, allows, event_status
from forewarn.core.model import EntryKind
from forewarn.core.selection import Selection
from forewarn.dashboard import words
from forewarn.dashboard.board import item_of, remembered
from forewarn.dashboard.page import Look, Page
from forewarn.errors import NotFound
from forewarn.store.contract import Reader

__all__ = ["maintenance"]

_ENTRIES_MAX = 500
_VMS_MAX = 200


def maintenance(reader: Reader, look: Look) -> Page:
    """One maintenance.

    Raises:
        NotFound: There is none of that id.
    """
    found = reader.maintenance(look.path["id"])
    if found is None:
        msg = f"maintenance {look.path['id']!r} does not exist, or was forgotten"
        raise NotFound(msg, id=look.path["id"])
    item = item_of(reader, look.board, found, look.asked_at, look.now)
    entries = reader.entries(limit=_ENTRIES_MAX, selection=Selection(maintenance_id=found.id)).items
    asked_at = remembered(reader, {found.id: item.events}, look.asked_at)
    measured = [entry.reason for entry in entries if entry.kind is EntryKind.IMPACT_MEASURED]
    hosts: dict[str, list[str]] = defaultdict(list)
    for claim in found.claims[:_VMS_MAX]:
        hosts[claim.host].append(claim.vm)
    missing = {vote.event_id: vote.why for vote in item.outlook.votes}
    values = {
        "item": item,
        "m": found,
        "entries": entries,
        "approvals": {entry.event_id: entry for entry in entries if entry.kind is EntryKind.APPROVED},
        "measured": measured,
        "hosts": dict(hosts),
        "more_vms": max(len(found.claims) - _VMS_MAX, 0),
        "status": {event.id: event_status(event, found) for event in item.events},
        "missing": missing,
        "asked": {event.audience: asked_at(event.audience) for event in item.events},
        "can": {trigger.value for trigger in Trigger if allows(found.state, trigger)},
    }
    return Page(template="maintenance.html", title=words.title(found), values=values)
