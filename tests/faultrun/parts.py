"""The processes of a run: started, killed, halted, and started again until they are ready."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

__all__ = ["Part"]

_READY_S = 30.0
_AGAIN_S = 0.3
_STARTS_MAX = 100


class Part:
    """One process of `forewarn`.

    Args:
        name: For people, and of its log.
        folder: Where its log is.
        arguments: Of the command.
        settings: Environment variables of it.

    Attributes:
        urls: What its line named when it became ready; empty while it is not.
        starts: How often it was started.
    """

    def __init__(self, name: str, folder: Path, arguments: Sequence[str], settings: Mapping[str, str]) -> None:
        self.name = name
        self.urls: list[str] = []
        self.starts = 0
        self._log = folder / f"{name}.log"
        self._command = [sys.executable, "-m", "forewarn", *arguments]
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("FOREWARN_")} | dict(settings)
        self._process: subprocess.Popen[str] | None = None

    def address(self, which: int) -> tuple[str, int] | None:
        """Host and port of the URL of that number; None while there is none."""
        if not self.urls:
            return None
        parts = urlsplit(self.urls[which])
        return str(parts.hostname), int(parts.port or 0)

    @property
    def log(self) -> str:
        """What it has logged."""
        return self._log.read_text() if self._log.exists() else ""

    async def start(self) -> None:
        """Start it, again and again until it is ready: its database may be away."""
        for _ in range(_STARTS_MAX):
            self.starts += 1
            with self._log.open("a") as log:
                self._process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
                    self._command, stdout=subprocess.PIPE, stderr=log, text=True, env=self._environment
                )
            line = await self._line(self._process)
            if line:
                self.urls = re.findall(r"https?://[^\s,]+", line)
                return
            self._end()
            await asyncio.sleep(_AGAIN_S)
        msg = f"{self.name} does not start: {self.log}"
        raise RuntimeError(msg)

    async def _line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        reading = asyncio.ensure_future(asyncio.to_thread(process.stdout.readline))
        try:
            return await asyncio.wait_for(asyncio.shield(reading), _READY_S)
        except TimeoutError:
            process.kill()
            return await reading and ""

    def kill(self) -> None:
        """As by kill -9."""
        self.urls = []
        self._end()

    def halt(self) -> None:
        """Until `go_on`."""
        self._send(signal.SIGSTOP)

    def go_on(self) -> None:
        """After `halt`; otherwise nothing happens."""
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
