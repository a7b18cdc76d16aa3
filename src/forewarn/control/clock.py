"""`/v1/clock`: what time the service has, and moving a virtual clock."""

from __future__ import annotations

from datetime import timedelta

from fastapi import APIRouter

from forewarn.control.context import Actor, Context, ContextOf, IdempotencyKey
from forewarn.wire.control import ClockIn, ClockOut

__all__ = ["router"]

router = APIRouter(prefix="/v1/clock", tags=["clock"])


def _shown(context: Context) -> ClockOut:
    return ClockOut(clock="virtual" if context.clock.is_virtual else "real", now=context.clock.now())


@router.get("")
async def show(context: ContextOf, _actor: Actor) -> ClockOut:
    """The service's time."""
    return _shown(context)


@router.post("/advance")
async def advance(context: ContextOf, actor: Actor, key: IdempotencyKey, body: ClockIn) -> ClockOut:
    """Move a virtual clock forward, carrying out every deadline on the way in order."""
    by = timedelta(seconds=body.by_s)
    if not await context.engine.is_done(key):
        await context.scheduler.advance(by)
        await context.engine.note_clock(by, actor=actor, key=key)
    return _shown(context)
