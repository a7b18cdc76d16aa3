"""Maintenance page: tenants, approvals, next step and history of one maintenance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from forewarn.control.board import make_last_poll_lookup, read_item
from forewarn.core.access import Principal, is_requested_by_tenant
from forewarn.core.causes import CAUSES
from forewarn.core.maintenance.lifecycle import Trigger, get_event_status, is_allowed
from forewarn.core.maintenance.unwarned import find_unwarned_vms
from forewarn.core.model import AuditEntry, EntryKind, Event, Maintenance, MaintenanceState
from forewarn.core.policy import Policy
from forewarn.core.selection import Selection
from forewarn.dashboard import wording
from forewarn.dashboard.actions import list_allowed_buttons
from forewarn.dashboard.page import PageModel, PageView
from forewarn.dashboard.pages.schedule import OPT_IN
from forewarn.errors import NotFound
from forewarn.store.contract import Reader

__all__ = ["make_maintenance_page"]

_ENTRIES_MAX = 500
_VMS_MAX = 200
_TENANTS_MAX = 50


def make_maintenance_page(reader: Reader, view: PageView) -> PageModel:
    """Make the page of one maintenance.

    Raises:
        NotFound: No maintenance of the caller has that id.
    """
    caller = view.caller
    found = reader.get_maintenance(view.path_params["id"], caller.ownership)
    if found is None:
        msg = f"maintenance {view.path_params['id']!r} does not exist, or its retention is over"
        raise NotFound(msg, id=view.path_params["id"])
    item = read_item(reader, view.board, found, view.asked_at, view.now, caller)
    selection = Selection(maintenance_id=found.id)
    written = reader.list_entries(limit=_ENTRIES_MAX, selection=selection, owned=caller.ownership).items
    entries = [caller.redact_entry(entry) for entry in written]
    asked_at = make_last_poll_lookup(reader, item.events, view.asked_at)
    shown = item.maintenance
    extensible = _find_extensible_tenants(reader, shown)
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
        "status": {event.id: get_event_status(event, found) for event in item.events},
        "missing": {vote.event_id: vote.reason for vote in item.forecast.votes},
        "asked": {event.audience: asked_at(event.audience) for event in item.events},
        "can": _find_possible_actions(found, caller, written, extensible) & list_allowed_buttons(caller),
        "extensible": extensible,
        "unwarned": _group_unwarned_vms(shown, item.events),
        "opt_in": OPT_IN,
    }
    return PageModel(template="maintenance.html", title=wording.make_title(shown), values=values)


def _group_unwarned_vms(shown: Maintenance, events: Sequence[Event]) -> dict[str, list[str]]:
    """Return the VMs that no event warns, by the audience key of their tenant (R70c)."""
    names = set(find_unwarned_vms(shown, events))
    found: dict[str, list[str]] = {}
    for claim in shown.claims:
        key = f"vm:{claim.vm}" if claim.scope is None else f"scope:{claim.scope}"
        if claim.vm in names and (key in found or len(found) < _TENANTS_MAX):
            found.setdefault(key, []).append(claim.vm)
    return found


def _find_possible_actions(
    found: Maintenance, caller: Principal, entries: Sequence[AuditEntry], extensible: Sequence[str]
) -> set[str]:
    """Return the actions that are possible now, before the check of the caller's role."""
    can = {trigger.value for trigger in Trigger if is_allowed(found.state, trigger)}
    if found.state is MaintenanceState.SCHEDULED and found.latest_start and not CAUSES[found.cause].is_fixed:
        can.add("defer")
    if extensible:
        can.add("extend")
    if caller.ownership is None:
        return can
    is_theirs = is_requested_by_tenant(entries) and caller.owns_maintenance(found)
    return can - {"cancel"} if not is_theirs else can


def _find_extensible_tenants(reader: Reader, shown: Maintenance) -> list[str]:
    """Return the tenants whose policy still grants an extension."""
    if shown.state is not MaintenanceState.SCHEDULED or CAUSES[shown.cause].is_fixed:
        return []
    names = list(dict.fromkeys((claim.scope, claim.vm if claim.scope is None else "") for claim in shown.claims))
    scopes = reader.find_scopes({scope for scope, _ in names[:_TENANTS_MAX] if scope is not None})
    found = [name for name, scope in scopes.items() if _may_extend_again(scope.policy, shown)]
    for scope, vm in names[:_TENANTS_MAX]:
        if scope is None and any(_may_extend_again(each.policy, shown) for each in reader.list_vms(name=vm)):
            found.append(vm)
    return found


def _may_extend_again(policy: Policy, shown: Maintenance) -> bool:
    return policy.extension is not None and shown.extensions < policy.extension.times
