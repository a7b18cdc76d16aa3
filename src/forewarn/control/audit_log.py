"""`/v1/audit-log` and `/v1/watch`: past audit log entries, and a stream of new ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from forewarn.control.broadcast import EntryBroadcast, encode_entry
from forewarn.control.context import Caller, Context, ContextOf, PageLimit, describe_text, is_still_valid, parse_after
from forewarn.control.selection_query import SelectionOf
from forewarn.core.access import Principal
from forewarn.core.model import AuditEntry
from forewarn.core.selection import Selection
from forewarn.store.contract import Page, Reader
from forewarn.wire.control_response import AuditEntryOut, PageOut

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["audit-log"])

_BATCH = 500
# The CLI gives up a watch after three of these intervals without a line.
_HEARTBEAT_S = 15.0
_CHECK_S = 15.0
"""Maximum time between two checks of the token that a stream was opened with; a revocation is noticed at once."""


@router.get("/audit-log")
async def list_entries(  # noqa: PLR0913 - a query parameter each
    context: ContextOf,
    caller: Caller,
    chosen: SelectionOf,
    after: Annotated[
        str | None,
        Query(max_length=32, description="`next` of the previous page, or the sequence number after which to begin."),
    ] = None,
    before: Annotated[
        str | None, Query(max_length=32, description="Only entries with a smaller sequence number.")
    ] = None,
    limit: PageLimit = 100,
    maintenance: Annotated[str | None, Query(max_length=64, description="Only entries of this maintenance.")] = None,
    newest: Annotated[bool, Query(description="Return the newest entries, not the oldest.")] = False,  # noqa: FBT002 - a query
) -> PageOut[AuditEntryOut]:
    """List audit log entries, oldest first.

    With `newest`, the first page holds the newest entries; to get the entries before them, pass `next` as `before`. A
    page may hold fewer than `limit` entries, or none. The last page is the one on which `next` is null.
    """
    size = min(limit, context.settings.page_size_max)
    start, end = parse_after(after) or 0, parse_after(before)
    selection = replace(chosen, maintenance_id=maintenance)

    def read(reader: Reader) -> PageOut[AuditEntryOut]:
        page = reader.list_entries(
            after=start, before=end, limit=size, newest=newest, selection=selection, owned=caller.ownership
        )
        shown = [AuditEntryOut.from_model(caller.redact_entry(entry)) for entry in page.items]
        return PageOut(items=shown, next=None if page.next is None else str(page.next))

    return await context.engine.read(read)


_STREAM = describe_text("text/event-stream", "Server-sent events.")


@router.get("/watch", response_class=StreamingResponse, responses=_STREAM)
async def watch(
    context: ContextOf,
    caller: Caller,
    chosen: SelectionOf,
    after: Annotated[
        str | None,
        Query(max_length=32, description="Start after the entry with this sequence number. Default: the newest entry."),
    ] = None,
    last_event_id: Annotated[
        str | None, Header(max_length=32, description="Id of the last received event; overrides `after`.")
    ] = None,
) -> StreamingResponse:
    """Stream audit log entries as they are written, as server-sent events.

    To resume a stream, send the id of the last received event as `Last-Event-ID`.
    """
    position = parse_after(last_event_id if last_event_id is not None else after)
    if position is None:
        newest = await context.engine.read(lambda reader: reader.list_entries(limit=1, newest=True))
        position = newest.items[-1].sequence if newest.items else 0
    headers = {"cache-control": "no-store"}
    stream = _stream_entries(context, caller, position, chosen)
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


async def _stream_entries(
    context: Context, caller: Principal, position: int, selection: Selection
) -> AsyncIterator[str]:
    entries = context.entry_broadcast
    entries.stream_count += 1
    try:
        async for text in _follow_entries(context, entries, caller, position, selection):
            yield text
    finally:
        entries.stream_count -= 1


async def _follow_entries(
    context: Context, entries: EntryBroadcast, caller: Principal, position: int, selection: Selection
) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    checked_at, revocations = loop.time(), entries.revocation_count
    yield ": watching\n\n"
    beat_s = loop.time() + _HEARTBEAT_S
    while not context.is_stopping.is_set():
        # Taken before the read: a change during the read sets this event, and the wait below returns at once.
        changed = context.changed
        await entries.read_new_entries(changed)
        has_expired = caller.expires_at is not None and context.clock.now() >= caller.expires_at
        if has_expired or revocations != entries.revocation_count or loop.time() - checked_at >= _CHECK_S:
            checked_at, revocations = loop.time(), entries.revocation_count
            if not await is_still_valid(context, caller):
                return
        shared = entries.entries_after(position)
        if shared is None:
            text, position, is_behind = await _read_missed_entries(context, caller, position, selection)
        else:
            text = "".join(e.encode_for(caller) for e in shared if e.is_visible_to(caller, selection, entries.find_vm))
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


async def _read_missed_entries(
    context: Context, caller: Principal, position: int, selection: Selection
) -> tuple[str, int, bool]:
    """Read entries no longer in memory; return their text, the position after them, and True if there may be more."""

    def read(reader: Reader) -> tuple[Page[AuditEntry], int]:
        page = reader.list_entries(after=position, limit=_BATCH, selection=selection, owned=caller.ownership)
        return page, reader.get_position()

    # A stream that is far behind must not occupy all readers of the store.
    async with context.entry_broadcast.catching_up:
        page, last = await context.engine.read(read)
    text = "".join(encode_entry(caller, entry) for entry in page.items)
    # Continue after the last entry that was examined, even if none matched.
    return text, (max(position, last) if page.next is None else page.next), page.next is not None
