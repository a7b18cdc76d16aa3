"""`/v1/tokens` and `/v1/whoami`: tokens of people and programs, and the identity of the caller."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from forewarn.control.commands import create_token
from forewarn.control.context import Actor, AfterNumber, Caller, ContextOf, PageLimit, cut_page
from forewarn.wire.access import AccessTokenIn, AccessTokenOut, PrincipalOut
from forewarn.wire.control_response import PageOut

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["token"])


@router.get("/whoami")
async def whoami(caller: Caller) -> PrincipalOut:
    """Show the caller's name, role, scopes and VMs."""
    return PrincipalOut.model_validate(caller, from_attributes=True)


@router.post("/tokens", status_code=201)
async def create(context: ContextOf, actor: Actor, body: AccessTokenIn) -> AccessTokenOut:
    """Create a token; the token is shown only in this answer."""
    token, word = await create_token(context, body, actor=actor)
    return AccessTokenOut.from_model(token, word)


@router.get("/tokens")
async def list_tokens(
    context: ContextOf,
    valid: Annotated[bool, Query(description="Only tokens that are neither revoked nor expired.")] = False,  # noqa: FBT002 - a query
    after: AfterNumber = None,
    limit: PageLimit = 100,
) -> PageOut[AccessTokenOut]:
    """List the tokens of people and programs, oldest first, including revoked and expired ones."""
    now = context.clock.now()
    found = await context.engine.read(lambda reader: reader.list_tokens())
    if valid:
        found = [token for token in found if token.is_valid(now)]
    shown, following = cut_page(found, after, min(limit, context.settings.page_size_max))
    return PageOut(items=[AccessTokenOut.from_model(token) for token in shown], next=following)


@router.delete("/tokens/{token_id}")
async def revoke(context: ContextOf, actor: Actor, token_id: str) -> AccessTokenOut:
    """Revoke a token; streams that were opened with the token end."""
    return AccessTokenOut.from_model(await context.engine.tokens.revoke(token_id, actor=actor))
