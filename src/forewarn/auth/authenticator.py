"""Authentication of control API callers by their tokens.

There are three kinds. The operator's token is a file in the state folder, readable by its owner only; anyone who can
read that file is an operator, and the CLI on the same machine finds it automatically. Other tokens are in the token
table, by digest. If the settings name an OpenID Connect issuer, its signed tokens are accepted, too.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from forewarn.auth.oidc import Issuer
from forewarn.core.access import FILE_OPERATOR, Principal, Token
from forewarn.errors import ConfigError, Hint, Unauthorized
from forewarn.util.secrets import TOKEN_FILE, hash_token, load_or_create_token

__all__ = ["Authenticator", "load_operator_token"]

Find = Callable[[str], Awaitable[Token | None]]
"""Looks up a token by its digest."""


@dataclass(frozen=True, slots=True)
class Authenticator:
    """Tokens accepted by this service.

    Attributes:
        operator_token: Token from the state folder.
        issuer: Issuer of signed tokens; None if none are accepted.
    """

    operator_token: str
    issuer: Issuer | None = None

    async def authenticate(self, header: str | None, find_token: Find, now: datetime) -> Principal:
        """Return the caller who sends this header.

        Tokens are compared by digest, so the time that the comparison takes reveals nothing about the token.

        `header` is the value of ``Authorization``, `find_token` looks up a digest in the table.

        Raises:
            Unauthorized: The token is missing, unknown, revoked or expired.
            Forbidden: The issuer's token is valid, but no grant matches.
            IssuerUnreachable: The token is signed, and the issuer's keys are not available.
        """
        token = _read_bearer_token(header)
        shown = hash_token(token)
        # Before the lookup, so that the operator can call a service whose database is down.
        if hmac.compare_digest(shown, hash_token(self.operator_token)):
            return FILE_OPERATOR
        # A signed token is never looked up in the table, since our own tokens have another form.
        if self.issuer is not None and self.issuer.may_have_signed(token):
            return self.issuer.principal_from_claims(await self.issuer.verify_token(token, now))
        found = await find_token(shown)
        if found is None:
            raise Unauthorized(
                "unknown token", hint=Hint("pass --token-file of this service", "Enter a token of this service")
            )
        if not found.is_valid(now):
            word = "has expired" if found.revoked_at is None else "was revoked"
            maker = "forewarn token create" if found.host is None else "forewarn host create-token"
            hint = Hint(f"an operator can create a new one with '{maker}'", "Ask an operator for a new one")
            raise Unauthorized(f"this token {word}", hint=hint)
        return found.to_principal()


def _read_bearer_token(header: str | None) -> str:
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        hint = Hint("pass --token-file, or run the command as the user who runs the service", "Log in", "/login")
        raise Unauthorized("a bearer token is needed", hint=hint)
    return token.strip()


def load_operator_token(state_dir: Path) -> str:
    """Return the operator's token; it is created if it does not exist.

    Raises:
        ConfigError: The folder cannot be used, or the token in it is not secure.
    """
    try:
        return load_or_create_token(state_dir / TOKEN_FILE)
    except OSError as error:
        msg = (
            f"cannot store the operator token in {state_dir}: {error.strerror}; choose another folder with --state-dir"
        )
        raise ConfigError(msg) from error
