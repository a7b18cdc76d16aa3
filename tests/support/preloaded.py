"""Processes of `forewarn` that have imported everything before they begin.

More than half of the processor time of a short-lived service is importing. One process per test run does that once
(the standard library's fork server), and forks for each service. What tests of the start itself start, they start
with `python -m forewarn`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any

__all__ = ["PreloadedProcess"]

_PRELOADED = ("forewarn.cli.main", "forewarn.cli.serve", "forewarn.server.service", __name__)


@cache
def _get_context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    return context


class _Descriptor:
    """An open file that the other process gets, under a number of its own."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _take, (DupFd(self._number),)


def _take(sent: Any) -> int:  # noqa: ANN401 - the standard library does not say what it is
    number: int = sent.detach()
    return number


def _run(arguments: Sequence[str], environment: Mapping[str, str], folder: str, output: int, errors: int) -> None:
    """Become the command, in the forked process."""
    for number, own in ((1, output), (2, errors)):
        os.dup2(own, number)
        os.close(own)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False, buffering=1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["forewarn", *arguments]
    from forewarn.cli.main import main  # noqa: PLC0415 - only in the process that runs it

    try:
        main()
    finally:
        sys.stdout.flush()


class PreloadedProcess:
    """A command of `forewarn`, as `subprocess.Popen` has it: with a pipe for what it prints.

    Args:
        arguments: After the name of the program.
        environment: All of it.
        errors: File for its standard error.

    Attributes:
        stdout: What it prints.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], errors: IO[str]) -> None:
        read, write = os.pipe()
        self.stdout: IO[str] | None = os.fdopen(read, encoding="utf-8")
        self._process = _get_context().Process(
            target=_run,
            args=(list(arguments), dict(environment), str(Path.cwd()), *map(_Descriptor, (write, errors.fileno()))),
        )
        try:
            self._process.start()
        finally:
            os.close(write)

    @property
    def pid(self) -> int:
        """Its number."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit status; None while it runs, negative for a signal."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return its exit status; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, and return its exit status."""
        self._process.join(timeout)
        status = self._process.exitcode
        if status is None:
            raise subprocess.TimeoutExpired("forewarn", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)
