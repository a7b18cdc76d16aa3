"""The handler under test: a process that is started, watched, and ended with all its descendants.

A reboot of a VM ends its handler: `TrialHandler.power_off` kills the process, and `TrialHandler.power_on` starts the
command again.
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
from urllib.parse import urlsplit

from forewarn.testing.lab import Lab
from forewarn.testing.trial.network_namespace import ADDRESS, NO_COMMAND, NO_NAMESPACE
from forewarn.testing.trial.reaction_time import ProcessorWait
from forewarn.util.tasks import cancel_tasks

__all__ = ["TrialHandler"]

_OUTPUT_BYTES_MAX = 256 << 10
_READ_BYTES = 64 << 10
_START_S = 10.0
_TERM_S = 5.0
_LOOK_S = 0.02
_MARK = "FOREWARN_TRIAL"


class HandlerProcess:
    """One process of the handler, with its descendants.

    Attributes:
        has_own_network: True if it has its own network, with the endpoint at 169.254.169.254.
        output: End of its output, both streams.
        output_bytes: Total size of its output.
        status: Exit status; None while it runs.
        was_killed: True if it had to be killed because it ignored SIGTERM.
    """

    def __init__(self, process: asyncio.subprocess.Process, *, has_own_network: bool) -> None:
        self.has_own_network = has_own_network
        self.output = b""
        self.output_bytes = 0
        self.status: int | None = None
        self.was_killed = False
        self._process = process
        self._processor_wait = ProcessorWait()
        self._tasks = [asyncio.ensure_future(self._read_output()), asyncio.ensure_future(self._wait_for_exit())]

    @property
    def is_running(self) -> bool:
        """True until it has ended."""
        return self.status is None

    def measure_processor_wait(self) -> float:
        """Return the seconds that it and its descendants have waited for a processor since the last call."""
        return self._processor_wait.measure(self._process.pid)

    async def stop(self) -> None:
        """Send it SIGTERM, and kill it if it does not end within 5 s."""
        if self.is_running:
            self._send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TERM_S):
                    # Shielded: the time limit must not cancel the task that notes the exit status.
                    await asyncio.shield(self._tasks[1])
        if self.is_running:
            self.was_killed = True
            await self.kill()

    async def kill(self) -> None:
        """Kill it without SIGTERM first."""
        if self.is_running:
            self._send_signal(signal.SIGKILL)
            await self._tasks[1]

    async def read_rest_of_output(self) -> None:
        """Read the rest of its output, once it and its descendants have ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._tasks[0]
        await cancel_tasks(*self._tasks)

    def _send_signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.has_own_network:
                self._process.send_signal(number)  # the rest of its namespace ends with it
            else:
                os.killpg(self._process.pid, number)

    async def _read_output(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - started with a pipe
        while piece := await self._process.stdout.read(_READ_BYTES):
            self.output_bytes += len(piece)
            self.output = (self.output + piece)[-_OUTPUT_BYTES_MAX:]

    async def _wait_for_exit(self) -> None:
        # asyncio's `wait` returns only after every process that has inherited the pipe has closed it.
        while self._process.returncode is None:  # noqa: ASYNC110 - see above
            await asyncio.sleep(_LOOK_S)
        self.status = self._process.returncode


class TrialHandler:
    """The handler: one process while it is `running`, or one after another if its VM is rebooted.

    Args:
        wants_own_network: True to give it its own network where possible.
        environment: Variables in addition to those that every handler gets; ``{endpoint}`` is replaced by the URL of
            the endpoint, with its port.
        folder: Working directory; None for that of this process.

    Attributes:
        process: Its current process, or its last one.
        leftover_processes: Number of processes that it left behind and that had to be killed.
        reboots: Number of times that a reboot of its VM killed it.
    """

    def __init__(  # noqa: PLR0913 - the parts of a process
        self,
        lab: Lab,
        vm: str,
        command: Sequence[str],
        *,
        wants_own_network: bool,
        environment: Mapping[str, str],
        folder: Path | None,
    ) -> None:
        self.process: HandlerProcess
        self.leftover_processes = 0
        self.reboots = 0
        self._lab = lab
        self._vm = vm
        self._command = command
        self._wants_network = wants_own_network
        self._environment = environment
        self._folder = folder
        self._mark = secrets.token_hex(16)
        self._output = b""
        self._output_bytes = 0
        self._is_powered_off = False

    @property
    def is_running(self) -> bool:
        """True until its process ends, other than by a reboot of its VM."""
        return self._is_powered_off or self.process.is_running

    @property
    def output(self) -> bytes:
        """End of its output, both streams, across all reboots."""
        return (self._output + self.process.output)[-_OUTPUT_BYTES_MAX:]

    @property
    def output_bytes(self) -> int:
        """Total size of its output."""
        return self._output_bytes + self.process.output_bytes

    def measure_processor_wait(self) -> float:
        """Return the seconds that its threads have waited for a processor since the last call; 0 if unknown."""
        return self.process.measure_processor_wait() if self.process.is_running else 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start it; it and all its descendants have ended when the block has."""
        await self._start()
        try:
            yield
        finally:
            await self.process.stop()
            # After the handler's own end: processes that it takes down itself are not left behind.
            self.leftover_processes = _kill_marked(self._mark)
            await self.process.read_rest_of_output()

    async def _start(self) -> None:
        process = await self._start_in_own_network() if self._wants_network else None
        self.process = process or await self._start_on_host_network()

    async def power_off(self) -> None:
        """Kill it with all its descendants, as a reboot of its VM does; `power_on` starts it again."""
        self.reboots += 1
        self._is_powered_off = True
        await self.process.kill()
        _kill_marked(self._mark)  # before `read_rest_of_output`: descendants hold the output pipe open
        await self.process.read_rest_of_output()
        # Moved to the handler, and cleared in the process, or the next output would count it twice.
        self._output, self._output_bytes = self.output, self.output_bytes
        self.process.output, self.process.output_bytes = b"", 0

    async def power_on(self) -> None:
        """Start it again after `power_off`."""
        await self._start()
        self._is_powered_off = False

    async def _start_in_own_network(self) -> HandlerProcess | None:
        """Start a process in its own network; return None where that is impossible."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            process = await self._spawn(
                [sys.executable, "-m", "forewarn.testing.trial.network_namespace", str(theirs.fileno())],
                f"http://{ADDRESS[0]}",
                pass_fds=[theirs.fileno()],
            )
            theirs.close()  # so that recv_fds returns if the child ends early
            ours.settimeout(_START_S)
            # In a thread, because the loop also has to serve other handlers of this run.
            _, descriptors, _, _ = await asyncio.to_thread(socket.recv_fds, ours, 64, 1)
        if not descriptors:
            status = await process.wait()  # without descriptors there is no child that could hold the pipe open
            if status == NO_NAMESPACE:
                return None
            raise RuntimeError(f"cannot create the handler's network: its process exited with status {status}")
        listening = socket.socket(fileno=descriptors[0])
        listening.settimeout(0)
        await self._lab.backend.endpoint.listen([listening], self._vm)
        return HandlerProcess(process, has_own_network=True)

    async def _start_on_host_network(self) -> HandlerProcess:
        """Start a process on this machine's network; it has to use the URL in its environment."""
        try:
            process = await self._spawn([], await self._lab.open_endpoint(self._vm))
        except OSError as error:
            words = f"import sys; print('cannot run {self._command[0]}: {error.strerror}'); sys.exit({NO_COMMAND})"
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", words, stdout=asyncio.subprocess.PIPE, start_new_session=True
            )
        return HandlerProcess(process, has_own_network=False)

    async def _spawn(
        self, launcher: Sequence[str], url: str, pass_fds: Sequence[int] = ()
    ) -> asyncio.subprocess.Process:
        """Run the command by a launcher, or directly without one, with the URL of the endpoint in its environment."""
        # Unbuffered, or the output of a Python handler that is killed would be lost.
        own = {"FOREWARN_ENDPOINT": url, "FOREWARN_VM": self._vm, _MARK: self._mark, "PYTHONUNBUFFERED": "1"}
        endpoint = url if urlsplit(url).port else f"{url}:80"  # curl takes port 1080 for a proxy without a port
        said = {name: value.replace("{endpoint}", endpoint) for name, value in self._environment.items()}
        return await asyncio.create_subprocess_exec(
            *launcher,
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=self._folder,
            env=os.environ | own | said,
            pass_fds=pass_fds,
            # A separate process group: a signal to it reaches the children of the handler, but not the trial.
            start_new_session=True,
        )


def _kill_marked(mark: str) -> int:
    """Kill every process that has inherited the mark, wherever it has moved; return their number."""
    wanted = f"{_MARK}={mark}".encode()
    count = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # A daemon leaves its session and process group, but keeps the environment it was started with.
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                count += 1
        except OSError:
            continue  # it has ended, or belongs to another user
    return count
