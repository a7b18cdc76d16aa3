"""`/v1/audit-log/verify` and `/v1/audit-log/head`: detection of tampering with the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from forewarn.control.context import Context, ContextOf, describe_text
from forewarn.core.audit_chain import Chain, ChainHead, ChainVerifier
from forewarn.errors import LimitExceeded
from forewarn.store.contract import Reader
from forewarn.wire.verification import HeadsOut, VerificationOut, parse_noted_heads

__all__ = ["router"]

router = APIRouter(prefix="/v1/audit-log", tags=["audit-log"])

_PIECE = 500
"""Number of links per read; takes a few milliseconds on the reader's thread."""

_TOLD_EVERY = 20
_HEADS_MAX = 1000
_BUSY_S = 60

_STREAM = describe_text("application/x-ndjson", "JSON lines: `progress` at intervals, then one `result`.")


@router.get("/head")
async def show_heads(context: ContextOf) -> HeadsOut:
    """Show the head of each of the two hash chains: number and hash of its newest entry.

    Record the heads outside this service, to compare them later.
    """

    def read(reader: Reader) -> HeadsOut:
        return HeadsOut.from_model(reader.get_link_page(reader.get_position(), 1).heads)

    return await context.engine.read(read)


@router.get("/verify", response_class=StreamingResponse, responses=_STREAM)
async def verify(
    context: ContextOf,
    head: Annotated[
        list[str] | None,
        Query(
            max_length=_HEADS_MAX, description="Head that was recorded earlier, to compare with the chain; repeatable."
        ),
    ] = None,
) -> StreamingResponse:
    """Verify both hash chains from the beginning, in pieces; only one verification runs at a time."""
    noted = parse_noted_heads(head or [])
    # Requests that pass this check at the same moment run one after the other: the stream takes the lock.
    if context.verification_lock.locked():
        msg = "a verification of the audit log is already running: try again later"
        raise LimitExceeded(msg, retry_after_s=_BUSY_S)
    headers = {"cache-control": "no-store"}
    return StreamingResponse(_verify_in_pieces(context, noted), media_type="application/x-ndjson", headers=headers)


async def _verify_in_pieces(context: Context, noted_heads: dict[Chain, list[ChainHead]]) -> AsyncIterator[str]:
    verifier = ChainVerifier(noted_heads)
    after: int | None = None
    pieces = 0
    yield '{"progress":0}\n'
    async with context.verification_lock:
        while not context.is_stopping.is_set():

            def take(reader: Reader, after: int | None = after) -> int | None:
                page = reader.get_link_page(after, _PIECE)
                # Hashed here, on the reader's thread, to keep the event loop free.
                verifier.verify_page(page)
                return page.next

            after = await context.engine.read(take)
            if after is None:
                yield f'{{"result":{VerificationOut.from_verifier(verifier).model_dump_json()}}}\n'
                return
            pieces += 1
            if pieces % _TOLD_EVERY == 0:
                yield f'{{"progress":{after}}}\n'
