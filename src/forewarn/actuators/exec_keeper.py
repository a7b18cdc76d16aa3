"""Program that runs one command, and stays with it when the service ends.

It is started by `exec_run` and imports nothing of Forewarn, so it starts in milliseconds. The service may stop, crash
or be replaced meanwhile; the command goes on, keeps its output pipe and its deadline, and its outcome is recorded in
the folder of its run:

========  ==========================================================
lock      locked for as long as this program lives
input     the command's standard input, written by the service
keeper    the id of this process, written before the command begins
result    JSON, written when the command has ended
========  ==========================================================

Before it runs the command it checks the clock: the replica that started it may have been suspended for so long that
another one has taken over. The duration of a command includes its start, so it is never reported as too short.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

__all__ = ["Keeper", "main", "write_atomically"]

GRACE_S = 3.0
"""Time from SIGTERM until SIGKILL."""

DRAIN_BYTES_MAX = 1 << 20
"""Number of bytes read after the command's end; its background processes may write for ever."""

CHUNK_BYTES = 1 << 16


class Keeper:
    """One command, from its start to its result.

    Args:
        folder: Folder of the run.
        deadline_s: Time limit; then the process group is ended.
        output_size_bytes_max: Number of bytes that are kept from the end of the output, both streams together.
    """

    def __init__(self, folder: str, deadline_s: float, output_size_bytes_max: int) -> None:
        self._folder = folder
        self._deadline_s = deadline_s
        self._output_size_bytes_max = output_size_bytes_max
        self._kept = bytearray()
        self._group = 0
        self._is_late = False
        self._is_stopped = False
        self._took_s = deadline_s
        self._began_s = 0.0

    def start_command(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start the command; from now on a signal to this program stops the command.

        Raises:
            OSError: It cannot be run.
        """
        signal.signal(signal.SIGTERM, self._handle_stop)
        signal.signal(signal.SIGALRM, self._handle_deadline)
        self._began_s = time.clock_gettime(time.CLOCK_MONOTONIC)
        with open(os.path.join(self._folder, "input"), "rb") as given:  # noqa: PTH118, PTH123 - pathlib costs a start
            process = subprocess.Popen(  # noqa: S603 - the operator's command, without a shell
                list(command), stdin=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._group = process.pid
        # SIGTERM may have arrived before there was a process group to end.
        if self._is_stopped:
            self._request_end()
        else:
            signal.setitimer(signal.ITIMER_REAL, self._deadline_s)
        return process

    def collect_result(self, process: subprocess.Popen[bytes]) -> None:
        """Read its output until it ends, then write its result."""
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        pipe = process.stdout.fileno()
        os.set_blocking(pipe, False)
        # The end of the process counts, not that of the pipe: background processes may keep the pipe open.
        ended = os.pidfd_open(process.pid)
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            selector.register(ended, selectors.EVENT_READ)
            while ended not in (ready := [key.fd for key, _ in selector.select()]):
                if ready and not self._read_output(pipe):
                    selector.unregister(pipe)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if not (self._is_late or self._is_stopped):
            self._took_s = time.clock_gettime(time.CLOCK_MONOTONIC) - self._began_s
        else:
            # The command has ended, but processes that it started may have ignored SIGTERM.
            self._signal_group(signal.SIGKILL)
        status = process.wait()
        for _ in range(DRAIN_BYTES_MAX // CHUNK_BYTES):
            if not self._read_output(pipe, is_empty_the_end=True):
                break
        self._write_result(status)

    def _read_output(self, pipe: int, *, is_empty_the_end: bool = False) -> bool:
        """Read available output; return True if there may be more."""
        try:
            chunk = os.read(pipe, CHUNK_BYTES)
        except BlockingIOError:
            return not is_empty_the_end
        self._kept += chunk
        del self._kept[: max(len(self._kept) - self._output_size_bytes_max, 0)]
        return bool(chunk)

    def _write_result(self, status: int) -> None:
        result = {
            "status": status,
            # Rounded up, so that it is never reported as too short.
            "took_s": math.ceil(self._took_s * 1000) / 1000,
            "is_late": self._is_late,
            "is_stopped": self._is_stopped,
            "output": self._kept.decode("utf-8", "replace"),
        }
        write_atomically(self._folder, "result", json.dumps(result))

    def _handle_deadline(self, _number: int, _frame: FrameType | None) -> None:
        """End the command at the deadline, and kill it after the grace period."""
        if self._is_late or self._is_stopped:
            self._signal_group(signal.SIGKILL)
            return
        self._is_late = True
        self._request_end()

    def _handle_stop(self, _number: int, _frame: FrameType | None) -> None:
        """End the command on request."""
        if not (self._is_late or self._is_stopped):
            self._is_stopped = True
            self._request_end()

    def _request_end(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, GRACE_S)
        self._signal_group(signal.SIGTERM)

    def _signal_group(self, number: signal.Signals) -> None:
        if self._group:  # 0 would be our own
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, number)


def write_atomically(folder: str, name: str, text: str) -> None:
    """Write a file atomically and durably: it has all of its text, or does not exist, also after a power cut."""
    path = os.path.join(folder, name)  # noqa: PTH118 - pathlib costs a start
    with open(f"{path}.new", "w", encoding="utf-8") as file:  # noqa: PTH123 - as above
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)  # noqa: PTH105 - as above
    names = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(names)
    finally:
        os.close(names)


def main(folder: str, deadline_s: str, output_size_bytes_max: str, begin_before_s: str, *command: str) -> None:
    """Detach from the service and start the command; print one line if that fails, nothing if it has begun."""
    if os.fork():
        os._exit(0)  # the keeper becomes an orphan, so the service need not wait for it
    keeper = Keeper(folder, float(deadline_s), int(output_size_bytes_max))
    # Before the command: if this process dies from now on, the run counts as lost, and not as never begun.
    write_atomically(folder, "keeper", str(os.getpid()))
    # The service reads the same clock, which goes on while the machine is suspended.
    if time.clock_gettime(time.CLOCK_BOOTTIME) >= float(begin_before_s):
        os.write(1, b"the command was not run: the lease has expired\n")
        return
    try:
        process = keeper.start_command(command)
    except OSError as error:
        os.write(1, f"cannot run {command[0]}: {error.strerror}\n".encode())
        return
    # This closes the pipe to the service, which shows it that the command has begun.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.close(nothing)
    keeper.collect_result(process)


if __name__ == "__main__":
    main(*sys.argv[1:])
