"""State that must survive a restart, in one file that is replaced atomically.

A crash at any moment leaves either the old file or the new one. A file that cannot be read is moved aside, not lost.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import IO, Protocol

import msgspec

from forewarn.agent.codec import decode_json, encode_json
from forewarn.agent.record import EventRecord, FinishedEvent
from forewarn.errors import ConfigError
from forewarn.util.files import replace_file
from forewarn.util.secrets import make_private_folder, open_private, restrict_to_owner

__all__ = ["AgentState", "StateFile", "StateStorage"]

_log = logging.getLogger("forewarn.agent")

_VERSION = 1


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is stored.

    Attributes:
        version: Version of this format; any other is not read.
        vm: This VM's name as last known; empty if it never was.
        records: Events on which work is left, in the order in which they were first seen.
        finished: The latest events on which no work is left, oldest first.
    """

    version: int = _VERSION
    vm: str = ""
    records: tuple[EventRecord, ...] = ()
    finished: tuple[FinishedEvent, ...] = ()


class StateStorage(Protocol):
    """Storage of a `AgentState`."""

    def load(self) -> AgentState:
        """Return the state last saved; an empty state if there is none."""

    def save(self, state: AgentState) -> None:
        """Save the state; it is on disk when this returns.

        Raises:
            OSError: It could not be saved.
        """


class StateFile:
    """A `StateStorage` in a file.

    Args:
        path: Path of the file; its folder is created if it is missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: IO[str] | None = None

    def acquire(self) -> None:
        """Lock the file against other agents, until `release` or the end of the process.

        Raises:
            ConfigError: Another agent uses it, or the folder cannot be written.
        """
        try:
            make_private_folder(self._path.parent)
            # The lock needs its own file, because saving replaces the state file.
            lock = open(self._build_sibling_path(".lock"), "a", opener=open_private)  # noqa: SIM115 - open until `release`
            # An existing file may be open to other users, and it holds the output of hooks.
            restrict_to_owner(self._path)
        except OSError as error:
            reason = "its directory is a file" if isinstance(error, FileExistsError) else error.strerror
            raise ConfigError(f"cannot write next to the state file {self._path}: {reason}") from error
        try:
            _lock_file(lock)
        except OSError as error:
            lock.close()
            raise ConfigError(f"another agent uses the state file {self._path}") from error
        self._lock = lock

    def release(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def load(self) -> AgentState:
        """Return the state last saved; an empty state if there is none, or after an unreadable file was moved aside.

        Raises:
            ConfigError: The file exists and can be neither read nor moved aside.
        """
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return AgentState()
        except OSError as error:
            raise ConfigError(f"cannot read the state file {self._path}: {error.strerror}") from error
        try:
            state = decode_json(content, AgentState)
        # A damaged file must not stop the agent: it would miss every event until an operator intervenes.
        except (ValueError, RecursionError):
            state = None
        if state is None or state.version != _VERSION:
            self._move_aside()
            return AgentState()
        return state

    def save(self, state: AgentState) -> None:
        """Write a new file, flush it to disk, then rename it over the old one."""
        make_private_folder(self._path.parent)  # it may have been removed meanwhile
        replace_file(self._path, encode_json(state))  # the lock makes this the only writer

    def _move_aside(self) -> None:
        aside = self._build_sibling_path(".unreadable")
        try:
            self._path.replace(aside)
        except OSError as error:
            msg = f"the state file {self._path} is damaged and cannot be moved aside: {error.strerror}"
            raise ConfigError(msg) from error
        _log.warning("cannot read the state file %s: starting without it, and keeping it as %s", self._path, aside)

    def _build_sibling_path(self, ending: str) -> Path:
        """Return a path beside the file, with its full name: files beside another agent's state are not ours."""
        return self._path.parent / f"{self._path.name}{ending}"


def _lock_file(file: IO[str]) -> None:
    """Lock an open file until it is closed.

    Raises:
        OSError: Another process holds the lock.
    """
    # Both kinds of lock end with the process, so a crash leaves none behind.
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
