"""`/v1/events`: the events that VMs see, and approving them for the VMs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from forewarn.control.context import Actor, ContextOf
from forewarn.control.maintenance import number
from forewarn.core.approval import Approver
from forewarn.core.model import ACTIVE_STATES, MaintenanceState
from forewarn.store.contract import Reader
from forewarn.wire.control import ApprovalIn, ApprovalOut, ApprovalsOut, EventOut, PageOut

__all__ = ["router"]

router = APIRouter(prefix="/v1/events", tags=["event"])

_MULTI_STATUS = 207


@router.get("")
async def list_events(
    context: ContextOf,
    _actor: Actor,
    all_states: Annotated[bool, Query(alias="all", description="Finished ones too.")] = False,  # noqa: FBT002 - a query
    after: Annotated[str | None, Query(max_length=32)] = None,
    limit: Annotated[int, Query(ge=1)] = 100,
) -> PageOut[EventOut]:
    """Events, newest maintenance first. A page holds the events of `limit` maintenances."""
    states = sorted(MaintenanceState if all_states else ACTIVE_STATES)
    before = number(after)
    size = min(limit, context.page_size_max)

    def read(reader: Reader) -> PageOut[EventOut]:
        page = reader.maintenances(states=states, before=before, limit=size)
        events = reader.events_of(m.id for m in page.items)
        shown = [EventOut.of(event, m) for m in page.items for event in events.get(m.id, ())]
        return PageOut(items=shown, next=None if page.next is None else str(page.next))

    return await context.engine.read(read)


_RESULTS: dict[int | str, dict[str, Any]] = {
    207: {"model": ApprovalsOut, "description": "They differ."},
    404: {"model": ApprovalsOut, "description": "None of them is known."},
}


@router.post("/approve", responses=_RESULTS)
async def approve(context: ContextOf, actor: Actor, body: ApprovalIn, response: Response) -> ApprovalsOut:
    """Approve events on behalf of their VMs (X6). Known ones are approved even when others are unknown."""
    wanted = list(dict.fromkeys(event_id.upper() for event_id in body.event_ids))
    first = await context.engine.approve(wanted, Approver(actor=actor))
    unknown = set(first.unknown)
    result = first
    if unknown:
        known = [i for i in wanted if i not in unknown]
        result = await context.engine.approve(known, Approver(actor=actor))
    approved = set(result.approved)
    items = [
        ApprovalOut(event_id=i, status=404, outcome="unknown")
        if i in unknown
        else ApprovalOut(event_id=i, status=200, outcome="approved" if i in approved else "unchanged")
        for i in wanted
    ]
    statuses = {item.status for item in items}
    response.status_code = _MULTI_STATUS if len(statuses) > 1 else statuses.pop()
    return ApprovalsOut(items=items)
