"""The handler under test: a process that is started, watched, and ended with everything that it began."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from forewarn.testing.inside import ADDRESS, NO_COMMAND, NO_NAMESPACE
from forewarn.testing.lab import Lab

__all__ = ["Handler", "run_handler"]

_OUTPUT_BYTES_MAX = 256 << 10
_READ_BYTES = 64 << 10
_START_S = 10.0
_TERM_S = 5.0
_LOOK_S = 0.02
_MARK = "FOREWARN_TRIAL"


class Handler:
    """A handler that runs.

    Attributes:
        is_alone: Whether it has a network of its own, with the endpoint at 169.254.169.254.
        url: Where it finds the endpoint.
        output: The end of what it printed, on both streams.
        output_bytes: How much it printed in all.
        status: Its exit status; None while it runs.
        was_killed: Whether it had to be killed, since it did not end when it was told to.
        left: How many processes it left behind, that had to be killed.
    """

    def __init__(self, process: asyncio.subprocess.Process, url: str, mark: str, *, is_alone: bool) -> None:
        self.is_alone = is_alone
        self.url = url
        self.output = b""
        self.output_bytes = 0
        self.status: int | None = None
        self.was_killed = False
        self.left = 0
        self._process = process
        self._mark = mark
        self._tasks = [asyncio.ensure_future(self._read()), asyncio.ensure_future(self._watch())]

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.status is None

    async def end(self) -> None:
        """Tell it to end, kill it if it does not within 5 s, and whatever it began."""
        if self.is_running:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TERM_S):
                    await asyncio.shield(self._tasks[1])
        if self.is_running:
            self.was_killed = True
            self._signal(signal.SIGKILL)
            await self._tasks[1]
        self.left = _kill_marked(self._mark)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._tasks[0]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.is_alone:
                self._process.send_signal(number)  # the rest of its namespace ends with it
            else:
                os.killpg(self._process.pid, number)

    async def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - it was started with a pipe
        while piece := await self._process.stdout.read(_READ_BYTES):
            self.output_bytes += len(piece)
            self.output = (self.output + piece)[-_OUTPUT_BYTES_MAX:]

    async def _watch(self) -> None:
        # `wait` of asyncio would go on until everybody who has inherited the pipe has closed it.
        while self._process.returncode is None:  # noqa: ASYNC110 - see above
            await asyncio.sleep(_LOOK_S)
        self.status = self._process.returncode


@asynccontextmanager
async def run_handler(lab: Lab, vm: str, command: Sequence[str], *, is_alone: bool = True) -> AsyncIterator[Handler]:
    """Start the handler of a VM; it and everything that it began has ended when the block has.

    Args:
        lab: Where it finds its endpoint.
        vm: Whose it is.
        command: With its arguments.
        is_alone: Give it a network of its own where that is possible.
    """
    mark = secrets.token_hex(16)
    handler = await _start_alone(lab, vm, command, mark) if is_alone else None
    if handler is None:
        handler = await _start_beside(lab, vm, command, mark)
    try:
        yield handler
    finally:
        await handler.end()


async def _start_alone(lab: Lab, vm: str, command: Sequence[str], mark: str) -> Handler | None:
    """In a network of its own; None where that cannot be had."""
    url = f"http://{ADDRESS[0]}"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "forewarn.testing.inside",
            str(theirs.fileno()),
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=_environment(url, vm, mark),
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        ours.settimeout(_START_S)
        _, descriptors, _, _ = await asyncio.to_thread(socket.recv_fds, ours, 64, 1)
    if not descriptors:
        status = await process.wait()  # it has nobody to whom it could have given the pipe
        if status == NO_NAMESPACE:
            return None
        msg = f"the handler's network ended with status {status}"
        raise RuntimeError(msg)
    listening = socket.socket(fileno=descriptors[0])
    listening.settimeout(0)
    await lab.backend.endpoint.listen([listening], vm)
    return Handler(process, url, mark, is_alone=True)


async def _start_beside(lab: Lab, vm: str, command: Sequence[str], mark: str) -> Handler:
    """On this machine's network; it has to go to the URL that the environment names."""
    url = await lab.url(vm)
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=_environment(url, vm, mark),
            start_new_session=True,
        )
    except OSError as error:
        words = f"import sys; print('cannot run {command[0]}: {error.strerror}'); sys.exit({NO_COMMAND})"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", words, stdout=asyncio.subprocess.PIPE, start_new_session=True
        )
    return Handler(process, url, mark, is_alone=False)


def _environment(url: str, vm: str, mark: str) -> dict[str, str]:
    return os.environ | {"FOREWARN_ENDPOINT": url, "FOREWARN_VM": vm, _MARK: mark, "PYTHONUNBUFFERED": "1"}


def _kill_marked(mark: str) -> int:
    """Kill every process that has inherited the mark, wherever it has gone; hands back how many there were."""
    wanted = f"{_MARK}={mark}".encode()
    count = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                count += 1
        except OSError:
            continue  # it has ended, or is somebody else's
    return count
