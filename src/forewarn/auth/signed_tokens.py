"""Words that others keep for us: nobody can make one, or change one, without the operator's token.

All replicas of a service share that token, so what one has sealed every other can open.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from itsdangerous import BadData, URLSafeSerializer

from forewarn.core.access import FILE_OPERATOR, Principal, Role, Token
from forewarn.util.secrets import new_token

__all__ = ["Seal", "moment_of", "pack", "who"]


class Seal:
    """Seals words for one purpose; a word of another is refused.

    Args:
        secret: The operator's token.
        purpose: What the words are for.
    """

    def __init__(self, secret: str, purpose: str) -> None:
        signing = {"key_derivation": "hmac", "digest_method": hashlib.sha256}
        self._serializer = URLSafeSerializer(secret, salt=f"forewarn {purpose}", signer_kwargs=signing)

    def close(self, content: Mapping[str, Any], until: datetime) -> str:
        """A word that says this, until then; no two are equal. It can be read by whoever has it.

        Args:
            content: Whatever JSON can say.
            until: From then on it is refused.
        """
        return str(self._serializer.dumps({**content, "until": until.timestamp(), "nonce": new_token()}))

    def open(self, word: str, now: datetime) -> dict[str, Any] | None:
        """What a word says, if it is one of ours and its time is not over."""
        try:
            content: dict[str, Any] = self._serializer.loads(word)
        except BadData:
            return None
        return content if now.timestamp() < content["until"] else None


def pack(caller: Principal) -> dict[str, Any]:
    """Who somebody is, for a sealed word: the token to look up, or where there is none all that is known.

    Until when they are known is not in it: no such word may hold longer than that.
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


async def who(
    content: Mapping[str, Any], find_token: Callable[[str], Awaitable[Token | None]], now: datetime
) -> Principal | None:
    """Who somebody is whom `pack` has put into an opened word; None: their token is not taken any more.

    Args:
        content: What the word says.
        find_token: Looks a token up by its id.
        now: The time.
    """
    if "token" in content:
        token = await find_token(content["token"])
        return token.principal() if token is not None and token.is_taken(now) else None
    if "actor" not in content:
        return FILE_OPERATOR
    scopes, vms = frozenset(content["scopes"]), frozenset(content["vms"])
    return Principal(actor=content["actor"], role=Role(content["role"]), scopes=scopes, vms=vms)


def moment_of(content: Mapping[str, Any]) -> datetime:
    """Until when an opened word holds."""
    return datetime.fromtimestamp(content["until"], UTC)
