"""`/v1/maintenance`: schedule, list, cancel, defer, extend, start and complete maintenances."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query

from forewarn.control import commands
from forewarn.control.context import (
    Actor,
    AfterNumber,
    Caller,
    Context,
    ContextOf,
    IdempotencyHeader,
    PageLimit,
    find_maintenance,
    make_maintenances_out,
    parse_after,
    read_maintenances_out,
)
from forewarn.control.selection_query import SelectionOf
from forewarn.core.access import FILE_OPERATOR, Principal
from forewarn.core.label import parse_selector
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import Maintenance, MaintenanceState
from forewarn.errors import Hint, InvalidRequest, LimitExceeded
from forewarn.store.contract import Reader
from forewarn.wire.control_request import DeferralIn, ExtendIn, ForcedStartIn, ImpactIn, MaintenanceIn, ReasonIn
from forewarn.wire.control_response import MaintenanceOut, PageOut, PlannedMaintenanceOut

__all__ = ["router"]

router = APIRouter(prefix="/v1/maintenance", tags=["maintenance"])


@router.post("", status_code=201)
async def schedule(
    context: ContextOf, actor: Actor, key: IdempotencyHeader, body: MaintenanceIn
) -> PageOut[MaintenanceOut]:
    """Schedule a maintenance.

    Routine maintenance by the platform affects one fault domain of a scope at a time: each fault domain gets a separate
    maintenance, and the later maintenances are queued.
    """
    made = await context.engine.maintenances.schedule(await _build_request(context, body), actor=actor, key=key)
    return await read_maintenances_out(context, made)


@router.post("/plan")
async def plan(context: ContextOf, actor: Actor, body: MaintenanceIn) -> PageOut[PlannedMaintenanceOut]:
    """Preview the maintenances and events that a request would create now, and the VMs that would get no warning."""
    found = await context.engine.maintenances.preview(await _build_request(context, body), actor=actor)
    return PageOut(
        items=[PlannedMaintenanceOut.from_model(each.maintenance, each.events, each.unwarned_vms) for each in found]
    )


async def _build_request(context: Context, body: MaintenanceIn) -> MaintenanceRequest:
    """Return the request, with the hosts that have the labels now.

    Raises:
        InvalidRequest: The selector is malformed, or no host has the labels.
        LimitExceeded: The request names or selects too many hosts and VMs.
    """
    most = context.settings.request_vms_max
    count = len(body.hosts) + len(body.vms)
    if count > most:
        raise LimitExceeded(f"{count} hosts and VMs are named: the limit is {most} (request_vms_max)")
    request = body.to_request()
    if body.selector is None:
        return request
    selector = parse_selector(body.selector)
    if not selector:
        raise InvalidRequest("selector is empty: give a condition, such as rack=r1")
    # One more than is allowed, to know if there are more.
    hosts = await context.engine.read(lambda reader: tuple(reader.get_host_page(None, most + 1, selector=selector)))
    if not hosts:
        hint = Hint("see 'forewarn host list --selector'", "See all hosts", "/hosts")
        raise InvalidRequest(f"no host has the labels {body.selector!r}", hint=hint)
    if len(hosts) > most:
        raise LimitExceeded(f"the selector selects more than {most} hosts (request_vms_max)")
    return replace(request, hosts=hosts)


@router.get("")
async def list_maintenances(  # noqa: PLR0913 - a query parameter each
    context: ContextOf,
    caller: Caller,
    chosen: SelectionOf,
    state: Annotated[list[MaintenanceState] | None, Query(description="Only maintenances in these states.")] = None,
    after: AfterNumber = None,
    limit: PageLimit = 100,
) -> PageOut[MaintenanceOut]:
    """List maintenances, newest first; `since` and `until` select by time of creation.

    A page may hold fewer than `limit` maintenances, or none. The last page is the one on which `next` is null.
    """
    size = min(limit, context.settings.page_size_max)
    before = parse_after(after)
    selection = replace(chosen, states=tuple(dict.fromkeys(state or ())))

    def read(reader: Reader) -> PageOut[MaintenanceOut]:
        page = reader.list_maintenances(before=before, limit=size, selection=selection, owned=caller.ownership)
        following = None if page.next is None else str(page.next)
        return PageOut(items=make_maintenances_out(context, reader, page.items, caller), next=following)

    return await context.engine.read(read)


@router.get("/{maintenance_id}")
async def show_maintenance(context: ContextOf, caller: Caller, maintenance_id: str) -> MaintenanceOut:
    """Show one maintenance."""

    def read(reader: Reader) -> MaintenanceOut:
        found = find_maintenance(reader, maintenance_id, caller.ownership)
        return make_maintenances_out(context, reader, [found], caller)[0]

    return await context.engine.read(read)


@router.post("/{maintenance_id}/cancel")
async def cancel(
    context: ContextOf, caller: Caller, key: IdempotencyHeader, maintenance_id: str, body: ReasonIn | None = None
) -> MaintenanceOut:
    """Cancel a queued or scheduled maintenance.

    A tenant can cancel a maintenance only if it was requested by a tenant and affects only the caller's VMs.
    """
    reason = None if body is None else body.reason
    changed = await commands.cancel_maintenance(context, caller, maintenance_id, reason=reason, key=key)
    return await _make_maintenance_out(context, changed, caller)


@router.post("/{maintenance_id}/start")
async def start(
    context: ContextOf, actor: Actor, key: IdempotencyHeader, maintenance_id: str, body: ForcedStartIn
) -> MaintenanceOut:
    """Start a scheduled maintenance without waiting for approvals or NotBefore."""
    return await _make_maintenance_out(
        context, await context.engine.maintenances.start(maintenance_id, actor=actor, reason=body.reason, key=key)
    )


@router.post("/{maintenance_id}/defer")
async def defer(
    context: ContextOf, caller: Caller, key: IdempotencyHeader, maintenance_id: str, body: DeferralIn
) -> MaintenanceOut:
    """Move NotBefore of a scheduled maintenance to a later time, at most to the latest start of the maintenance."""
    changed = await commands.defer_maintenance(
        context, caller, maintenance_id, not_before=body.not_before, by=body.by, reason=body.reason, key=key
    )
    return await _make_maintenance_out(context, changed, caller)


@router.post("/{maintenance_id}/extend")
async def extend(
    context: ContextOf, caller: Caller, key: IdempotencyHeader, maintenance_id: str, body: ExtendIn
) -> MaintenanceOut:
    """Move NotBefore of a scheduled maintenance to give a tenant more time, as far as the tenant's policy allows."""
    changed = await commands.extend_maintenance(
        context, caller, maintenance_id, body.by, tenant=body.scope, reason=body.reason, key=key
    )
    return await _make_maintenance_out(context, changed, caller)


@router.post("/{maintenance_id}/complete")
async def complete(context: ContextOf, actor: Actor, key: IdempotencyHeader, maintenance_id: str) -> MaintenanceOut:
    """Report that a started maintenance is over."""
    return await _make_maintenance_out(
        context, await context.engine.maintenances.complete(maintenance_id, actor=actor, key=key)
    )


@router.post("/{maintenance_id}/impact")
async def impact(
    context: ContextOf, actor: Actor, key: IdempotencyHeader, maintenance_id: str, body: ImpactIn
) -> MaintenanceOut:
    """Record a further impact of a started maintenance. The answers to VMs do not change."""
    changed = await context.engine.maintenances.impact(maintenance_id, body.duration_s, actor=actor, key=key)
    return await _make_maintenance_out(context, changed)


async def _make_maintenance_out(
    context: Context, maintenance: Maintenance, caller: Principal = FILE_OPERATOR
) -> MaintenanceOut:
    # The default caller is for routes that only operators may call, who see everything.
    return (await read_maintenances_out(context, [maintenance], caller)).items[0]
