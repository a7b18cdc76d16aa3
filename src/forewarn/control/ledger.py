"""`/v1/ledger` and `/v1/watch`: what happened, and what happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from forewarn.control.context import Actor, Context, ContextOf
from forewarn.control.maintenance import number
from forewarn.core.selection import Selection
from forewarn.store.contract import Reader
from forewarn.wire.control import EntryOut, PageOut

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["ledger"])

_BATCH = 500
_HEARTBEAT_S = 15.0


@router.get("/ledger")
async def list_entries(
    context: ContextOf,
    _actor: Actor,
    after: Annotated[str | None, Query(max_length=32, description="`next` of the page before, or a sequence.")] = None,
    limit: Annotated[int, Query(ge=1)] = 100,
    maintenance: Annotated[str | None, Query(max_length=64, description="Only of this maintenance.")] = None,
    newest: Annotated[bool, Query(description="The last ones instead of the first.")] = False,  # noqa: FBT002 - a query
) -> PageOut[EntryOut]:
    """Ledger entries, oldest first."""
    size = min(limit, context.page_size_max)
    start = number(after) or 0

    def read(reader: Reader) -> PageOut[EntryOut]:
        selection = Selection(maintenance_id=maintenance)
        page = reader.entries(after=start, limit=size, newest=newest, selection=selection)
        return PageOut(items=[EntryOut.of(e) for e in page.items], next=None if page.next is None else str(page.next))

    return await context.engine.read(read)


_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Server-sent events."}
}


@router.get("/watch", response_class=StreamingResponse, responses=_STREAM)
async def watch(
    context: ContextOf,
    _actor: Actor,
    after: Annotated[str | None, Query(max_length=32, description="Begin after this sequence; default: now.")] = None,
    last_event_id: Annotated[str | None, Header(max_length=32)] = None,
) -> StreamingResponse:
    """Ledger entries as they are written, as server-sent events; resumable by their id."""
    position = number(last_event_id if last_event_id is not None else after)
    if position is None:
        newest = await context.engine.read(lambda reader: reader.entries(limit=1, newest=True))
        position = newest.items[-1].sequence if newest.items else 0
    headers = {"cache-control": "no-store"}
    return StreamingResponse(_stream(context, position), media_type="text/event-stream", headers=headers)


async def _stream(context: Context, position: int) -> AsyncIterator[str]:
    yield ": watching\n\n"
    while not context.is_stopping.is_set():
        changed = context.changed
        page = await context.engine.read(lambda reader, at=position: reader.entries(after=at, limit=_BATCH))  # type: ignore[misc] # the default binds the position of this turn
        for entry in page.items:
            position = entry.sequence
            yield f"id: {position}\nevent: {entry.kind}\ndata: {EntryOut.of(entry).model_dump_json()}\n\n"
        if page.items:
            continue
        try:
            async with asyncio.timeout(_HEARTBEAT_S):
                await changed.wait()
        except TimeoutError:
            yield ": still here\n\n"
