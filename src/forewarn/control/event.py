"""`/v1/events`: events that VMs see, and approving them for the VMs."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from forewarn.control import commands
from forewarn.control.context import AfterNumber, Caller, ContextOf, parse_after
from forewarn.control.selection_query import SelectionOf
from forewarn.core.maintenance.lifecycle import EVENT_STATUS
from forewarn.core.model import ACTIVE_STATES, EventStatus, MaintenanceState
from forewarn.core.selection import matches_event
from forewarn.store.contract import Reader
from forewarn.wire.control_request import ApprovalIn
from forewarn.wire.control_response import ApprovalResultOut, ApprovalResultsOut, EventOut, PageOut

__all__ = ["router"]

router = APIRouter(prefix="/v1/events", tags=["event"])

_MULTI_STATUS = 207
_STATES = {status: [state for state, shown in EVENT_STATUS.items() if shown is status] for status in EventStatus} | {
    # The maintenance of a withdrawn event goes on (R70).
    EventStatus.WITHDRAWN: [MaintenanceState.SCHEDULED, MaintenanceState.STARTED]
}
"""States that a maintenance may be in if its events have that status."""
_STATUSES = {"unknown": 404, "refused": 409}


@router.get("")
async def list_events(  # noqa: PLR0913 - a query parameter each
    context: ContextOf,
    caller: Caller,
    chosen: SelectionOf,
    status: Annotated[
        list[EventStatus] | None, Query(description="Only events with these statuses, also of finished maintenances.")
    ] = None,
    all_states: Annotated[bool, Query(alias="all", description="Include finished events.")] = False,  # noqa: FBT002 - a query
    after: AfterNumber = None,
    limit: Annotated[int, Query(ge=1, description="Maximum number of maintenances.")] = 100,
) -> PageOut[EventOut]:
    """List events, newest maintenance first. A page holds the events of up to `limit` maintenances.

    Events of finished maintenances are left out unless `status`, `since`, `until` or `all` is given. With `vm`, `scope`
    or `host`, only events that name this VM, or a VM of this scope or host, are listed. An empty page is the last page
    only if `next` is null.
    """
    states: set[MaintenanceState] = {state for each in status or () for state in _STATES[each]}
    if not (status or all_states or chosen.since or chosen.until):
        states = set(ACTIVE_STATES)
    selection = replace(chosen, states=tuple(sorted(states)))
    wanted = set(status or EventStatus)
    before = parse_after(after)
    size = min(limit, context.settings.page_size_max)

    def read(reader: Reader) -> PageOut[EventOut]:
        page = reader.list_maintenances(before=before, limit=size, selection=selection, owned=caller.ownership)
        events = reader.find_events_of(m.id for m in page.items)
        pairs = [(e, m) for m in page.items for e in caller.redact_events(m, events.get(m.id, ()))]
        taken = [EventOut.from_model(event, m) for event, m in pairs if matches_event(selection, event, m)]
        # The store selects maintenances by state, which is coarser than the status of an event.
        shown = [event for event in taken if event.status in wanted]
        return PageOut(items=shown, next=None if page.next is None else str(page.next))

    return await context.engine.read(read)


_RESULTS: dict[int | str, dict[str, Any]] = {
    207: {"model": ApprovalResultsOut, "description": "The outcomes differ."},
    404: {"model": ApprovalResultsOut, "description": "None of the events is known."},
    409: {"model": ApprovalResultsOut, "description": "Policies leave all approvals to other parties."},
}


@router.post("/approve", responses=_RESULTS)
async def approve(context: ContextOf, caller: Caller, body: ApprovalIn, response: Response) -> ApprovalResultsOut:
    """Approve events on behalf of their VMs (X6).

    Each event is judged separately: an unknown id, or a policy that reserves an approval for another party, does not
    affect the remaining events.
    """
    outcomes = await commands.approve_events(context, caller, body.event_ids)
    items = [ApprovalResultOut(event_id=i, status=_STATUSES.get(o, 200), outcome=o) for i, o in outcomes.items()]
    statuses = {item.status for item in items}
    response.status_code = _MULTI_STATUS if len(statuses) > 1 else statuses.pop()
    return ApprovalResultsOut(items=items)
