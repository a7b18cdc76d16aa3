"""Secrets, and the files that hold them: only their owner can read these, whatever the umask is."""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import stat
from pathlib import Path

import platformdirs

from forewarn.errors import ConfigError

__all__ = [
    "TOKEN_FILE",
    "default_state_dir",
    "digest",
    "kept_token",
    "make_private_folder",
    "new_signing_secret",
    "new_token",
    "open_private",
    "read_token",
    "tighten",
]

TOKEN_FILE = "operator.token"  # noqa: S105 - the name of a file
"""The operator's token, in the state folder."""

_TOKEN_BYTES = 32
_TOKEN_LENGTH_MIN = 32
_TOKEN_DISTINCT_MIN = 8
"""Different characters in a token; 32 random hexadecimal digits have about 14."""

_FILE_MODE = 0o600
_FOLDER_MODE = 0o700
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


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


def open_private(path: Path | str, flags: int) -> int:
    """Open a file that only its owner can read; a file with a wider mode is tightened first.

    Suits the `opener` argument of `open`, too.

    Args:
        path: The file.
        flags: As for `os.open`.

    Raises:
        OSError: It cannot be opened, or belongs to another user and is open to more.
    """
    descriptor = os.open(path, flags | getattr(os, "O_CLOEXEC", 0), _FILE_MODE)
    try:
        _tighten_open(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _tighten_open(descriptor: int) -> None:
    """Only where needed: changing the mode takes the owner, reading and writing does not."""
    if os.name == "posix" and stat.S_IMODE(os.fstat(descriptor).st_mode) != _FILE_MODE:
        os.fchmod(descriptor, _FILE_MODE)


def make_private_folder(folder: Path) -> None:
    """Make a folder that only its owner can enter, with its parents; one that exists keeps its mode.

    Raises:
        OSError: It cannot be made.
    """
    try:
        folder.mkdir(mode=_FOLDER_MODE, parents=True)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return
    if os.name == "posix":
        folder.chmod(_FOLDER_MODE)


def tighten(path: Path) -> bool:
    """Close an existing file to everyone but its owner.

    Never opens the file: closing a descriptor would drop the locks that SQLite holds on it.

    Returns:
        Whether others could read or write it until now.

    Raises:
        OSError: It belongs to another user.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return False
    if os.name != "posix" or not mode & _OTHERS:
        return False
    path.chmod(mode & ~_OTHERS)
    return True


def kept_token(path: Path) -> str:
    """The token of that file; made, with its folder, when there is none yet.

    Raises:
        ConfigError: The file is there, but holds no token, a token that can be guessed, or others can read it.
        OSError: The folder cannot be used.
    """
    make_private_folder(path.parent)
    try:
        descriptor = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        token = read_token(path)
        _check_kept(path, token)
        return token
    with os.fdopen(descriptor, "w") as file:
        token = new_token()
        file.write(token + "\n")
    return token


def _check_kept(path: Path, token: str) -> None:
    """Raises ConfigError for a token that others can read or guess."""
    hint = "remove it, and a new one is made at the next start"
    if os.name == "posix" and path.stat().st_mode & _OTHERS:
        msg = f"others can read the token file {path}: run 'chmod 600 {path}'; if somebody may have read it, {hint}"
        raise ConfigError(msg)
    if len(token) < _TOKEN_LENGTH_MIN or len(set(token)) < _TOKEN_DISTINCT_MIN:
        msg = f"the token in {path} can be guessed, {_TOKEN_LENGTH_MIN} random characters are needed: {hint}"
        raise ConfigError(msg)


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
