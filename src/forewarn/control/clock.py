"""`/v1/clock`: time of the service, and advancing a virtual clock."""

from __future__ import annotations

from datetime import timedelta

from fastapi import APIRouter

from forewarn.control.context import Actor, Context, ContextOf, IdempotencyKey
from forewarn.wire.control import ClockConfirmationIn, ClockIn, ClockOut

__all__ = ["router"]

router = APIRouter(prefix="/v1/clock", tags=["clock"])


def _shown(context: Context) -> ClockOut:
    jump = context.engine.clock_guard.jump
    return ClockOut(
        clock="virtual" if context.clock.is_virtual else "real",
        now=context.clock.now(),
        jump_s=None if jump is None else jump.by.total_seconds(),
    )


@router.get("")
async def show(context: ContextOf, _actor: Actor) -> ClockOut:
    """Show the service's time."""
    return _shown(context)


@router.post("/confirm")
async def confirm(context: ContextOf, actor: Actor, body: ClockConfirmationIn | None = None) -> ClockOut:
    """Confirm a clock that has jumped: everything that is due at its present time starts."""
    await context.engine.confirm_clock(actor=actor, reason=None if body is None else body.reason)
    context.scheduler.wake()
    return _shown(context)


@router.post("/advance")
async def advance(context: ContextOf, actor: Actor, key: IdempotencyKey, body: ClockIn) -> ClockOut:
    """Advance a virtual clock, carrying out every deadline on the way in order."""
    by = timedelta(seconds=body.by_s)
    if not await context.engine.is_done(key):
        await context.scheduler.advance(by)
        await context.engine.note_clock(by, actor=actor, key=key)
    return _shown(context)
