"""`/v1/events`: events that VMs see, and approving them for the VMs."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from forewarn.control import commands
from forewarn.control.context import Caller, ContextOf
from forewarn.control.maintenance import number
from forewarn.control.selected import SelectionOf
from forewarn.core.lifecycle import EVENT_STATUS
from forewarn.core.model import ACTIVE_STATES, EventStatus, MaintenanceState
from forewarn.core.selection import takes_event
from forewarn.store.contract import Reader
from forewarn.wire.control import ApprovalIn, ApprovalOut, ApprovalsOut, EventOut, PageOut

__all__ = ["router"]

router = APIRouter(prefix="/v1/events", tags=["event"])

_MULTI_STATUS = 207
_STATES = {status: [state for state, shown in EVENT_STATUS.items() if shown is status] for status in EventStatus} | {
    EventStatus.WITHDRAWN: [MaintenanceState.SCHEDULED, MaintenanceState.STARTED]
}
"""States that a maintenance may be in if its events have that status."""
_STATUSES = {"unknown": 404, "refused": 409}


@router.get("")
async def list_events(  # noqa: PLR0913 - a query parameter each
    context: ContextOf,
    caller: Caller,
    chosen: SelectionOf,
    status: Annotated[list[EventStatus] | None, Query(description="Only these; finished ones too.")] = None,
    all_states: Annotated[bool, Query(alias="all", description="Finished ones too.")] = False,  # noqa: FBT002 - a query
    after: Annotated[str | None, Query(max_length=32)] = None,
    limit: Annotated[int, Query(ge=1)] = 100,
) -> PageOut[EventOut]:
    """List events, newest maintenance first. A page holds the events of `limit` maintenances.

    Events of finished maintenances are left out unless `status`, `since`, `until` or `all` is given. With `vm`, `scope`
    or `host`, only the events of a maintenance that name it are listed. A page may be empty although `next` is set;
    there may be more on the next page.
    """
    states: set[MaintenanceState] = {state for each in status or () for state in _STATES[each]}
    if not (status or all_states or chosen.since or chosen.until):
        states = set(ACTIVE_STATES)
    selection = replace(chosen, states=tuple(sorted(states)))
    wanted = set(status or EventStatus)
    before = number(after)
    size = min(limit, context.page_size_max)

    def read(reader: Reader) -> PageOut[EventOut]:
        page = reader.maintenances(before=before, limit=size, selection=selection, owned=caller.owned)
        events = reader.events_of(m.id for m in page.items)
        pairs = [(e, m) for m in page.items for e in caller.shown_events(m, events.get(m.id, ()))]
        taken = [EventOut.of(event, m) for event, m in pairs if takes_event(selection, event, m)]
        shown = [event for event in taken if event.status in wanted]
        return PageOut(items=shown, next=None if page.next is None else str(page.next))

    return await context.engine.read(read)


_RESULTS: dict[int | str, dict[str, Any]] = {
    207: {"model": ApprovalsOut, "description": "They differ."},
    404: {"model": ApprovalsOut, "description": "None of them is known."},
    409: {"model": ApprovalsOut, "description": "Policies leave all of them to others."},
}


@router.post("/approve", responses=_RESULTS)
async def approve(context: ContextOf, caller: Caller, body: ApprovalIn, response: Response) -> ApprovalsOut:
    """Approve events on behalf of their VMs (X6).

    Approves as many as possible, even if others are unknown or a policy leaves their approval to another party.
    """
    outcomes = await commands.approve(context, caller, body.event_ids)
    items = [ApprovalOut(event_id=i, status=_STATUSES.get(o, 200), outcome=o) for i, o in outcomes.items()]
    statuses = {item.status for item in items}
    response.status_code = _MULTI_STATUS if len(statuses) > 1 else statuses.pop()
    return ApprovalsOut(items=items)
