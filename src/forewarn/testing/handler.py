"""The handler under test: a process that is started, watched, and ended with everything that it began.

A VM that is rebooted takes its handler with it: `Handler.power_off` kills the process, and `Handler.power_on` starts
the command again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from forewarn.testing.inside import ADDRESS, NO_COMMAND, NO_NAMESPACE
from forewarn.testing.lab import Lab

__all__ = ["Handler", "run_handler"]

_OUTPUT_BYTES_MAX = 256 << 10
_READ_BYTES = 64 << 10
_START_S = 10.0
_TERM_S = 5.0
_LOOK_S = 0.02
_MARK = "FOREWARN_TRIAL"


class Process:
    """One process of the handler, with everything that it began.

    Attributes:
        is_alone: Whether it has a network of its own, with the endpoint at 169.254.169.254.
        output: The end of what it printed, on both streams.
        output_bytes: How much it printed in all.
        status: Its exit status; None while it runs.
        was_killed: Whether it had to be killed, since it did not end when it was told to.
    """

    def __init__(self, process: asyncio.subprocess.Process, *, is_alone: bool) -> None:
        self.is_alone = is_alone
        self.output = b""
        self.output_bytes = 0
        self.status: int | None = None
        self.was_killed = False
        self._process = process
        self._tasks = [asyncio.ensure_future(self._read()), asyncio.ensure_future(self._watch())]

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.status is None

    async def stop(self) -> None:
        """Tell it to end, and kill it if it does not within 5 s."""
        if self.is_running:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TERM_S):
                    await asyncio.shield(self._tasks[1])
        if self.is_running:
            self.was_killed = True
            await self.kill()

    async def kill(self) -> None:
        """End it without a word."""
        if self.is_running:
            self._signal(signal.SIGKILL)
            await self._tasks[1]

    async def finish(self) -> None:
        """Read what is left of its output; it and whatever it began have ended."""
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


class Handler:
    """A handler that runs: one process after the other, if its VM is rebooted.

    Args:
        lab: Where it finds its endpoint; running.
        vm: Whose it is.
        command: With its arguments.
        is_alone: Give it a network of its own where that is possible.
        environment: Variables that it finds besides those that everybody has; ``{endpoint}`` stands for the URL of the
            endpoint, with its port.
        folder: Where it runs; None: where this process does.

    Attributes:
        left: How many processes it left behind, that had to be killed.
        reboots: How often it was killed by a reboot of its VM.
    """

    def __init__(  # noqa: PLR0913 - what a process is made of
        self,
        lab: Lab,
        vm: str,
        command: Sequence[str],
        *,
        is_alone: bool,
        environment: Mapping[str, str],
        folder: Path | None,
    ) -> None:
        self.left = 0
        self.reboots = 0
        self._lab = lab
        self._vm = vm
        self._command = command
        self._wants_network = is_alone
        self._environment = environment
        self._folder = folder
        self._mark = secrets.token_hex(16)
        self._output = b""
        self._output_bytes = 0
        self._is_off = False
        self._process: Process

    @property
    def is_running(self) -> bool:
        """Whether it has not ended by itself."""
        return self._is_off or self._process.is_running

    @property
    def is_alone(self) -> bool:
        """Whether it has a network of its own, with the endpoint at 169.254.169.254."""
        return self._process.is_alone

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.status

    @property
    def was_killed(self) -> bool:
        """Whether it had to be killed, since it did not end when it was told to."""
        return self._process.was_killed

    @property
    def output(self) -> bytes:
        """The end of what it printed, on both streams, through all reboots."""
        return (self._output + self._process.output)[-_OUTPUT_BYTES_MAX:]

    @property
    def output_bytes(self) -> int:
        """How much it printed in all."""
        return self._output_bytes + self._process.output_bytes

    async def start(self) -> None:
        """Start its process."""
        process = await self._start_alone() if self._wants_network else None
        self._process = process or await self._start_beside()

    async def power_off(self) -> None:
        """Kill it with whatever it began, as the reboot of its VM does; `power_on` starts it again."""
        self.reboots += 1
        self._is_off = True
        await self._process.kill()
        _kill_marked(self._mark)
        await self._process.finish()
        self._output, self._output_bytes = self.output, self.output_bytes
        self._process.output, self._process.output_bytes = b"", 0

    async def power_on(self) -> None:
        """Start it again."""
        await self.start()
        self._is_off = False

    async def end(self) -> None:
        """Tell it to end, kill it if it does not within 5 s, and whatever it began."""
        await self._process.stop()
        self.left = _kill_marked(self._mark)
        await self._process.finish()

    async def _start_alone(self) -> Process | None:
        """In a network of its own; None where that cannot be had."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "forewarn.testing.inside",
                str(theirs.fileno()),
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                cwd=self._folder,
                env=self._variables(f"http://{ADDRESS[0]}"),
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
        await self._lab.backend.endpoint.listen([listening], self._vm)
        return Process(process, is_alone=True)

    async def _start_beside(self) -> Process:
        """On this machine's network; it has to go to the URL that the environment names."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                cwd=self._folder,
                env=self._variables(await self._lab.url(self._vm)),
                start_new_session=True,
            )
        except OSError as error:
            words = f"import sys; print('cannot run {self._command[0]}: {error.strerror}'); sys.exit({NO_COMMAND})"
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", words, stdout=asyncio.subprocess.PIPE, start_new_session=True
            )
        return Process(process, is_alone=False)

    def _variables(self, url: str) -> dict[str, str]:
        """The environment of a process that finds the endpoint under that URL."""
        own = {"FOREWARN_ENDPOINT": url, "FOREWARN_VM": self._vm, _MARK: self._mark, "PYTHONUNBUFFERED": "1"}
        endpoint = url if urlsplit(url).port else f"{url}:80"  # curl asks a proxy without a port at 1080
        said = {name: value.replace("{endpoint}", endpoint) for name, value in self._environment.items()}
        return os.environ | own | said


@asynccontextmanager
async def run_handler(  # noqa: PLR0913 - as of `Handler`
    lab: Lab,
    vm: str,
    command: Sequence[str],
    *,
    is_alone: bool = True,
    environment: Mapping[str, str] = MappingProxyType({}),
    folder: Path | None = None,
) -> AsyncIterator[Handler]:
    """Start the handler of a VM; it and everything that it began has ended when the block has.

    Args:
        lab: Where it finds its endpoint.
        vm: Whose it is.
        command: With its arguments.
        is_alone: Give it a network of its own where that is possible.
        environment: See `Handler`.
        folder: Where it runs; None: where this process does.
    """
    handler = Handler(lab, vm, command, is_alone=is_alone, environment=environment, folder=folder)
    await handler.start()
    try:
        yield handler
    finally:
        await handler.end()


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
