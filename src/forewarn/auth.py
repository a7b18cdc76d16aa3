"""Tokens of the control API.

The operator's token lies in the state folder, readable by its owner only; whoever can read that file may operate. The
CLI on the same machine finds it by itself.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from pathlib import Path

from forewarn.errors import ConfigError, Unauthorized
from forewarn.secret import kept_token

__all__ = ["TOKEN_FILE", "Tokens", "operator_token"]

TOKEN_FILE = "operator.token"  # noqa: S105 - the name of a file


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that are known here.

    Attributes:
        operator: May do everything.
    """

    operator: str

    def actor(self, header: str | None) -> str:
        """Who sends that ``Authorization`` header.

        Raises:
            Unauthorized: Nobody we know.
        """
        scheme, _, token = (header or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            msg = "a bearer token is needed: pass --token-file, or run the command as the user who runs the service"
            raise Unauthorized(msg)
        if not hmac.compare_digest(token.strip().encode(), self.operator.encode()):
            msg = "this token is not known here: pass --token-file of the service you talk to"
            raise Unauthorized(msg)
        return "operator:local"


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
