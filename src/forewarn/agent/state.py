"""What the agent must not forget, in one file that is replaced as a whole.

A crash at any moment leaves either the old file or the new one. A file that cannot be read is moved aside, not lost.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import IO, Protocol

import msgspec

from forewarn.agent.codec import decode, encode
from forewarn.agent.record import Finished, Record
from forewarn.errors import ConfigError
from forewarn.util.secrets import make_private_folder, open_private, tighten

__all__ = ["Memory", "State", "StateFile"]

_VERSION = 1


class State(msgspec.Struct, frozen=True, kw_only=True):
    """All that is remembered.

    Attributes:
        version: Of this form; another one is not read.
        vm: This VM's name, as it was last known; empty when it never was.
        records: Events about which something is left to do, in the order in which they were seen first.
        finished: Those about which nothing is, the last of them, oldest first.
    """

    version: int = _VERSION
    vm: str = ""
    records: tuple[Record, ...] = ()
    finished: tuple[Finished, ...] = ()


class Memory(Protocol):
    """Keeps a `State`."""

    def load(self) -> State:
        """What was saved last; an empty state when nothing was."""
        ...

    def save(self, state: State) -> None:
        """Keep it; it is on disk when this returns.

        Raises:
            OSError: It could not be kept.
        """
        ...


class StateFile:
    """A `Memory` in a file.

    Args:
        path: Where; its folder is made when it is missing.

    Attributes:
        set_aside: Where a file went that could not be read; None when that did not happen.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: IO[str] | None = None
        self.set_aside: Path | None = None

    def acquire(self) -> None:
        """Make sure that no other agent uses the same file, until `release` or the end of the process.

        Raises:
            ConfigError: Another one does, or the folder cannot be written.
        """
        try:
            make_private_folder(self._path.parent)
            lock = open(self._beside(".lock"), "a", opener=open_private)  # noqa: SIM115 - open until `release`
            tighten(self._path)
        except OSError as error:
            reason = "its folder is a file" if isinstance(error, FileExistsError) else error.strerror
            msg = f"cannot write beside the state file {self._path}: {reason}"
            raise ConfigError(msg) from error
        try:
            _lock(lock)
        except OSError as error:
            lock.close()
            msg = f"another agent uses the state file {self._path}"
            raise ConfigError(msg) from error
        self._lock = lock

    def release(self) -> None:
        """Let another agent have the file."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def load(self) -> State:
        """What was saved last.

        Raises:
            ConfigError: The file is there and can be neither read nor moved aside.
        """
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return State()
        except OSError as error:
            msg = f"cannot read the state file {self._path}: {error.strerror}"
            raise ConfigError(msg) from error
        try:
            state = decode(content, State)
        except (ValueError, RecursionError):
            state = None
        if state is None or state.version != _VERSION:
            self._set_aside()
            return State()
        return state

    def save(self, state: State) -> None:
        """Write beside it, flush to disk, then put it in its place."""
        make_private_folder(self._path.parent)  # it may have been removed meanwhile
        new = self._beside(".new")  # nobody else writes it, for there is the lock
        new.unlink(missing_ok=True)
        try:
            with os.fdopen(open_private(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                file.write(encode(state))
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                new.unlink()
            raise
        _sync_folder(self._path.parent)

    def _set_aside(self) -> None:
        self.set_aside = self._beside(".unreadable")
        try:
            self._path.replace(self.set_aside)
        except OSError as error:
            msg = f"the state file {self._path} is damaged and cannot be moved aside: {error.strerror}"
            raise ConfigError(msg) from error

    def _beside(self, ending: str) -> Path:
        """A file of the same name and more: what is beside another agent's state is not ours."""
        return self._path.parent / f"{self._path.name}{ending}"


def _sync_folder(folder: Path) -> None:
    """Make a rename last; Windows does so by itself."""
    if sys.platform != "win32":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _lock(file: IO[str]) -> None:
    """Lock an open file until it is closed.

    Raises:
        OSError: Somebody else holds it.
    """
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
