"""`/v1/requests`: what VMs asked the metadata endpoint lately, and what they were answered."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from forewarn.control.context import Caller, ContextOf
from forewarn.control.maintenance import number
from forewarn.wire.advice import advise_all
from forewarn.wire.control import ExchangeOut, PageOut

__all__ = ["router"]

router = APIRouter(prefix="/v1/requests", tags=["request"])


@router.get("")
async def list_requests(
    context: ContextOf,
    caller: Caller,
    after: Annotated[str | None, Query(max_length=32, description="Only requests after this number.")] = None,
    vm: Annotated[str, Query(max_length=128, description="Only those of this VM.")] = "",
    limit: Annotated[int, Query(ge=1)] = 100,
) -> PageOut[ExchangeOut]:
    """The newest requests that are kept, oldest first; with warnings where a client relies on too much."""
    size = min(limit, context.page_size_max)
    since = number(after) or 0

    def is_own(name: str) -> bool:
        found = context.engine.identity.named(name)
        return found is not None and caller.owns(found.vm, found.scope)

    if caller.owned is not None and vm and not is_own(vm):
        return PageOut(items=[])  # before anything is read: how long it takes would tell whether there is such a VM
    await context.look()
    # Warnings depend on what the VM asked and was shown before.
    kept = context.journal.exchanges(vm=vm, is_shown=None if caller.owned is None else is_own)
    told = advise_all(kept)
    found = [ExchangeOut.of(exchange, advice) for exchange, advice in told if exchange.number > since]
    return PageOut(items=found[max(len(found) - size, 0) :])
