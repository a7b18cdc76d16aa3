"""Child processes: pinned to a core, spoken to in lines of JSON, and ended whatever happens.

A child dies with us (`setpriv --pdeathsig`) and leads a process group of its own. That group is what is ended: nothing
is ever looked for by name.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

__all__ = ["LOAD_CORE", "ROOT", "SERVER_CORE", "BenchError", "Child", "find_tool", "missing_tools", "python_child"]

LOAD_CORE = 0
SERVER_CORE = 1

ROOT = Path(__file__).resolve().parent.parent

_PACKAGE_OF = {
    "wrk": "wrk",
    "nginx": "nginx-light",
    "go": "golang-go",
    "taskset": "util-linux",
    "setpriv": "util-linux",
}
_STOP_S = 10.0


class BenchError(Exception):
    """The benchmark cannot go on, in one line."""


def missing_tools() -> list[str]:
    """The Debian packages that are to be installed before the benchmark can run."""
    return sorted({package for tool, package in _PACKAGE_OF.items() if find_tool(tool) is None})


def find_tool(name: str) -> str | None:
    """Where a program is; servers often lie outside a user's path."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")


class Child:
    """A process of the benchmark; a context manager.

    Args:
        arguments: Program and arguments.
        core: Where it runs.
        log: Where its stderr goes.
    """

    def __init__(self, arguments: Sequence[str], *, core: int, log: Path, folder: Path | None = None) -> None:
        program = find_tool(arguments[0]) or arguments[0]
        self.arguments = ["setpriv", "--pdeathsig", "TERM", "taskset", "-c", str(core), program, *arguments[1:]]
        self._log = log
        self._folder = folder or ROOT
        self._unread = b""

    def __enter__(self) -> Self:
        self._stderr: IO[bytes] = self._log.open("ab")
        self.started_s = time.monotonic()
        self._process = subprocess.Popen(
            self.arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            cwd=self._folder,
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait(_STOP_S)
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                stream.close()

    @property
    def pid(self) -> int:
        """Its process id, and that of its group."""
        return self._process.pid

    def cpu_s(self) -> float:
        """Seconds of processor that it has used, with its children and the processes of its group."""
        ticks = sum(int(fields[11]) + int(fields[12]) for fields in self._group())
        return ticks / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        """Return the resident memory of it, its children and the processes of its group, added up."""
        return sum(int(fields[21]) for fields in self._group()) * os.sysconf("SC_PAGE_SIZE")

    def _group(self) -> list[list[str]]:
        """Return the fields of /proc/PID/stat, from the state on, of each of these processes."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                # The process that answers VMs leads a group of its own.
                if self.pid in {int(fields[1]), int(fields[2])}:
                    found.append(fields)
        return found

    def tell(self, **message: Any) -> None:  # noqa: ANN401 - JSON
        """Send it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """Its next line, which is JSON.

        Raises:
            BenchError: It ended, or said nothing for so long.
        """
        heard: dict[str, Any] = json.loads(self.hear_line(timeout_s))
        return heard

    def hear_line(self, timeout_s: float = 60.0) -> str:
        """Its next line.

        Raises:
            BenchError: It ended, or said nothing for so long.
        """
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not selector.select(left_s):
                    msg = f"{self._name} said nothing for {timeout_s:.0f} s; its log: {self._tail()}"
                    raise BenchError(msg)
                piece = os.read(self._process.stdout.fileno(), 1 << 20)
                if not piece:
                    msg = f"{self._name} ended with {self._process.wait(_STOP_S)}; its log: {self._tail()}"
                    raise BenchError(msg)
                self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def ask(self, timeout_s: float = 60.0, **message: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        """Send it a line and hear the answer."""
        self.tell(**message)
        return self.hear(timeout_s)

    def finish(self, timeout_s: float) -> bytes:
        """All that it prints until it ends by itself.

        Raises:
            BenchError: It did not end, or failed.
        """
        try:
            output, _ = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            msg = f"{self._name} did not end within {timeout_s:.0f} s"
            raise BenchError(msg) from error
        if self._process.returncode != 0:
            msg = f"{self._name} ended with {self._process.returncode}; its log: {self._tail()}"
            raise BenchError(msg)
        return self._unread + output

    def kill(self) -> None:
        """End it as a crash would."""
        self._signal(signal.SIGKILL)
        self._process.wait(_STOP_S)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    @property
    def _name(self) -> str:
        return " ".join(Path(part).name for part in self.arguments[6:9])

    def _tail(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return " | ".join(lines[-3:]) or "empty"

    def _signal(self, number: signal.Signals) -> None:
        """To the whole group; that of a child that has been waited for is left alone."""
        if self._process.poll() is None:
            os.killpg(self.pid, number)


def python_child(module: str, *arguments: str, core: int, log: Path) -> Child:
    """A module of this package as a child."""
    return Child([sys.executable, "-m", module, *arguments], core=core, log=log)
