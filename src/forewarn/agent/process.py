"""Commands: run without a shell by default, ended with all their children, with limited output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from forewarn.agent.handlers.contract import CommandResult
from forewarn.errors import HookFailed

__all__ = ["run_process"]

_GRACE_S = 3.0
"""Time between asking a command to end and killing it."""

_DRAIN_S = 0.5
"""Time to keep reading after its end: a surviving child may hold the pipe open forever."""

_LOOK_S = 0.05
"""Interval between checks for survivors of the process group."""

_LABEL_LENGTH_MAX = 120
_STDIN, _STDOUT, _STDERR = range(3)

_OWN_GROUP: dict[str, Any] = {"start_new_session": True}
"""Options that put a process into its own group, so that it can be ended with all its children."""

if sys.platform == "win32":
    _OWN_GROUP = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}


async def run_process(
    command: Sequence[str] | str,
    *,
    stdin: bytes,
    environment: Mapping[str, str],
    timeout_s: float,
    output_size_bytes_max: int,
) -> CommandResult:
    """Run a command to its end; cancelling ends it, and everything that it has started.

    Processes that it leaves in the background when it ends normally may live on, and are not waited for.

    Args:
        command: Program and arguments; a string is a line for the system's shell.
        stdin: Standard input; the command need not read it.
        environment: All of its variables.
        timeout_s: Time limit, in seconds.
        output_size_bytes_max: Maximum size that is kept from the end of each stream.

    Raises:
        HookFailed: It cannot be started, or took too long.
    """
    label = " ".join((command if isinstance(command, str) else command[0]).split())[:_LABEL_LENGTH_MAX]
    watch = _ProcessWatcher(output_size_bytes_max)
    starting = asyncio.ensure_future(_start_process(command, environment, watch, label))
    is_late = False
    try:
        # Shielded, because a start that is cancelled half-way would leave children behind; see
        # `_kill_starting_process`.
        transport = await asyncio.shield(starting)
    except asyncio.CancelledError:
        await _kill_starting_process(starting, watch)
        raise
    try:
        _write_stdin(transport, stdin)
        try:
            async with asyncio.timeout(timeout_s):
                await watch.has_ended.wait()
        except TimeoutError:
            is_late = True
        finally:
            # Only a time-out or a cancellation leaves anything to end here.
            await _end_process(transport, watch)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                await watch.is_silent.wait()
    finally:
        _close_pipes(transport, watch)
    # None if even SIGKILL has not ended it; see `_wait_for_exit`.
    status = transport.get_returncode()
    ran = CommandResult(
        status=-1 if status is None else status,
        output=watch.decode_output(_STDOUT),
        errors=watch.decode_output(_STDERR),
    )
    # Raised only now, with the output: it often shows why the command did not end.
    if is_late:
        msg = f"{label} took longer than {timeout_s:g} s"
        raise HookFailed(msg, output=ran.output + ran.errors, has_timed_out=True)
    return ran


class _ProcessWatcher(asyncio.SubprocessProtocol):
    """Events of a process. Its end does not wait for its pipes, which other processes may hold.

    Attributes:
        has_ended: Set once the process has ended.
        is_silent: Set once no more output can come.
        open_pipes: Descriptors of the pipes that are open.
    """

    def __init__(self, size_bytes_max: int) -> None:
        self.has_ended = asyncio.Event()
        self.is_silent = asyncio.Event()
        self._size_bytes_max = size_bytes_max
        self._kept = {_STDOUT: bytearray(), _STDERR: bytearray()}
        self.open_pipes = {_STDIN, _STDOUT, _STDERR}

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep the end of the output."""
        kept = self._kept[fd]
        kept += data
        del kept[: max(len(kept) - self._size_bytes_max, 0)]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's callback
        """Record that a pipe is closed; a command need not read its input."""
        self.open_pipes.discard(fd)
        if self.open_pipes <= {_STDIN}:
            self.is_silent.set()

    def process_exited(self) -> None:
        """Record the end of the process."""
        self.has_ended.set()

    def decode_output(self, fd: int) -> str:
        """Return the output of a stream that was kept."""
        return self._kept[fd].decode("utf-8", "replace")


