"""`/healthz`, `/readyz`, `/metrics`: routes for monitoring. On loopback they need no token."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request, Response

from forewarn.control.context import ContextOf, authorize_request, describe_text
from forewarn.engine.clock_guard import describe_jump
from forewarn.store.contract import Reader

__all__ = ["router"]


async def _authorize_unless_loopback(context: ContextOf, request: Request) -> None:
    if not context.is_loopback:
        await authorize_request(context, request)


router = APIRouter(tags=["health"], dependencies=[Depends(_authorize_unless_loopback)])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Report that the process responds."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(context: ContextOf) -> dict[str, str]:
    """Report that the process responds and its store accepts changes.

    A clock jump is reported in `clock`, but the service stays ready: VMs are still answered, and an operator must be
    able to connect to confirm the clock.
    """
    await context.check_ready()
    jump = context.engine.clock.guard.jump
    return {"status": "ready"} if jump is None else {"status": "ready", "clock": describe_jump(jump)}


_TEXT = describe_text("text/plain", "Prometheus text format.")


@router.get("/metrics", response_class=Response, responses=_TEXT)
async def metrics(context: ContextOf) -> Response:
    """Return metrics in the Prometheus text format."""

    def read(reader: Reader) -> None:
        context.metrics.counts.update(reader.count_by_state())
        context.metrics.subscriptions = reader.list_subscriptions()
        context.metrics.deliveries = reader.count_deliveries()

    await context.engine.read(read)
    # The requests of VMs are counted in the process that answers them (ADR 25).
    await context.refresh_endpoint_state()
    return Response(context.metrics.render_text(), media_type="text/plain; version=0.0.4; charset=utf-8")
