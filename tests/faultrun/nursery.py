"""Where the processes of a run come from: one that has imported everything, and forks.

A fresh Python takes a second or two to import a replica, and a run starts dozens. A child of the nursery is a process
like any other, with a pid, memory and sockets of its own; `kill -9` and SIGSTOP do to it what they do to any.

A child may be put into a network namespace, and may be given a clock that is off by what a file says.
"""

from __future__ import annotations

import array
import asyncio
import ctypes
import gc
import importlib
import json
import mmap
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any, NoReturn

from tests.faultrun.networks import enter

__all__ = ["Child", "Nursery", "set_ahead"]

_IMPORTED = (
    "alembic.command",
    "forewarn.agent.run",
    "forewarn.server.service",
    "forewarn.cli.main",
    "forewarn.host.endpoint_process",
    "forewarn.actuators.exec",
    "forewarn.store.migrate",
    "psycopg",
    "tests.faultrun.crowd",
    "uvloop",
)
_MESSAGE_BYTES_MAX = 1 << 16
_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG."""

_AHEAD = struct.Struct("d")


class Child:
    """A process that the nursery has made.

    Attributes:
        pid: Of it.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._fd: int | None = os.pidfd_open(pid)
        except ProcessLookupError:  # it has ended already, and nobody is of that number any more
            self._fd = None

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._fd is not None and not select.select([self._fd], [], [], 0)[0]

    def send(self, number: signal.Signals) -> None:
        """Send it a signal; nothing happens when it has ended."""
        if self._fd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, number)

    def kill(self) -> None:
        """As by kill -9; hands back when it is gone."""
        self.send(signal.SIGKILL)
        if self._fd is not None:
            select.select([self._fd], [], [])
            os.close(self._fd)


class Nursery:
    """The process that makes the others; they die with it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.faultrun.nursery", str(theirs.fileno())]
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=root)
        theirs.close()
        self._line = ours
        self._lock = threading.Lock()
        assert ours.recv(16) == b"ready"

    async def fork(
        self,
        arguments: Sequence[str],
        files: Sequence[IO[Any] | socket.socket],
        *,
        settings: Mapping[str, str] | None = None,
        namespace: str | None = None,
        clock: Path | None = None,
    ) -> Child:
        """Make a process.

        Args:
            arguments: ``serve …``, ``endpoint …``, or ``crowd``.
            files: Its standard output and standard error; after them whatever else it is given.
            settings: Environment variables, beside those of the nursery.
            namespace: The network namespace to be in; None: where the nursery is.
            clock: A file of `set_ahead`; None: its clock is the machine's.
        """
        wanted = {"arguments": list(arguments), "settings": dict(settings or {}), "namespace": namespace}
        text = json.dumps(wanted | {"clock": str(clock or "")}).encode()

        def ask() -> Child:
            with self._lock:
                socket.send_fds(self._line, [text], [file.fileno() for file in files])
                return Child(int(self._line.recv(16)))

        return await asyncio.to_thread(ask)

    def close(self) -> None:
        """End it, and all that came from it."""
        self._line.close()
        self._process.kill()
        self._process.wait()


def set_ahead(file: Path, seconds: float) -> None:
    """Have the clock of whoever follows that file be so many seconds ahead from now on."""
    if not file.exists():
        file.write_bytes(_AHEAD.pack(0.0))
    with file.open("r+b") as opened:
        opened.write(_AHEAD.pack(seconds))


def _follow(file: Path) -> None:
    """Make this process's clock that of the file."""
    from forewarn.clock import RealClock  # noqa: PLC0415 - imported already, and changed in this process only

    with file.open("r+b") as opened:
        ahead = mmap.mmap(opened.fileno(), _AHEAD.size)
    right = RealClock.now

    def now(self: RealClock) -> datetime:
        return right(self) + timedelta(seconds=_AHEAD.unpack(ahead[:])[0])

    RealClock.now = now  # type: ignore[method-assign] # the point of it


def _live(wanted: Mapping[str, Any], fds: Sequence[int]) -> NoReturn:
    """What a child does for all its life."""
    status = 1
    try:
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, fd in enumerate(fds[:2], 1):
            os.dup2(fd, number)
            os.close(fd)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 - for good
        os.environ.update(wanted["settings"])
        if wanted["namespace"]:
            enter(wanted["namespace"])
        if wanted["clock"]:
            _follow(Path(wanted["clock"]))
        status = _run(wanted["arguments"], fds[2:])
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001 - nothing of the parent's must run in a child
        traceback.print_exc()
    finally:
        os._exit(status)


def _run(arguments: Sequence[str], fds: Sequence[int]) -> int:
    if arguments[0] == "crowd":
        importlib.import_module("tests.faultrun.crowd").live(socket.socket(fileno=fds[0]))
        return 0
    status: int = importlib.import_module("forewarn.cli.main").run_command_line(arguments)
    return status


def main(fd: int) -> None:
    """Be the nursery, until the other end of that socket is closed."""
    line = socket.socket(fileno=fd)
    for name in [name for name in os.environ if name.startswith("FOREWARN_")]:
        del os.environ[name]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    line.send(b"ready")
    while True:
        text, ancillary, _, _ = line.recvmsg(_MESSAGE_BYTES_MAX, socket.CMSG_SPACE(16 * array.array("i").itemsize))
        if not text:
            return
        fds = array.array("i")
        for _level, _kind, data in ancillary:
            fds.frombytes(data)
        pid = os.fork()
        if pid == 0:
            line.close()
            _live(json.loads(text), list(fds))
        for each in fds:
            os.close(each)
        line.send(str(pid).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
