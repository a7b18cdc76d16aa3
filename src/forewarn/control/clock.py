"""`/v1/clock`: time of the service, and advancing a virtual clock."""

from __future__ import annotations

from datetime import timedelta

from fastapi import APIRouter

from forewarn.control.context import Actor, Context, ContextOf, IdempotencyHeader
from forewarn.wire.control_request import ClockAdvanceIn, ClockConfirmationIn
from forewarn.wire.control_response import ClockOut

__all__ = ["make_clock_out", "router"]

router = APIRouter(prefix="/v1/clock", tags=["clock"])


def make_clock_out(context: Context) -> ClockOut:
    """Return the time of the service."""
    jump = context.engine.clock.guard.jump
    return ClockOut(
        clock="virtual" if context.clock.is_virtual else "real",
        now=context.clock.now(),
        jump_s=None if jump is None else jump.by.total_seconds(),
    )


@router.get("")
async def show(context: ContextOf) -> ClockOut:
    """Show the service's time."""
    return make_clock_out(context)


@router.post("/confirm")
async def confirm(context: ContextOf, actor: Actor, body: ClockConfirmationIn | None = None) -> ClockOut:
    """After a jump of the clock, confirm that the time is correct; everything that is due by this time starts."""
    await context.engine.clock.confirm(actor=actor, reason=None if body is None else body.reason)
    context.scheduler.wake()
    return make_clock_out(context)


@router.post("/advance")
async def advance(context: ContextOf, actor: Actor, key: IdempotencyHeader, body: ClockAdvanceIn) -> ClockOut:
    """Advance a virtual clock; everything that becomes due on the way is carried out in order."""
    by = timedelta(seconds=body.by_s)
    # Checked first: a repeated request must not advance the clock a second time.
    if not await context.engine.clock.was_advanced(key):
        await context.scheduler.advance_clock(by)
        await context.engine.clock.record_advance(by, actor=actor, key=key)
    return make_clock_out(context)
