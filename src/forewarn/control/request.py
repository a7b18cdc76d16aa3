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
    # Warnings depend on what the VM asked and was shown before.
    kept = context.journal.exchanges(vm=vm)
    if caller.owned is not None:
        named = context.engine.identity.named
        mine = {name for name in {each.vm for each in kept} if (c := named(name)) and caller.owns(c.vm, c.scope)}
        kept = [each for each in kept if each.vm in mine]
    told = advise_all(kept)
    found = [ExchangeOut.of(exchange, advice) for exchange, advice in told if exchange.number > since]
    return PageOut(items=found[max(len(found) - size, 0) :])
