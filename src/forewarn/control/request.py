"""`/v1/requests`: recent requests of VMs to the metadata endpoint, with the answers."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from forewarn.control.context import Caller, ContextOf, PageLimit, parse_after
from forewarn.wire.advice import find_advice_for_all
from forewarn.wire.control_response import ExchangeOut, PageOut

__all__ = ["router"]

router = APIRouter(prefix="/v1/requests", tags=["request"])


@router.get("", response_model=PageOut[ExchangeOut])
async def list_requests(
    context: ContextOf,
    caller: Caller,
    after: Annotated[str | None, Query(max_length=32, description="Only requests with a larger `number`.")] = None,
    vm: Annotated[str, Query(max_length=128, description="Only requests of this VM.")] = "",
    limit: PageLimit = 100,
) -> Response:
    """List the newest recorded requests of VMs, in order of arrival, with warnings about unsafe client behavior."""
    size = min(limit, context.settings.page_size_max)
    since = parse_after(after) or 0

    def is_own(name: str) -> bool:
        found = context.engine.identity.find_caller(name)
        return found is not None and caller.owns_vm(found.vm, found.scope)

    if caller.ownership is not None and vm and not is_own(vm):
        return Response(
            b'{"items":[],"next":null}', media_type="application/json"
        )  # before anything is read, since the time taken would reveal whether such a VM exists
    await context.refresh_endpoint_state()

    def encode() -> bytes:
        # All of the VM's exchanges are needed: warnings depend on its earlier requests and answers.
        kept = context.journal.list_exchanges(vm=vm, is_visible=None if caller.ownership is None else is_own)
        # `find_advice_for_all` returns the newest ones, so `after` is turned into a number of exchanges.
        wanted = min(size, sum(exchange.number > since for exchange in kept))
        items = (ExchangeOut.from_exchange(exchange, advice) for exchange, advice in find_advice_for_all(kept, wanted))
        return b'{"items":[' + b",".join(item.model_dump_json().encode() for item in items) + b'],"next":null}'

    async with context.listing_lock:  # one at a time and on a thread, since encoding 1,000 requests takes a while
        content = await asyncio.to_thread(encode)
    return Response(content, media_type="application/json")
