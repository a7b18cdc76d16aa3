"""One run of a command; a folder holds all that is known of it.

The folder appears under its name in one step, with the lock held: only one caller can begin, however many try, and
however often one of them is cancelled. `exec_keeper` holds the lock from then on. So the folder shows the same state to
every process on this machine, and after a stop of any kind.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from forewarn.actuators import exec_keeper
from forewarn.actuators.payload import make_printable
from forewarn.errors import ActuatorError
from forewarn.util.files import sync_folder

__all__ = ["CommandOutcome", "CommandRun", "CommandRunState", "prune_runs"]

_START_S = 10.0
"""Time limit for the keeper to begin."""

_SEIZE_TRIES = 20
_SEIZE_PAUSE_S = 0.001


class CommandRunState(StrEnum):
    """State of a run."""

    UNKNOWN = "unknown"
    """Nothing was begun, as far as this machine knows."""
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"
    """Begun, but its keeper is gone: the outcome is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutcome:
    """Outcome of a run.

    Attributes:
        status: Exit status; if negative, the signal that ended it.
        took_s: Seconds from its start to its end.
        is_late: True if it was ended at its deadline.
        is_stopped: True if it was ended on request.
        output: End of its output, both streams.
    """

    status: int
    took_s: float
    is_late: bool
    is_stopped: bool
    output: str

    def explain_failure(self, label: str, deadline_s: float) -> str:
        """Return the cause of a failure in one line, with the last line of the output that is not blank."""
        if self.is_late:
            how = f"{label} took longer than {deadline_s:g} s and was ended"
        elif self.is_stopped:
            how = f"{label} was ended on request"
        elif self.status < 0:
            how = f"{label} was ended by {_signal_name(-self.status)}"
        else:
            how = f"{label} ended with exit status {self.status}"
        last = next((line for text in reversed(self.output.splitlines()) if (line := make_printable(text))), "")
        return f"{how}: {last}" if last else how


