"""`/v1/faults`: have things go wrong on purpose, to see what clients make of it."""

from __future__ import annotations

from datetime import timedelta

from fastapi import APIRouter

from forewarn.control.context import Actor, Context, ContextOf
from forewarn.errors import Forbidden
from forewarn.wire.control import ClearedOut, FaultIn, FaultOut, PageOut

__all__ = ["router"]

router = APIRouter(prefix="/v1/faults", tags=["fault"])


def _check_allowed(context: Context) -> None:
    """Raises Forbidden unless the service was started for it: nobody should do this by mistake to VMs that matter."""
    if not context.has_faults:
        msg = "this service injects no faults: start it with --fault-injection"
        raise Forbidden(msg)


@router.get("")
async def list_faults(context: ContextOf, _actor: Actor) -> PageOut[FaultOut]:
    """Faults in force, oldest first."""
    return PageOut(items=[FaultOut.of(fault) for fault in context.engine.faults.all])


@router.post("", status_code=201)
async def inject(context: ContextOf, actor: Actor, body: FaultIn) -> FaultOut:
    """Inject a fault, for some VMs or all, for a number of requests, for a time, or until it is cleared."""
    _check_allowed(context)
    fault = await context.engine.inject(
        body.kind,
        actor=actor,
        vms=body.vms,
        method=body.method or "",
        count=body.count,
        rate=body.rate,
        lasts=None if body.lasts_s is None else timedelta(seconds=body.lasts_s),
        delay=None if body.delay_s is None else timedelta(seconds=body.delay_s),
    )
    return FaultOut.of(fault)


@router.delete("/{fault_id}")
async def clear(context: ContextOf, actor: Actor, fault_id: int) -> ClearedOut:
    """End one fault."""
    return ClearedOut(count=await context.engine.clear_faults(fault_id, actor=actor))


@router.delete("")
async def clear_all(context: ContextOf, actor: Actor) -> ClearedOut:
    """End all faults."""
    return ClearedOut(count=await context.engine.clear_faults(actor=actor))
