"""`/v1/audit-log` and `/v1/watch`: past audit log entries, and a stream of new ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from forewarn.control.broadcast import EntryBroadcast, encode_entry
from forewarn.control.context import Caller, Context, ContextOf, is_still_known
from forewarn.control.maintenance import number
from forewarn.control.selected import SelectionOf
from forewarn.core.access import Principal
from forewarn.core.model import Entry
from forewarn.core.selection import Selection
from forewarn.store.contract import Page, Reader
from forewarn.wire.control import EntryOut, PageOut

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["audit-log"])

_BATCH = 500
_HEARTBEAT_S = 15.0
_CHECK_S = 15.0
"""Maximum time between two checks of the token that a stream was opened with; a revocation is noticed at once."""


@router.get("/audit-log")
async def list_entries(  # noqa: PLR0913 - a query parameter each
    context: ContextOf,
    caller: Caller,
    chosen: SelectionOf,
    after: Annotated[str | None, Query(max_length=32, description="`next` of the page before, or a sequence.")] = None,
    before: Annotated[str | None, Query(max_length=32, description="Only smaller sequences.")] = None,
    limit: Annotated[int, Query(ge=1)] = 100,
    maintenance: Annotated[str | None, Query(max_length=64, description="Only of this maintenance.")] = None,
    newest: Annotated[bool, Query(description="The last ones instead of the first.")] = False,  # noqa: FBT002 - a query
) -> PageOut[EntryOut]:
    """List audit log entries, oldest first.

    With `newest` the first page holds the last entries, and `next` is the `before` of the page that precedes it. A page
    may hold fewer than `limit` entries, even none, although `next` is set; there may be more on the next page.
    """
    size = min(limit, context.page_size_max)
    start, end = number(after) or 0, number(before)
    selection = replace(chosen, maintenance_id=maintenance)

    def read(reader: Reader) -> PageOut[EntryOut]:
        page = reader.entries(
            after=start, before=end, limit=size, newest=newest, selection=selection, owned=caller.owned
        )
        shown = [EntryOut.of(caller.shown_entry(entry)) for entry in page.items]
        return PageOut(items=shown, next=None if page.next is None else str(page.next))

    return await context.engine.read(read)


_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Server-sent events."}
}


@router.get("/watch", response_class=StreamingResponse, responses=_STREAM)
async def watch(
    context: ContextOf,
    caller: Caller,
    chosen: SelectionOf,
    after: Annotated[str | None, Query(max_length=32, description="Begin after this sequence; default: now.")] = None,
    last_event_id: Annotated[str | None, Header(max_length=32)] = None,
) -> StreamingResponse:
    """Stream audit log entries as they are written, as server-sent events; resumable by event id."""
    position = number(last_event_id if last_event_id is not None else after)
    if position is None:
        newest = await context.engine.read(lambda reader: reader.entries(limit=1, newest=True))
        position = newest.items[-1].sequence if newest.items else 0
    headers = {"cache-control": "no-store"}
    stream = _stream(context, caller, position, chosen)
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


async def _stream(context: Context, caller: Principal, position: int, selection: Selection) -> AsyncIterator[str]:
    entries = context.entries
    entries.streams += 1
    try:
        async for text in _texts(context, entries, caller, position, selection):
            yield text
    finally:
        entries.streams -= 1


async def _texts(
    context: Context, entries: EntryBroadcast, caller: Principal, position: int, selection: Selection
) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    checked_at, revocations = loop.time(), entries.revocations
    yield ": watching\n\n"
    beat_s = loop.time() + _HEARTBEAT_S
    while not context.is_stopping.is_set():
        changed = context.changed
        await entries.refresh(changed)
        has_expired = caller.expires_at is not None and context.clock.now() >= caller.expires_at
        if has_expired or revocations != entries.revocations or loop.time() - checked_at >= _CHECK_S:
            checked_at, revocations = loop.time(), entries.revocations
            if not await is_still_known(context, caller):
                return
        shared = entries.since(position)
        if shared is None:
            text, position, is_behind = await _catch_up(context, caller, position, selection)
        else:
            text = "".join(e.encoded_for(caller) for e in shared if e.is_for(caller, selection, entries.find_vm))
            position, is_behind = max(position, entries.position), False
        if text:
            yield text
            beat_s = loop.time() + _HEARTBEAT_S
        if is_behind:
            continue
        try:
            # Changes of other tenants wake the stream too. The fixed time keeps the heartbeat independent of them, so
            # that it reveals nothing about others.
            async with asyncio.timeout_at(beat_s):
                await changed.wait()
                if not context.is_stopping.is_set():
                    await asyncio.sleep(entries.pause_s)
        except TimeoutError:
            yield ": still here\n\n"
            beat_s = loop.time() + _HEARTBEAT_S


async def _catch_up(context: Context, caller: Principal, position: int, selection: Selection) -> tuple[str, int, bool]:
    """Read entries no longer in memory; return their text, the position after them, and True if there may be more."""

    def read(reader: Reader) -> tuple[Page[Entry], int]:
        page = reader.entries(after=position, limit=_BATCH, selection=selection, owned=caller.owned)
        return page, reader.position()

    async with context.entries.catching_up:
        page, last = await context.engine.read(read)
    text = "".join(encode_entry(caller, entry) for entry in page.items)
    # Continue after the last entry that was examined, even if none matched.
    return text, (max(position, last) if page.next is None else page.next), page.next is not None
