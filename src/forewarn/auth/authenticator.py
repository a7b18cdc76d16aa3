"""Who shows which token to the control API.

There are three kinds. The operator's token lies in the state folder, readable by its owner only; whoever can read that
file may operate, and the CLI on the same machine finds it by itself. Others stand in the table of tokens, by their
digest. And an OpenID Connect issuer may sign some, if the settings name one.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from forewarn.auth.oidc import Issuer
from forewarn.core.access import FILE_OPERATOR, Principal, Token
from forewarn.errors import ConfigError, Unauthorized
from forewarn.util.secrets import TOKEN_FILE, digest, kept_token

__all__ = ["Tokens", "operator_token"]

Find = Callable[[str], Awaitable[Token | None]]
"""Looks a token up by its digest."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that are known here.

    Attributes:
        operator: That of the state folder.
        issuer: Of tokens that are signed; None: none is taken.
    """

    operator: str
    issuer: Issuer | None = None

    async def principal(self, header: str | None, find: Find, now: datetime) -> Principal:
        """Who sends that header.

        Tokens are compared by their digests: how long that takes says nothing of the token itself.

        Args:
            header: ``Authorization``.
            find: Looks a token up in the table.
            now: The time.

        Raises:
            Unauthorized: Nobody we know, or a token that was revoked or has expired.
            Forbidden: The issuer knows who it is, and no grant is for them.
            IssuerUnreachable: It is signed, and the issuer's keys cannot be had.
        """
        token = _bearer(header)
        shown = digest(token)
        if hmac.compare_digest(shown, digest(self.operator)):
            return FILE_OPERATOR
        if self.issuer is not None and self.issuer.may_have_signed(token):
            return self.issuer.principal_of_claims(await self.issuer.claims(token, now))
        found = await find(shown)
        if found is None:
            msg = "this token is not known here: pass --token-file of the service you talk to"
            raise Unauthorized(msg)
        if not found.is_taken(now):
            word = "has expired" if found.revoked_at is None else "was revoked"
            maker = "forewarn token create" if found.host is None else "forewarn host create-token"
            msg = f"this token {word}: an operator makes a new one with '{maker}'"
            raise Unauthorized(msg)
        return found.principal()


def _bearer(header: str | None) -> str:
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        msg = "a bearer token is needed: pass --token-file, or run the command as the user who runs the service"
        raise Unauthorized(msg)
    return token.strip()


def operator_token(state_dir: Path) -> str:
    """The operator's token; made when there is none yet.

    Raises:
        ConfigError: The folder cannot be used.
    """
    try:
        return kept_token(state_dir / TOKEN_FILE)
    except OSError as error:
        msg = f"cannot keep the operator token in {state_dir}: {error.strerror}; choose another folder with --state-dir"
        raise ConfigError(msg) from error
