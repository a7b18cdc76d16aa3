"""`/v1/maintenance`: schedule, look, cancel, start, complete."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query

from forewarn.control.context import (
    Actor,
    Caller,
    Context,
    ContextOf,
    IdempotencyKey,
    missing,
    reader_maintenances,
    show,
    show_all,
)
from forewarn.control.selected import SelectionOf
from forewarn.core.access import FILE_OPERATOR, Owned, Principal, Role
from forewarn.core.model import Maintenance, MaintenanceState
from forewarn.core.selection import Selection
from forewarn.errors import Forbidden, InvalidRequest, LimitExceeded, QuietHoursConflict
from forewarn.store.contract import Reader
from forewarn.wire.control import (
    DeferralIn,
    ImpactIn,
    MaintenanceIn,
    MaintenanceOut,
    MoreTimeIn,
    PageOut,
    ReasonIn,
    StartIn,
)

__all__ = ["router"]

_SEQUENCE_MAX = (1 << 63) - 1
"""What the stores' integers hold."""

router = APIRouter(prefix="/v1/maintenance", tags=["maintenance"])


@router.post("", status_code=201)
async def schedule(
    context: ContextOf, actor: Actor, key: IdempotencyKey, body: MaintenanceIn
) -> PageOut[MaintenanceOut]:
    """Schedule a maintenance.

    VMs that must not be hit together get a maintenance each: one for each fault domain of a scope, the later ones
    queued.
    """
    _check_size(context, body)
    made = await context.engine.schedule(body.to_request(), actor=actor, key=key)
    return PageOut(items=await show_all(context, made))


@router.post("/plan")
async def plan(context: ContextOf, actor: Actor, body: MaintenanceIn) -> PageOut[MaintenanceOut]:
    """What scheduling this would make now, and whom it would tell; nothing is done, and the ids mean nothing."""
    _check_size(context, body)
    found = await context.engine.rehearse(body.to_request(), actor=actor)
    return PageOut(items=[MaintenanceOut.of(maintenance, list(events)) for maintenance, events in found])


def _check_size(context: Context, body: MaintenanceIn) -> None:
    """Raises LimitExceeded when it names too much."""
    count = len(body.hosts) + len(body.vms)
    if count > context.request_vms_max:
        msg = f"{count} hosts and VMs are named: the limit is {context.request_vms_max} (request_vms_max)"
        raise LimitExceeded(msg)


