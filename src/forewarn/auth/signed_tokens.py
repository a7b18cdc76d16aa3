"""Signed tokens that clients keep for the service: no one can forge or change one without the operator's token.

All replicas of a service share that token, so each replica can open what another has sealed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from itsdangerous import BadData, URLSafeSerializer

from forewarn.core.access import FILE_OPERATOR, Principal, Role, Token
from forewarn.util.secrets import new_token

__all__ = ["TokenSigner", "decode_caller", "encode_caller", "expiry_of"]


class TokenSigner:
    """Signer and verifier of tokens for one purpose; a token for another purpose is refused.

    Args:
        secret: Operator's token.
        purpose: Purpose of the tokens.
    """

    def __init__(self, secret: str, purpose: str) -> None:
        # itsdangerous signs with SHA-1 by default.
        signing = {"key_derivation": "hmac", "digest_method": hashlib.sha256}
        self._serializer = URLSafeSerializer(secret, salt=f"forewarn {purpose}", signer_kwargs=signing)

    def sign(self, content: Mapping[str, Any], until: datetime) -> str:
        """Sign JSON content with a nonce. The token is refused from `until` on, and is not encrypted."""
        # The expiry is part of the content: that of itsdangerous follows the machine's clock, but ours may be virtual.
        # The nonce identifies the token, so that a used link or an ended session can be recorded.
        return str(self._serializer.dumps({**content, "until": until.timestamp(), "nonce": new_token()}))

    def verify(self, token: str, now: datetime) -> dict[str, Any] | None:
        """Return the content of a token; None if it is invalid or has expired."""
        try:
            content: dict[str, Any] = self._serializer.loads(token)
        except BadData:
            return None
        return content if now.timestamp() < content["until"] else None


def encode_caller(caller: Principal) -> dict[str, Any]:
    """Return the identity of a caller for a signed token: the id of their own token, or else all known facts.

    `expires_at` is left out: the signed token itself must not outlive it.
    """
    if caller.token_id is not None:
        return {"token": caller.token_id}
    if caller == FILE_OPERATOR:
        return {}
    return {
        "actor": caller.actor,
        "role": caller.role.value,
        "scopes": sorted(caller.scopes),
        "vms": sorted(caller.vms),
    }


async def decode_caller(
    content: Mapping[str, Any], find_token: Callable[[str], Awaitable[Token | None]], now: datetime
) -> Principal | None:
    """Return the caller that `encode_caller` stored in an opened token; None if their own token is no longer accepted.

    `find_token` looks up a token by its id.
    """
    if "token" in content:
        token = await find_token(content["token"])
        return token.to_principal() if token is not None and token.is_valid(now) else None
    # For the file operator, `encode_caller` stores nothing. The content is signed, so no one can remove an actor.
    if "actor" not in content:
        return FILE_OPERATOR
    scopes, vms = frozenset(content["scopes"]), frozenset(content["vms"])
    return Principal(actor=content["actor"], role=Role(content["role"]), scopes=scopes, vms=vms)


def expiry_of(content: Mapping[str, Any]) -> datetime:
    """Return the expiry of an opened token."""
    return datetime.fromtimestamp(content["until"], UTC)
