"""Tokens of the control API.

The operator's token lies in the state folder, readable by its owner only; whoever can read that file may operate. The
CLI on the same machine finds it by itself.
"""

from __future__ import annotations

import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from forewarn.errors import ConfigError, Unauthorized

__all__ = ["TOKEN_FILE", "Tokens", "operator_token", "read_token"]

TOKEN_FILE = "operator.token"  # noqa: S105 - the name of a file
_TOKEN_BYTES = 32


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
    path = state_dir / TOKEN_FILE
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return read_token(path)
        with os.fdopen(descriptor, "w") as file:
            token = secrets.token_urlsafe(_TOKEN_BYTES)
            file.write(token + "\n")
    except OSError as error:
        msg = f"cannot keep the operator token in {state_dir}: {error.strerror}; choose another folder with --state-dir"
        raise ConfigError(msg) from error
    return token


def read_token(path: Path) -> str:
    """A token from its file.

    Raises:
        ConfigError: The file cannot be read, or is empty.
    """
    try:
        token = path.read_text().strip()
    except OSError as error:
        msg = f"cannot read the token file {path}: {error.strerror}"
        raise ConfigError(msg) from error
    except UnicodeDecodeError as error:
        msg = f"cannot read the token file {path}: it holds no text"
        raise ConfigError(msg) from error
    if not token:
        msg = f"the token file {path} is empty: remove it, and the service makes a new one"
        raise ConfigError(msg)
    return token