@router.get("")
async def list_maintenances(  # noqa: PLR0913 - a query parameter each
    context: ContextOf,
    caller: Caller,
    chosen: SelectionOf,
    state: Annotated[list[MaintenanceState] | None, Query(description="Only these states.")] = None,
    after: Annotated[str | None, Query(max_length=32, description="`next` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1)] = 100,
) -> PageOut[MaintenanceOut]:
    """Maintenances, newest first; `since` and `until` are about when they were made.

    A page may hold fewer than `limit`, even none, while `next` says that there is more to look through.
    """
    size = min(limit, context.page_size_max)
    before = number(after)
    selection = replace(chosen, states=tuple(dict.fromkeys(state or ())))

    def read(reader: Reader) -> PageOut[MaintenanceOut]:
        page = reader.maintenances(before=before, limit=size, selection=selection, owned=caller.owned)
        following = None if page.next is None else str(page.next)
        return PageOut(items=reader_maintenances(reader, page.items, caller), next=following)

    return await context.engine.read(read)


@router.get("/{maintenance_id}")
async def show_maintenance(context: ContextOf, caller: Caller, maintenance_id: str) -> MaintenanceOut:
    """One maintenance."""
    return await show(context, maintenance_id, caller)


@router.post("/{maintenance_id}/cancel")
async def cancel(
    context: ContextOf, caller: Caller, key: IdempotencyKey, maintenance_id: str, body: ReasonIn | None = None
) -> MaintenanceOut:
    """Take back a queued or scheduled maintenance; a tenant, what a tenant asked for."""
    reason = None if body is None else body.reason
    if caller.owned is not None:
        await _check_asked_by_tenant(context, caller, maintenance_id)
    changed = await context.engine.cancel(maintenance_id, actor=caller.actor, reason=reason, key=key)
    return await _shown(context, changed, caller)


async def _check_asked_by_tenant(context: Context, caller: Principal, maintenance_id: str) -> None:
    """See that it is for the caller's VMs alone, and that who asked for it was a tenant, who then owned them.

    Raises:
        NotFound: It is for none of them.
        Forbidden: It is the platform's.
    """

    def read(reader: Reader) -> tuple[Maintenance | None, bool]:
        found = reader.maintenance(maintenance_id, caller.owned)
        if found is None:
            return None, False
        first = reader.entries(selection=Selection(maintenance_id=maintenance_id), limit=1).items
        return found, any(entry.actor.startswith(f"{Role.TENANT}:") for entry in first)

    found, is_asked_by_tenant = await context.engine.read(read)
    if found is None:
        raise missing(maintenance_id, "maintenance")
    if not (is_asked_by_tenant and caller.owns_all(found)):
        msg = f"maintenance {maintenance_id!r} was not asked for by a tenant: only an operator may cancel it"
        raise Forbidden(msg, id=maintenance_id)


@router.post("/{maintenance_id}/start")
async def start(
    context: ContextOf, actor: Actor, key: IdempotencyKey, maintenance_id: str, body: StartIn
) -> MaintenanceOut:
    """Start a scheduled maintenance without waiting for approvals or NotBefore."""
    return await _shown(context, await context.engine.start(maintenance_id, actor=actor, reason=body.reason, key=key))


@router.post("/{maintenance_id}/defer")
async def defer(
    context: ContextOf, caller: Caller, key: IdempotencyKey, maintenance_id: str, body: DeferralIn
) -> MaintenanceOut:
    """Put a scheduled maintenance to a later moment, up to its latest start."""
    if caller.owned is not None:
        await _own_names(context, caller.owned, maintenance_id)
    with _told_to(caller):
        changed = await context.engine.defer(
            maintenance_id, actor=caller.actor, not_before=body.not_before, by=body.by, reason=body.reason, key=key
        )
    return await _shown(context, changed, caller)


@router.post("/{maintenance_id}/extend")
async def extend(
    context: ContextOf, caller: Caller, key: IdempotencyKey, maintenance_id: str, body: MoreTimeIn
) -> MaintenanceOut:
    """Give who prepares for a scheduled maintenance a little more time, as its policy grants."""
    tenant = body.scope
    if caller.owned is not None:
        tenant = _own_name(tenant, await _own_names(context, caller.owned, maintenance_id), maintenance_id)
    with _told_to(caller):
        changed = await context.engine.extend(
            maintenance_id, body.by, actor=caller.actor, tenant=tenant, reason=body.reason, key=key
        )
    return await _shown(context, changed, caller)


async def _own_names(context: Context, owned: Owned, maintenance_id: str) -> list[str]:
    """Names of the tenant's scopes and lone VMs that a maintenance hits.

    Raises:
        NotFound: It hits none of them.
    """
    found = await context.engine.read(lambda reader: reader.maintenance(maintenance_id, owned))
    if found is None:
        raise missing(maintenance_id, "maintenance")
    return sorted({claim.scope or claim.vm for claim in owned.claims(found)})


def _own_name(named: str | None, names: list[str], maintenance_id: str) -> str:
    """For which of its names a tenant asks.

    Raises:
        InvalidRequest: For none of its own, or it does not say.
    """
    if named is None and len(names) == 1:
        return names[0]
    if named is None or named not in names:
        msg = f"maintenance {maintenance_id} is for {', '.join(names)} of yours: say which"
        raise InvalidRequest(msg, id=maintenance_id)
    return named


@contextmanager
def _told_to(caller: Principal) -> Iterator[None]:
    """Whose quiet hours are in the way is not told to a tenant: they may be a neighbour's."""
    try:
        yield
    except QuietHoursConflict:
        if caller.owned is None:
            raise
        msg = "every moment that is left is in the quiet hours of somebody whom it hits: it stays where it is"
        raise QuietHoursConflict(msg) from None


@router.post("/{maintenance_id}/complete")
async def complete(context: ContextOf, actor: Actor, key: IdempotencyKey, maintenance_id: str) -> MaintenanceOut:
    """Say that a started maintenance is over."""
    return await _shown(context, await context.engine.complete(maintenance_id, actor=actor, key=key))


@router.post("/{maintenance_id}/impact")
async def impact(
    context: ContextOf, actor: Actor, key: IdempotencyKey, maintenance_id: str, body: ImpactIn
) -> MaintenanceOut:
    """Record a further impact of a started maintenance; no document changes."""
    changed = await context.engine.impact(maintenance_id, body.duration_s, actor=actor, key=key)
    return await _shown(context, changed)


async def _shown(context: Context, maintenance: Maintenance, caller: Principal = FILE_OPERATOR) -> MaintenanceOut:
    return (await show_all(context, [maintenance], caller))[0]


def number(text: str | None) -> int | None:
    """The number in a page's ``after``.

    Raises:
        InvalidRequest: It is none.
    """
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or int(text) > _SEQUENCE_MAX:
        msg = "after is expected to be the `next` of the page before"
        raise InvalidRequest(msg)
    return int(text)
