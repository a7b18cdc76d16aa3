"""The processes of a run: started, killed, halted, and started again until they are ready."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.faultrun.nursery import Child, Nursery

__all__ = ["Part"]

_READY_S = 60.0
_AGAIN_S = 0.3
_STARTS_MAX = 100


class Part:
    """One process of `forewarn`.

    Args:
        name: For people, and of its log.
        nursery: Makes it.
        folder: Where its log is.
        arguments: Of the command.
        settings: Environment variables of it.
        namespace: It is in; None: where the nursery is.
        clock: A file that says how far its clock is ahead; None: it is right.
        says_ready: Whether it prints a line when it is ready; else it counts as ready once it runs.

    Attributes:
        starts: How often it was started.
    """

    def __init__(
        self,
        name: str,
        nursery: Nursery,
        folder: Path,
        arguments: Sequence[str],
        settings: Mapping[str, str],
        namespace: str | None = None,
        clock: Path | None = None,
        *,
        says_ready: bool = True,
    ) -> None:
        self.name = name
        self.starts = 0
        self._nursery = nursery
        self._log = folder / f"{name}.log"
        self._arguments = arguments
        self._settings = settings
        self._namespace = namespace
        self._clock = clock
        self._says_ready = says_ready
        self._child: Child | None = None

    @property
    def log(self) -> str:
        """What it has logged."""
        return self._log.read_text() if self._log.exists() else ""

    async def start(self) -> None:
        """Start it, again and again until it is ready: its database may be away."""
        for _ in range(_STARTS_MAX):
            self.starts += 1
            if await self._begin():
                return
            self.kill()
            await asyncio.sleep(_AGAIN_S)
        raise RuntimeError(f"{self.name} does not start: {self.log}")

    async def _begin(self) -> bool:
        """Whether it said in time that it is ready."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        with open(reading, "rb") as said, open(writing, "wb") as stdout, self._log.open("a") as log:  # noqa: ASYNC230, PTH123 - pipes
            self._child = await self._nursery.fork(
                self._arguments, [stdout, log], settings=self._settings, namespace=self._namespace, clock=self._clock
            )
            stdout.close()
            if not self._says_ready:
                return True
            has_said = asyncio.Event()
            loop = asyncio.get_running_loop()
            loop.add_reader(reading, has_said.set)
            try:
                async with asyncio.timeout(_READY_S):
                    await has_said.wait()
                return bool(said.readline())
            except TimeoutError:
                return False
            finally:
                loop.remove_reader(reading)

    def kill(self) -> None:
        """As by kill -9."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def halt(self) -> None:
        """Until `go_on`."""
        if self._child is not None:
            self._child.send(signal.SIGSTOP)

    def go_on(self) -> None:
        """After `halt`; otherwise nothing happens."""
        if self._child is not None:
            self._child.send(signal.SIGCONT)