async def _start_process(
    command: Sequence[str] | str, environment: Mapping[str, str], watcher: _ProcessWatcher, label: str
) -> asyncio.SubprocessTransport:
    loop = asyncio.get_running_loop()
    try:
        if isinstance(command, str):
            starting = loop.subprocess_shell(lambda: watcher, command, env=environment, **_OWN_GROUP)
        else:
            # Windows needs shutil.which to find a program by its extension as well.
            program = shutil.which(command[0], path=environment.get("PATH")) or command[0]
            starting = loop.subprocess_exec(lambda: watcher, program, *command[1:], env=environment, **_OWN_GROUP)
        transport, _ = await starting
    # A ValueError means that an argument or a variable contains a NUL.
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise HookFailed(f"cannot run {label}: {reason}") from error
    return transport


def _write_stdin(transport: asyncio.SubprocessTransport, stdin: bytes) -> None:
    """Write standard input, then close it."""
    pipe = transport.get_pipe_transport(_STDIN)
    assert isinstance(pipe, asyncio.WriteTransport)  # noqa: S101 - asyncio made it
    pipe.write(stdin)
    pipe.close()


def _close_pipes(transport: asyncio.SubprocessTransport, watcher: _ProcessWatcher) -> None:
    """Close the pipes, including an input that was not read."""
    pipe = transport.get_pipe_transport(_STDIN)
    if _STDIN in watcher.open_pipes and isinstance(pipe, asyncio.WriteTransport):
        # A closing pipe with nothing left to write is about to close; asyncio would close it a second time.
        is_closed_soon = pipe.is_closing() and not pipe.get_write_buffer_size()
        if not is_closed_soon:
            pipe.abort()
    transport.close()


async def _end_process(transport: asyncio.SubprocessTransport, watcher: _ProcessWatcher) -> None:
    """End the process and its group: SIGTERM first, then SIGKILL; SIGKILL at once if this is cancelled."""
    if watcher.has_ended.is_set():
        return
    # The process leads its own group, so its id is also the group's.
    group = transport.get_pid()
    _signal_group(transport, group, is_final=False)
    try:
        async with asyncio.timeout(_GRACE_S):
            await watcher.has_ended.wait()
            while _has_survivors(group):  # noqa: ASYNC110 - no event reports the end of a process's children
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        pass
    finally:
        # Also when the wait was cancelled: no child may survive the step.
        _signal_group(transport, group, is_final=True)
        await _wait_for_exit(watcher)


async def _kill_starting_process(
    starting: asyncio.Future[asyncio.SubprocessTransport], watcher: _ProcessWatcher
) -> None:
    """Kill a process that is being started and wait for its end, however often this is cancelled.

    If it were cancelled half-way, asyncio would kill the process without its children, and then wait for the pipes that
    they hold open.
    """
    while not starting.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([starting])
    if starting.exception() is None:
        transport = starting.result()
        _signal_group(transport, transport.get_pid(), is_final=True)
        with contextlib.suppress(asyncio.CancelledError):
            await _wait_for_exit(watcher)
        _close_pipes(transport, watcher)


async def _wait_for_exit(watcher: _ProcessWatcher) -> None:
    """Wait for the end of a killed process, however often this is cancelled: it takes milliseconds.

    A process that the system cannot end now (it waits for a disk that does not answer) is left to the system.
    """
    ending = asyncio.ensure_future(watcher.has_ended.wait())
    was_cancelled = False
    while not ending.done():
        try:
            done, _ = await asyncio.wait([ending], timeout=_GRACE_S)
        except asyncio.CancelledError:
            was_cancelled = True
        else:
            if not done:
                ending.cancel()
                break
    if was_cancelled:
        raise asyncio.CancelledError


def _has_survivors(group: int) -> bool:
    """Return True if any process of the group is left. Its number is not reused until then."""
    if sys.platform != "win32":
        # A PermissionError means that all survivors belong to another user, so this agent cannot end them.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, 0)
            return True
    return False


def _signal_group(transport: asyncio.SubprocessTransport, group: int, *, is_final: bool) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            transport.kill() if is_final else transport.terminate()
        else:
            os.killpg(group, signal.SIGKILL if is_final else signal.SIGTERM)
