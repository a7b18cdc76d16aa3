"""Secrets that lie in files which only their owner can read."""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
from pathlib import Path

import platformdirs

from forewarn.errors import ConfigError

__all__ = ["TOKEN_FILE", "default_state_dir", "digest", "kept_token", "new_signing_secret", "new_token", "read_token"]

TOKEN_FILE = "operator.token"  # noqa: S105 - the name of a file
"""The operator's token, in the state folder."""

_TOKEN_BYTES = 32


def default_state_dir() -> Path:
    """Where tokens are kept unless told otherwise: the user's state folder."""
    return Path(platformdirs.user_state_dir("forewarn", appauthor=False))


def new_token() -> str:
    """A word that nobody guesses."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def digest(token: str) -> str:
    """What is kept of a token: its SHA-256, hexadecimal.

    A quick hash is right for such a word. Slow ones are there for passwords, which can be guessed; 256 random bits
    cannot, however many are tried in a second. And it is looked for by an index, which a salt would not allow.
    """
    return hashlib.sha256(token.encode()).hexdigest()


def new_signing_secret() -> str:
    """What notifications are signed with, as Standard Webhooks writes it."""
    return f"whsec_{base64.b64encode(secrets.token_bytes(_TOKEN_BYTES)).decode()}"


def kept_token(path: Path) -> str:
    """The token of that file; made, with its folder, when there is none yet.

    Raises:
        ConfigError: The file is there, but holds no token.
        OSError: The folder cannot be used.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(path)
    with os.fdopen(descriptor, "w") as file:
        token = new_token()
        file.write(token + "\n")
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