class CommandRun:
    """A command that is run at most once.

    Args:
        folder: Folder of this run only; created when it begins, in an existing folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(  # noqa: PLR0913 - the inputs of a process, and its limits
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdin: bytes,
        deadline_s: float,
        output_size_bytes_max: int,
        number: int = 1,
        begin_before_s: float = math.inf,
    ) -> None:
        """Start the command, unless it was started before. Blocks for some ten milliseconds.

        `exec_keeper.Keeper` describes the limits. `number` is that of this run among repeated ones, from 1;
        `begin_before_s` is the uptime from which it is no longer begun.

        Raises:
            ActuatorError: It cannot be started; nothing was begun.
        """
        try:
            lock = self._create_locked_folder({"input": stdin, "number": str(number).encode()})
        except OSError as error:
            raise ActuatorError(f"cannot use the folder {self.folder.parent}: {error.strerror}") from error
        if lock is None:
            return
        arguments = [str(self.folder), str(deadline_s), str(output_size_bytes_max), str(begin_before_s), *command]
        try:
            refusal = _start_keeper(arguments, environment, lock)
        finally:
            # The keeper has inherited the same lock, so it stays held until the keeper ends.
            os.close(lock)
        if refusal:
            # Deleted, since nothing was begun: the folder would otherwise show a run that was lost.
            self.delete_record(lambda: self.read_state_without_keeper() is not CommandRunState.ENDED)
            raise ActuatorError(refusal)

    def _create_locked_folder(self, files: Mapping[str, bytes]) -> int | None:
        """Create the folder with these files and return its lock, held; None if it existed before."""
        made = Path(tempfile.mkdtemp(prefix=".new-", dir=self.folder.parent))
        for name, content in files.items():
            (made / name).write_bytes(content)
        lock = os.open(made / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # The lock is taken before the rename, so no one ever sees the folder unlocked before the keeper has it.
            fcntl.flock(lock, fcntl.LOCK_EX)
            made.rename(self.folder)
            # Before the command runs: after a power cut, the run must count as lost, and not as never begun.
            sync_folder(self.folder.parent)
        except OSError as error:
            os.close(lock)
            shutil.rmtree(made, ignore_errors=True)
            # Another caller was faster: a folder cannot be renamed onto one that is not empty.
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
                return None
            raise
        return lock

    def read_state(self) -> CommandRunState:
        """Return the state of the run."""
        # The order matters: the result is written before the lock is released.
        return CommandRunState.RUNNING if self._is_locked() else self.read_state_without_keeper()

    def read_state_without_keeper(self) -> CommandRunState:
        """Return the state of the run if no process holds its lock."""
        if (self.folder / "result").exists():
            return CommandRunState.ENDED
        return CommandRunState.LOST if (self.folder / "keeper").exists() else CommandRunState.UNKNOWN

    def read_outcome(self) -> CommandOutcome:
        """Return the outcome.

        Raises:
            ActuatorError: The result cannot be read.
        """
        try:
            known: Any = json.loads((self.folder / "result").read_bytes())
            return CommandOutcome(**known)
        except (OSError, ValueError, TypeError) as error:
            raise ActuatorError(f"cannot read {self.folder / 'result'}: {type(error).__name__}") from error

    def read_number(self) -> int:
        """Return the number of the run as given to `begin`; 0 if there was none."""
        try:
            return int((self.folder / "number").read_bytes())
        except (OSError, ValueError):
            return 0

    def request_stop(self) -> None:
        """Request its end, if it runs; returns before it has ended."""
        # Without a held lock the recorded process is gone, and its id may belong to another one by now.
        if self._is_locked():
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((self.folder / "keeper").read_text()), signal.SIGTERM)

    def delete_record(self, may_delete: Callable[[], bool] = lambda: True) -> None:
        """Delete the record, so that the command can be begun again; a running one is kept.

        Args:
            may_delete: Called while no other process can begin or delete it; returns True if it is still in the state
                that the caller has seen.
        """
        lock = self._try_lock()
        if lock is None:
            return
        try:
            if may_delete():
                # Renamed before it is deleted, so that no process ever reads half a record.
                gone = self.folder.with_name(f".gone-{self.folder.name}-{os.getpid()}-{threading.get_ident()}")
                with contextlib.suppress(OSError):
                    self.folder.rename(gone)
                shutil.rmtree(gone, ignore_errors=True)
        finally:
            os.close(lock)

    def _try_lock(self) -> int | None:
        """Return the lock, held; None if another process holds it, or there is nothing to lock."""
        for _ in range(_SEIZE_TRIES):
            try:
                lock = os.open(self.folder / "lock", os.O_RDWR)
            except OSError:
                return None
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if (self.folder / "lock").stat().st_ino == os.fstat(lock).st_ino:
                    return lock  # still the same run: not removed or begun again meanwhile
            os.close(lock)
            time.sleep(_SEIZE_PAUSE_S)  # an observer holds the lock only for an instant
        return None

    def set_mark(self, name: str) -> bool:
        """Put a mark on the run; return True if this call put it there."""
        try:
            (self.folder / f"mark-{name}").touch(exist_ok=False)
        except OSError:
            return False
        return True

    def is_marked(self, name: str) -> bool:
        """Return True if the run has that mark."""
        return (self.folder / f"mark-{name}").exists()

    def _is_locked(self) -> bool:
        """Return True if a process holds the lock."""
        try:
            lock = os.open(self.folder / "lock", os.O_RDWR)
        except OSError:
            return False
        try:
            # A shared lock, so that two processes that look at once do not take each other for the keeper.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False


def prune_runs(folder: Path, runs_max: int) -> None:
    """Delete the oldest runs that have ended, until `runs_max` are left."""
    runs = [path for path in folder.iterdir() if not path.name.startswith(".")]
    if len(runs) <= runs_max:
        return
    over = [
        path
        for path in sorted(runs, key=_read_changed_at)
        if CommandRun(path).read_state() is not CommandRunState.RUNNING
    ]
    for path in over[: len(runs) - runs_max]:
        CommandRun(path).delete_record()


def _read_changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _start_keeper(arguments: Sequence[str], environment: Mapping[str, str], lock: int) -> str:
    """Start the keeper; return why it could not begin, or ``""``. It inherits the lock, and no other descriptor."""
    # Isolated and without `site`: it starts faster, and `PYTHON…` variables meant for the command cannot break it.
    program = [sys.executable, "-I", "-S", str(Path(exec_keeper.__file__)), *arguments]
    try:
        with subprocess.Popen(  # noqa: S603 - our own program
            program,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[lock],
            start_new_session=True,
        ) as starter:
            said, _ = starter.communicate(timeout=_START_S)
    except subprocess.TimeoutExpired:
        return ""  # very slow; the folder shows if it has begun
    except (OSError, ValueError) as error:
        return f"cannot start a process: {error.strerror if isinstance(error, OSError) else error}"
    if starter.returncode:
        return f"the keeper of the command ended with exit status {starter.returncode}"
    return make_printable(said.decode("utf-8", "replace"))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
