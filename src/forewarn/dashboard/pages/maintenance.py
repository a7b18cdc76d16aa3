"""Maintenance page: tenants, approvals, next step and history of one maintenance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from forewarn.core.access import Principal, Role
from forewarn.core.causes import CAUSES
from forewarn.core.lifecycle import Trigger, allows, event_status
from forewarn.core.model import Entry, EntryKind, Event, Maintenance, MaintenanceState
from forewarn.core.policy import Policy
from forewarn.core.selection import Selection
from forewarn.core.warning import unwarned_vms
from forewarn.dashboard import words
from forewarn.dashboard.act import may
from forewarn.dashboard.board import item_of, remembered
from forewarn.dashboard.page import Look, Page
from forewarn.dashboard.pages.schedule import OPT_IN
from forewarn.errors import NotFound
from forewarn.store.contract import Reader

__all__ = ["maintenance"]

_ENTRIES_MAX = 500
_VMS_MAX = 200
_TENANTS_MAX = 50


def maintenance(reader: Reader, look: Look) -> Page:
    """Make the page of one maintenance.

    Raises:
        NotFound: No maintenance of the caller has that id.
    """
    caller = look.caller
    found = reader.maintenance(look.path["id"], caller.owned)
    if found is None:
        msg = f"maintenance {look.path['id']!r} does not exist, or was forgotten"
        raise NotFound(msg, id=look.path["id"])
    item = item_of(reader, look.board, found, look.asked_at, look.now, caller)
    selection = Selection(maintenance_id=found.id)
    written = reader.entries(limit=_ENTRIES_MAX, selection=selection, owned=caller.owned).items
    entries = [caller.shown_entry(entry) for entry in written]
    asked_at = remembered(reader, item.events, look.asked_at)
    shown = item.maintenance
    extensible = _extensible(reader, shown)
    hosts: dict[str, list[str]] = defaultdict(list)
    for claim in shown.claims[:_VMS_MAX]:
        hosts[claim.host].append(claim.vm)
    values = {
        "item": item,
        "m": shown,
        "entries": entries,
        "approvals": {entry.event_id: entry for entry in entries if entry.kind is EntryKind.APPROVED},
        "measured": [entry.reason for entry in entries if entry.kind is EntryKind.IMPACT_MEASURED],
        "hosts": dict(hosts),
        "more_vms": max(len(shown.claims) - _VMS_MAX, 0),
        "status": {event.id: event_status(event, found) for event in item.events},
        "missing": {vote.event_id: vote.why for vote in item.outlook.votes},
        "asked": {event.audience: asked_at(event.audience) for event in item.events},
        "can": _possible(found, caller, written, extensible) & may(caller),
        "extensible": extensible,
        "unwarned": _unwarned(shown, item.events),
        "opt_in": OPT_IN,
    }
    return Page(template="maintenance.html", title=words.title(shown), values=values)


def _unwarned(shown: Maintenance, events: Sequence[Event]) -> dict[str, list[str]]:
    """Return the VMs that no event warns, by the audience key of their tenant (R70c)."""
    names = set(unwarned_vms(shown, events))
    found: dict[str, list[str]] = {}
    for claim in shown.claims:
        key = f"vm:{claim.vm}" if claim.scope is None else f"scope:{claim.scope}"
        if claim.vm in names and (key in found or len(found) < _TENANTS_MAX):
            found.setdefault(key, []).append(claim.vm)
    return found


def _possible(found: Maintenance, caller: Principal, entries: Sequence[Entry], extensible: Sequence[str]) -> set[str]:
    """Return the actions that are possible now, before the check of the caller's role."""
    can = {trigger.value for trigger in Trigger if allows(found.state, trigger)}
    if found.state is MaintenanceState.SCHEDULED and found.latest_start and not CAUSES[found.cause].is_fixed:
        can.add("defer")
    if extensible:
        can.add("extend")
    if caller.owned is None:
        return can
    is_theirs = bool(entries) and entries[0].actor.startswith(f"{Role.TENANT}:") and caller.owns_all(found)
    return can - {"cancel"} if not is_theirs else can


def _extensible(reader: Reader, shown: Maintenance) -> list[str]:
    """Return the tenants whose policy still grants an extension."""
    if shown.state is not MaintenanceState.SCHEDULED or CAUSES[shown.cause].is_fixed:
        return []
    names = list(dict.fromkeys((claim.scope, claim.vm if claim.scope is None else "") for claim in shown.claims))
    scopes = reader.scopes({scope for scope, _ in names[:_TENANTS_MAX] if scope is not None})
    found = [name for name, scope in scopes.items() if _has_more(scope.policy, shown)]
    for scope, vm in names[:_TENANTS_MAX]:
        if scope is None and any(_has_more(each.policy, shown) for each in reader.vms(name=vm)):
            found.append(vm)
    return found


def _has_more(policy: Policy, shown: Maintenance) -> bool:
    return policy.extension is not None and shown.extensions < policy.extension.times
