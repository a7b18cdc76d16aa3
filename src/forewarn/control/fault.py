"""`/v1/faults`: fault injection, to test how clients cope."""

from __future__ import annotations

from fastapi import APIRouter

from forewarn.control.context import Actor, AfterNumber, Context, ContextOf, PageLimit, cut_page
from forewarn.errors import Forbidden
from forewarn.wire.control_request import FaultIn
from forewarn.wire.control_response import ClearedFaultsOut, FaultOut, PageOut
from forewarn.wire.json_types import to_timedelta

__all__ = ["router"]

router = APIRouter(prefix="/v1/faults", tags=["fault"])


def _check_allowed(context: Context) -> None:
    """Raise Forbidden unless the service was started with fault injection, to protect VMs in production."""
    if not context.settings.fault_injection:
        raise Forbidden("fault injection is off: start the service with --fault-injection")


@router.get("")
async def list_faults(context: ContextOf, after: AfterNumber = None, limit: PageLimit = 100) -> PageOut[FaultOut]:
    """List active faults, oldest first."""
    size = min(limit, context.settings.page_size_max)
    shown, following = cut_page(context.engine.faults.registry.all, after, size)
    return PageOut(items=[FaultOut.from_model(fault) for fault in shown], next=following)


@router.post("", status_code=201)
async def inject(context: ContextOf, actor: Actor, body: FaultIn) -> FaultOut:
    """Inject a fault for some or all VMs; the fault lasts for a number of requests, for a time, or until cleared."""
    _check_allowed(context)
    fault = await context.engine.faults.inject(
        body.kind,
        actor=actor,
        vms=body.vms,
        method=body.method or "",
        count=body.count,
        rate=body.rate,
        lasts=to_timedelta(body.lasts_s),
        delay=to_timedelta(body.delay_s),
    )
    return FaultOut.from_model(fault)


@router.delete("/{fault_id}")
async def clear(context: ContextOf, actor: Actor, fault_id: int) -> ClearedFaultsOut:
    """Clear one fault."""
    return ClearedFaultsOut(count=await context.engine.faults.clear(fault_id, actor=actor))


@router.delete("")
async def clear_all(context: ContextOf, actor: Actor) -> ClearedFaultsOut:
    """Clear all faults."""
    return ClearedFaultsOut(count=await context.engine.faults.clear(actor=actor))
