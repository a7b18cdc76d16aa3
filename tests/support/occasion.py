"""A context for handlers in tests: it really runs commands, and remembers in memory."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from forewarn.agent.handlers import CommandResult
from forewarn.clock import VIRTUAL_START
from forewarn.errors import HookFailed
from forewarn.wire.document import Event

__all__ = ["Occurring", "an_event"]


def an_event(**members: Any) -> Event:  # noqa: ANN401 - members of an event
    """A Freeze of the VM ``db``, with other members where they are given."""
    given: dict[str, Any] = {
        "id": "A123BC45-1234-5678-AB90-ABCDEF123456",
        "type": "Freeze",
        "status": "Scheduled",
        "resources": ("db",),
        "not_before": datetime(2030, 1, 1, 0, 15, tzinfo=UTC),
        "source": "Platform",
        "duration_s": 9,
    }
    return Event(**(given | members))


class Occurring:
    """A `HandlerContext`.

    Attributes:
        now: Moves by what is paused.
        commands: What was run, in order.
        said: What was logged.
    """

    def __init__(self, event: Event | None = None, vm: str = "db", environment: dict[str, str] | None = None) -> None:
        self.event = event or an_event()
        self.vm = vm
        self.now = VIRTUAL_START
        self.memory: dict[str, Any] = {}
        self.commands: list[tuple[str, ...]] = []
        self.said: list[str] = []
        self._environment = environment

    async def remember(self, **facts: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
        self.memory = json.loads(json.dumps(self.memory | facts))

    async def run(
        self, *command: str, stdin: bytes = b"", timeout_s: float | None = None, is_checked: bool = True
    ) -> CommandResult:
        self.commands.append(command)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment,
            )
        except OSError as error:
            raise HookFailed(f"cannot run {command[0]}: {error.strerror}") from error
        try:
            async with asyncio.timeout(timeout_s or 60):
                output, errors = await process.communicate(stdin)
        except TimeoutError as error:
            process.kill()
            await process.wait()
            raise HookFailed(f"{command[0]} took longer than {timeout_s} s") from error
        ran = CommandResult(status=process.returncode or 0, output=output.decode(), errors=errors.decode())
        if is_checked and ran.status:
            raise HookFailed(f"{command[0]} ended with status {ran.status}: {ran.errors.strip()}")
        return ran

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.now += timedelta(seconds=seconds)

    def log(self, text: str) -> None:
        self.said.append(text)
