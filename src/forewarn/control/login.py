"""`/v1/login-links`: links that log a browser in to the dashboard, for callers with a token on the command line."""

from __future__ import annotations

from datetime import timedelta

from fastapi import APIRouter, Request

from forewarn.auth.signed_tokens import TokenSigner, encode_caller
from forewarn.control.context import Caller, ContextOf
from forewarn.wire.access import LoginLinkOut

__all__ = ["PURPOSE", "router"]

PURPOSE = "link to the dashboard"
"""Purpose of the signed word in a link."""

_LASTS = timedelta(minutes=1)

router = APIRouter(prefix="/v1/login-links", tags=["token"])


@router.post("", status_code=201)
async def create(context: ContextOf, caller: Caller, request: Request) -> LoginLinkOut:
    """Create a dashboard link that logs in as the caller; the link works once, within one minute."""
    now = context.clock.now()
    until = now + _LASTS if caller.expires_at is None else min(now + _LASTS, caller.expires_at)
    content = encode_caller(caller)
    # `encode_caller` leaves the expiry out, but a session that begins with the link must end with the token.
    if caller.expires_at is not None:
        content["expires_at"] = caller.expires_at.timestamp()
    # Signed for this purpose, so that a link cannot serve as a session, nor a session as a link.
    word = TokenSigner(context.authenticator.operator_token, PURPOSE).sign(content, until)
    return LoginLinkOut(url=f"{str(request.base_url).rstrip('/')}/login/link/{word}", expires_at=until)
