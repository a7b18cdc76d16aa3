"""One command that is run once: a folder holds all that is known of it.

The folder appears under its name whole, with the lock held: only one caller can begin, however many try, and however
often one of them is cancelled. `exec_keeper` holds the lock from then on. So what a folder says is the same for every
process on this machine, and after a stop of any kind.
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
from forewarn.actuators.payload import as_reason
from forewarn.errors import ActuatorError

__all__ = ["Outcome", "Run", "RunState", "prune"]

_START_S = 10.0
"""For the keeper to begin."""

_SEIZE_TRIES = 20
_SEIZE_PAUSE_S = 0.001


class RunState(StrEnum):
    """Where a run stands."""

    UNKNOWN = "unknown"
    """Nothing was begun, as far as this machine knows."""
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"
    """It was begun, and who kept it is gone: nobody saw how it ended, if it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended.

    Attributes:
        status: Exit status; negative: the signal that ended it.
        took_s: Seconds from its start to its end.
        is_late: It was ended because its deadline had come.
        is_stopped: It was ended because somebody wanted it.
        output: The end of what it said, on both streams.
    """

    status: int
    took_s: float
    is_late: bool
    is_stopped: bool
    output: str

    @property
    def last_line(self) -> str:
        """Its last words; ``""`` when it said nothing."""
        return next((line for text in reversed(self.output.splitlines()) if (line := as_reason(text))), "")

    def explain(self, label: str, deadline_s: float) -> str:
        """What went wrong, in a line."""
        if self.is_late:
            how = f"{label} took longer than {deadline_s:g} s and was ended"
        elif self.is_stopped:
            how = f"{label} was ended on request"
        elif self.status < 0:
            how = f"{label} was ended by {_signal_name(-self.status)}"
        else:
            how = f"{label} ended with exit status {self.status}"
        return f"{how}: {self.last_line}" if self.last_line else how


class Run:
    """A command that is run at most once.

    Args:
        folder: Its own; made when it begins, below a folder that exists.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(  # noqa: PLR0913 - what a process needs, and its limits
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
        """Start it, unless that was done before. Blocks for some ten milliseconds.

        Args:
            command: Program and arguments.
            environment: All of its variables.
            stdin: What it reads.
            deadline_s: Then it is ended, with its process group.
            output_size_bytes_max: How much of the end of its output is kept.
            number: Which run it is of those that there may be; the first is 1.
            begin_before_s: Uptime from which on it is not begun any more.

        Raises:
            ActuatorError: It cannot be started; nothing was begun.
        """
        try:
            lock = self._claim({"input": stdin, "number": str(number).encode()})
        except OSError as error:
            msg = f"cannot use the folder {self.folder.parent}: {error.strerror}"
            raise ActuatorError(msg) from error
        if lock is None:
            return
        arguments = [str(self.folder), str(deadline_s), str(output_size_bytes_max), str(begin_before_s), *command]
        try:
            refusal = _start_keeper(arguments, environment, lock)
        finally:
            os.close(lock)
        if refusal:
            self.forget(lambda: self.left_behind() is not RunState.ENDED)
            raise ActuatorError(refusal)

    def _claim(self, files: Mapping[str, bytes]) -> int | None:
        """The lock of the folder with these files, or None when it was there before."""
        made = Path(tempfile.mkdtemp(prefix=".new-", dir=self.folder.parent))
        for name, content in files.items():
            (made / name).write_bytes(content)
        lock = os.open(made / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            made.rename(self.folder)
        except OSError as error:
            os.close(lock)
            shutil.rmtree(made, ignore_errors=True)
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
                return None
            raise
        return lock

    def look(self) -> RunState:
        """Where it stands."""
        # In this order: the result is written before the lock is let go.
        return RunState.RUNNING if self._is_kept() else self.left_behind()

    def left_behind(self) -> RunState:
        """Where it stands if nobody is at it any more."""
        if (self.folder / "result").exists():
            return RunState.ENDED
        return RunState.LOST if (self.folder / "keeper").exists() else RunState.UNKNOWN

    def outcome(self) -> Outcome:
        """How it ended.

        Raises:
            ActuatorError: What stands there cannot be read.
        """
        try:
            known: Any = json.loads((self.folder / "result").read_bytes())
            return Outcome(**known)
        except (OSError, ValueError, TypeError) as error:
            msg = f"cannot read {self.folder / 'result'}: {type(error).__name__}"
            raise ActuatorError(msg) from error

    def number(self) -> int:
        """Which run it is, as `begin` was told; 0: there was none."""
        try:
            return int((self.folder / "number").read_bytes())
        except (OSError, ValueError):
            return 0

    def stop(self) -> None:
        """Have it ended, if it runs; returns before it has."""
        if self._is_kept():
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((self.folder / "keeper").read_text()), signal.SIGTERM)

    def forget(self, may: Callable[[], bool] = lambda: True) -> None:
        """Remove what is known of it, so that it can be begun anew; one that runs stays.

        Args:
            may: Asked while nobody else can begin or remove it: whether it is still what the caller has seen.
        """
        lock = self._seize()
        if lock is None:
            return
        try:
            if may():
                gone = self.folder.with_name(f".gone-{self.folder.name}-{os.getpid()}-{threading.get_ident()}")
                with contextlib.suppress(OSError):
                    self.folder.rename(gone)
                shutil.rmtree(gone, ignore_errors=True)
        finally:
            os.close(lock)

    def _seize(self) -> int | None:
        """The lock, held; None: somebody else holds it, or there is nothing to hold."""
        for _ in range(_SEIZE_TRIES):
            try:
                lock = os.open(self.folder / "lock", os.O_RDWR)
            except OSError:
                return None
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if (self.folder / "lock").stat().st_ino == os.fstat(lock).st_ino:
                    return lock  # and not one that was removed, or begun anew, meanwhile
            os.close(lock)
            time.sleep(_SEIZE_PAUSE_S)  # one that only looks holds it for an instant
        return None

    def mark(self, name: str) -> bool:
        """Put a mark on it; hands back whether this call did."""
        try:
            (self.folder / f"mark-{name}").touch(exist_ok=False)
        except OSError:
            return False
        return True

    def is_marked(self, name: str) -> bool:
        """Whether it has that mark."""
        return (self.folder / f"mark-{name}").exists()

    def _is_kept(self) -> bool:
        """Whether somebody holds the lock."""
        try:
            lock = os.open(self.folder / "lock", os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False


def prune(folder: Path, runs_max: int) -> None:
    """Forget the oldest runs that have ended, until so many are left."""
    runs = [path for path in folder.iterdir() if not path.name.startswith(".")]
    if len(runs) <= runs_max:
        return
    over = [path for path in sorted(runs, key=_changed_at) if Run(path).look() is not RunState.RUNNING]
    for path in over[: len(runs) - runs_max]:
        Run(path).forget()


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _start_keeper(arguments: Sequence[str], environment: Mapping[str, str], lock: int) -> str:
    """Start the keeper; hands back why it could not begin, or ``""``. It inherits the lock, and no other descriptor."""
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
        return ""  # it is very slow, but whether it has begun stands in the folder
    except (OSError, ValueError) as error:
        return f"cannot start a process: {error.strerror if isinstance(error, OSError) else error}"
    if starter.returncode:
        return f"the keeper of the command ended with exit status {starter.returncode}"
    return as_reason(said.decode("utf-8", "replace"))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
