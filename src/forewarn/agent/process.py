"""Commands: started without a shell, ended with all that they started, their output kept within a limit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from forewarn.agent.handlers.contract import Ran
from forewarn.errors import HookFailed

__all__ = ["run_process"]

_GRACE_S = 3.0
"""From asking a command to end until it is ended."""

_DRAIN_S = 0.5
"""How long to read on after its end: a child that lives on may hold the pipe open for ever."""

_CHUNK_BYTES = 16 << 10


async def run_process(
    command: Sequence[str] | str,
    *,
    stdin: bytes,
    environment: Mapping[str, str],
    timeout_s: float,
    output_size_bytes_max: int,
) -> Ran:
    """Run a command to its end; cancelling ends it, and everything that it has started.

    Args:
        command: Program and arguments; a text is a line for the system's shell.
        stdin: What it reads.
        environment: All of its variables.
        timeout_s: For it to end.
        output_size_bytes_max: How much of the end of each stream is kept.

    Raises:
        HookFailed: It cannot be started, or took too long.
    """
    label = command if isinstance(command, str) else command[0]
    process = await _start(command, environment, label)
    readers = [
        asyncio.create_task(_tail(stream, output_size_bytes_max))
        for stream in (process.stdout, process.stderr)
        if stream is not None
    ]
    try:
        try:
            async with asyncio.timeout(timeout_s):
                await _feed(process, stdin)
                await process.wait()
        except TimeoutError as error:
            msg = f"{label} took longer than {timeout_s:g} s"
            raise HookFailed(msg) from error
        finally:
            await _end(process)
            await asyncio.wait(readers, timeout=_DRAIN_S)
    finally:
        for reader in readers:
            reader.cancel()
    output, errors = await asyncio.gather(*readers)
    return Ran(
        status=process.returncode if process.returncode is not None else -1,
        output=output.decode("utf-8", "replace"),
        errors=errors.decode("utf-8", "replace"),
    )


async def _start(
    command: Sequence[str] | str, environment: Mapping[str, str], label: str
) -> asyncio.subprocess.Process:
    from shutil import which

    pipe = asyncio.subprocess.PIPE
    try:
        if isinstance(command, str):
            return await asyncio.create_subprocess_shell(
                command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, **_own_group()
            )
        # Windows finds a program by its extension as well, but only where somebody looks for it so.
        program = which(command[0], path=environment.get("PATH")) or command[0]
        return await asyncio.create_subprocess_exec(
            program, *command[1:], stdin=pipe, stdout=pipe, stderr=pipe, env=environment, **_own_group()
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        msg = f"cannot run {label}: {reason}"
        raise HookFailed(msg) from error


def _own_group() -> dict[str, Any]:
    """What gives a process a group of its own, so that it can be ended with all its children."""
    if sys.platform == "win32":
        options: dict[str, Any] = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    else:
        options = {"start_new_session": True}
    return options


async def _feed(process: asyncio.subprocess.Process, stdin: bytes) -> None:
    """Hand over standard input; a command that does not read it does no harm."""
    if process.stdin is None:
        return
    with contextlib.suppress(ConnectionError):
        process.stdin.write(stdin)
        await process.stdin.drain()
    process.stdin.close()


async def _tail(stream: asyncio.StreamReader, size_bytes_max: int) -> bytes:
    """The end of what a stream gives, to its end or to the last that came."""
    kept = bytearray()
    try:
        while chunk := await stream.read(_CHUNK_BYTES):
            kept += chunk
            del kept[: max(len(kept) - size_bytes_max, 0)]
    except asyncio.CancelledError:
        pass
    return bytes(kept)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the process and its group: ask first, then insist. May not be interrupted half-way."""
    if process.returncode is not None:
        return
    _signal(process, is_final=False)
    try:
        async with asyncio.timeout(_GRACE_S):
            await process.wait()
    except TimeoutError:
        _signal(process, is_final=True)
        await process.wait()


def _signal(process: asyncio.subprocess.Process, *, is_final: bool) -> None:
    with contextlib.suppress(ProcessLookupError):
        if sys.platform == "win32":
            process.kill() if is_final else process.terminate()
        else:
            os.killpg(process.pid, signal.SIGKILL if is_final else signal.SIGTERM)
