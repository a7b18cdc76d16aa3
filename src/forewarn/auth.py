"""Tokens of the control API.

The operator's token lies in the state folder, readable by its owner only; whoever can read that file may operate. The
CLI on the same machine finds it by itself.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from forewarn.core.model import HostToken
from forewarn.errors import ConfigError, Forbidden, Unauthorized
from forewarn.secret import kept_token

__all__ = ["TOKEN_FILE", "Tokens", "digest", "operator_token"]

TOKEN_FILE = "operator.token"  # noqa: S105 - the name of a file


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that are known here.

    Attributes:
        operator: May do everything.
    """

    operator: str

    async def host_actor(
        self, header: str | None, host: str, find: Callable[[str], Awaitable[HostToken | None]]
    ) -> str:
        """Who sends that header, and may speak for that host: its endpoint, or an operator.

        Args:
            header: ``Authorization``.
            host: Its name.
            find: Looks a token up by its digest.

        Raises:
            Unauthorized: Nobody we know, or a token that was revoked.
            Forbidden: The endpoint of another host.
        """
        token = _bearer(header)
        if hmac.compare_digest(token.encode(), self.operator.encode()):
            return "operator:local"
        found = await find(digest(token))
        if found is None or found.revoked_at is not None:
            msg = "this token is not known here, or was revoked: make one with 'forewarn host create-token'"
            raise Unauthorized(msg)
        if found.host != host:
            msg = f"this token is that of host {found.host!r}"
            raise Forbidden(msg)
        return f"host:{host}"

    def actor(self, header: str | None) -> str:
        """Who sends that ``Authorization`` header.

        Raises:
            Unauthorized: Nobody we know.
        """
        if not hmac.compare_digest(_bearer(header).encode(), self.operator.encode()):
            msg = "this token is not known here: pass --token-file of the service you talk to"
            raise Unauthorized(msg)
        return "operator:local"


def _bearer(header: str | None) -> str:
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        msg = "a bearer token is needed: pass --token-file, or run the command as the user who runs the service"
        raise Unauthorized(msg)
    return token.strip()


def digest(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


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
