"""Child processes, which are pinned to a core, exchange lines of JSON with the benchmark, and always end with it.

If the benchmark dies, the kernel ends its child processes (`setpriv --pdeathsig`). Each child leads a separate process
group. To stop a child, the benchmark signals this group; it never searches for processes by name.
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
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

__all__ = ["LOAD_CORE", "ROOT", "SERVER_CORE", "BenchError", "Child", "find_tool", "missing_packages", "python_child"]

LOAD_CORE = 0
SERVER_CORE = 1

ROOT = Path(__file__).resolve().parent.parent

_ALL_PARTS = ("taskset", "setpriv")
_PROGRAMS_OF = {
    "get": ("wrk", "nginx", "haproxy", "go"),
    "commits": ("etcd", "h2load"),
}
"""Programs that only these parts of the benchmark need."""

_PACKAGE_OF = {
    "wrk": "wrk",
    "nginx": "nginx-light",
    "haproxy": "haproxy",
    "go": "golang-go",
    "etcd": "etcd-server",
    "h2load": "nghttp2-client",
    "taskset": "util-linux",
    "setpriv": "util-linux",
}
_STOP_S = 10.0


class BenchError(Exception):
    """The benchmark cannot continue. The message is one line."""


def missing_packages(parts: Iterable[str], find: Callable[[str], str | None] | None = None) -> list[str]:
    """Return the Debian packages that these parts of the benchmark need and that are not installed.

    Args:
        parts: Names of the parts that will run.
        find: Returns the path of a program, or None; by default, it is looked up on this machine.
    """
    needed = {*_ALL_PARTS, *(program for part in parts for program in _PROGRAMS_OF.get(part, ()))}
    return sorted({_PACKAGE_OF[program] for program in needed if (find or find_tool)(program) is None})


def find_tool(name: str) -> str | None:
    """Return the path of a program. Servers are often in folders that are not on a user's PATH."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")


class Child:
    """A child process of the benchmark; a context manager.

    Args:
        arguments: Program and arguments.
        core: CPU core on which it runs.
        log: File for its stderr.
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
        """Process id, which is also the id of the process group."""
        return self._process.pid

    def cpu_s(self) -> float:
        """Return the CPU seconds used by it, its children and the processes of its group."""
        return sum(self.cpu_shares_s())

    def cpu_shares_s(self) -> tuple[float, float]:
        """Return the CPU seconds that these processes used outside the kernel, and in it."""
        group = self._group()
        per_s = os.sysconf("SC_CLK_TCK")
        return sum(int(fields[11]) for fields in group) / per_s, sum(int(fields[12]) for fields in group) / per_s

    def rss_bytes(self) -> int:
        """Return the total resident memory of it, its children and the processes of its group."""
        return sum(int(fields[21]) for fields in self._group()) * os.sysconf("SC_PAGE_SIZE")

    def count_open_files(self) -> int:
        """Return the number of files and connections that the process itself has open."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def _group(self) -> list[list[str]]:
        """Return the fields of /proc/PID/stat, from the state on, of each of these processes."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # the process has ended meanwhile
                fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                # The service's process that answers VMs leads a separate group, so the parent is compared as well.
                if self.pid in {int(fields[1]), int(fields[2])}:
                    found.append(fields)
        return found

    def tell(self, **message: Any) -> None:  # noqa: ANN401 - JSON
        """Send a message, as a line of JSON."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """Return its next line, decoded from JSON.

        Raises:
            BenchError: It ended, or printed nothing for `timeout_s`.
        """
        heard: dict[str, Any] = json.loads(self.hear_line(timeout_s))
        return heard

    def hear_line(self, timeout_s: float = 60.0) -> str:
        """Return its next line.

        Raises:
            BenchError: It ended, or printed nothing for `timeout_s`.
        """
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not selector.select(left_s):
                    raise BenchError(f"{self._name} said nothing for {timeout_s:.0f} s; its log: {self._tail()}")
                piece = os.read(self._process.stdout.fileno(), 1 << 20)
                if not piece:
                    raise BenchError(f"{self._name} ended with {self._process.wait(_STOP_S)}; its log: {self._tail()}")
                self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def ask(self, timeout_s: float = 60.0, **message: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        """Send a message, and return the answer."""
        self.tell(**message)
        return self.hear(timeout_s)

    def finish(self, timeout_s: float) -> bytes:
        """Wait until it ends; return the rest of its output.

        Raises:
            BenchError: It did not end in time, or failed.
        """
        try:
            output, _ = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"{self._name} did not end within {timeout_s:.0f} s") from error
        if self._process.returncode != 0:
            raise BenchError(f"{self._name} ended with {self._process.returncode}; its log: {self._tail()}")
        return self._unread + output

    def kill(self) -> None:
        """Kill it without warning, like a crash."""
        self._signal(signal.SIGKILL)
        self._process.wait(_STOP_S)

    @property
    def is_running(self) -> bool:
        """Whether it is still running."""
        return self._process.poll() is None

    @property
    def _name(self) -> str:
        return " ".join(Path(part).name for part in self.arguments[6:9])

    def _tail(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return " | ".join(lines[-3:]) or "empty"

    def _signal(self, number: signal.Signals) -> None:
        """Signal the whole group, unless the child has already ended."""
        if self._process.poll() is None:
            os.killpg(self.pid, number)


def python_child(module: str, *arguments: str, core: int, log: Path) -> Child:
    """Return a child process that runs a module of this package."""
    return Child([sys.executable, "-m", module, *arguments], core=core, log=log)
