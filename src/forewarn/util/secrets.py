"""Secrets and their files, which only the owner can read, whatever the umask."""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import stat
from pathlib import Path

import platformdirs

from forewarn.errors import ConfigError
from forewarn.util.files import replace_file, sync_folder

__all__ = [
    "TOKEN_FILE",
    "default_state_dir",
    "hash_token",
    "load_or_create_token",
    "make_private_folder",
    "new_signing_secret",
    "new_token",
    "open_private",
    "read_token",
    "restrict_to_owner",
]

TOKEN_FILE = "operator.token"  # noqa: S105 - the name of a file
"""Name of the file in the state folder that holds the operator's token."""

_TOKEN_BYTES = 32
_TOKEN_LENGTH_MIN = 32
_TOKEN_DISTINCT_MIN = 8
"""Minimum number of different characters in a token; 32 random hexadecimal digits have about 14."""

_FILE_MODE = 0o600
_FOLDER_MODE = 0o700
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def default_state_dir() -> Path:
    """Return the default folder for tokens: the user's state folder."""
    return Path(platformdirs.user_state_dir("forewarn", appauthor=False))


def new_token() -> str:
    """Return a random token with 256 bits of entropy."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def hash_token(token: str) -> str:
    """Return the hexadecimal SHA-256 of a token, which is stored in its place.

    A fast hash is right here. Slow hashes protect passwords, which can be guessed; 256 random bits cannot, at any
    rate of attempts. Besides, the digest is looked up by an index, which a salt would prevent.
    """
    return hashlib.sha256(token.encode()).hexdigest()


def new_signing_secret() -> str:
    """Return a new secret for signing notifications, in the format of Standard Webhooks."""
    return f"whsec_{base64.b64encode(secrets.token_bytes(_TOKEN_BYTES)).decode()}"


def open_private(path: Path | str, flags: int) -> int:
    """Open a file so that only its owner can read it; a wider mode is tightened first.

    Usable as the `opener` argument of `open`.

    Args:
        path: Path of the file.
        flags: Flags for `os.open`.

    Raises:
        OSError: The file cannot be opened, or it belongs to another user and has another mode.
    """
    descriptor = os.open(path, flags | getattr(os, "O_CLOEXEC", 0), _FILE_MODE)
    try:
        _restrict_open_file(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _restrict_open_file(descriptor: int) -> None:
    """Set the mode only if it differs: only the owner may change it, while others may be able to read and write."""
    if os.name == "posix" and stat.S_IMODE(os.fstat(descriptor).st_mode) != _FILE_MODE:
        os.fchmod(descriptor, _FILE_MODE)


def make_private_folder(folder: Path) -> None:
    """Create a folder that only its owner can enter, with its parents, durably; an existing folder keeps its mode.

    Raises:
        OSError: The folder cannot be created.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(mode=_FOLDER_MODE, parents=True)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return
    if os.name == "posix":
        folder.chmod(_FOLDER_MODE)
    # A folder whose name is not on disk is gone after a power cut, with all that was synchronised in it.
    for each in reversed(missing):
        sync_folder(each.parent)


def restrict_to_owner(path: Path) -> bool:
    """Remove all permissions of group and others from a file; do nothing if it does not exist.

    Never opens the file: closing a descriptor would drop the locks that SQLite holds on it.

    Returns:
        True if group or others had any permissions until now.

    Raises:
        OSError: The file belongs to another user.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return False
    if os.name != "posix" or not mode & _OTHERS:
        return False
    path.chmod(mode & ~_OTHERS)
    return True


def load_or_create_token(path: Path) -> str:
    """Return the token in a file; the token and its folder are created if missing.

    Raises:
        ConfigError: The file holds no token or one that can be guessed, or others can read it.
        OSError: The folder cannot be used.
    """
    make_private_folder(path.parent)
    if not path.exists():
        _create_token_file(path)
    token = read_token(path)
    _check_token_file(path, token)
    return token


def _create_token_file(path: Path) -> None:
    """Create a token file, whole and durable; of two processes that do so at once, the first one wins."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        replace_file(new, f"{new_token()}\n".encode(), mode=_FILE_MODE)
        try:
            os.link(new, path)  # unlike a rename, this fails if another process was faster
        except FileExistsError:
            pass
        except OSError:  # the file system has no hard links
            new.rename(path)
    finally:
        new.unlink(missing_ok=True)
    sync_folder(path.parent)


def _check_token_file(path: Path, token: str) -> None:
    """Raise ConfigError for a token that others can read or guess."""
    hint = "remove it, and the next start creates a new one"
    if os.name == "posix" and path.stat().st_mode & _OTHERS:
        msg = f"others can read the token file {path}: run 'chmod 600 {path}'; if it may have been read, {hint}"
        raise ConfigError(msg)
    if len(token) < _TOKEN_LENGTH_MIN or len(set(token)) < _TOKEN_DISTINCT_MIN:
        msg = f"the token in {path} can be guessed; {_TOKEN_LENGTH_MIN} random characters are needed: {hint}"
        raise ConfigError(msg)


def read_token(path: Path) -> str:
    """Read a token from its file.

    Raises:
        ConfigError: The file cannot be read, or is empty.
    """
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise ConfigError(f"cannot read the token file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read the token file {path}: it is not text") from error
    if not token:
        raise ConfigError(f"the token file {path} is empty: remove it, and the service creates a new one")
    return token
