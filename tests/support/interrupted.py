"""Crashes for handlers: everything that a handler does may be cut off, and is then done once more."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from forewarn.agent.handlers import BuiltInHandler, CommandResult
from tests.support.occasion import Occurring

__all__ = ["Crash", "Fragile", "Fuse", "Staged", "crash_everywhere"]


class Crash(BaseException):
    """The agent was killed at this moment."""


class Fuse:
    """Blows at one moment.

    Args:
        lasts: How many moments pass before it does; None for ever.
    """

    def __init__(self, lasts: int | None = None) -> None:
        self._left = lasts

    def burn(self) -> None:
        """A moment at which a crash is possible."""
        if self._left is None:
            return
        if self._left == 0:
            raise Crash
        self._left -= 1


class Fragile(Occurring):
    """A handler context that may end before and after everything that it does.

    Args:
        fuse: Says when.
        memory: What was remembered before a crash.
    """

    def __init__(
        self,
        fuse: Fuse | None = None,
        memory: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        super().__init__(environment=environment)
        self.memory = memory or {}
        self.fuse = fuse or Fuse()

    async def remember(self, **facts: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
        self.fuse.burn()
        await super().remember(**facts)
        self.fuse.burn()

    async def run(
        self, *command: str, stdin: bytes = b"", timeout_s: float | None = None, is_checked: bool = True
    ) -> CommandResult:
        self.fuse.burn()
        ran = await super().run(*command, stdin=stdin, timeout_s=timeout_s, is_checked=is_checked)
        self.fuse.burn()
        return ran

    async def pause(self, seconds: float) -> None:
        self.fuse.burn()
        await super().pause(seconds)
        self.fuse.burn()


class Staged(Fragile):
    """A handler context without processes and without waiting.

    Args:
        play: Stands in for commands.

    Attributes:
        paused_s: How long it was told to wait, each time.
    """

    def __init__(
        self,
        play: Callable[[Sequence[str]], CommandResult],
        fuse: Fuse | None = None,
        memory: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(fuse, memory)
        self.paused_s: list[float] = []
        self._play = play

    async def run(
        self, *command: str, stdin: bytes = b"", timeout_s: float | None = None, is_checked: bool = True
    ) -> CommandResult:
        assert not is_checked, "the stage does not check"
        self.fuse.burn()
        self.commands.append(command)
        ran = self._play(command)
        self.fuse.burn()
        return ran

    async def pause(self, seconds: float) -> None:
        self.fuse.burn()
        self.paused_s.append(seconds)
        self.fuse.burn()


async def crash_everywhere(
    handler: BuiltInHandler,
    occasion: Callable[[Fuse, dict[str, Any]], Fragile],
    state: Callable[[], object],
    prepared: Callable[[], bool],
) -> int:
    """Cut off `prepare`, and then `undo`, at every moment; run it again; end where it began.

    Args:
        handler: Whose methods are called.
        occasion: Makes one with that fuse and what is left of memory.
        state: Of what the handler changes.
        prepared: Whether it is out of service.

    Returns:
        How many moments there were.
    """
    beginning = state()
    moments = 0
    for method in ("prepare", "undo"):
        for lasts in itertools.count():
            calm = occasion(Fuse(), {})
            if method == "undo":
                await handler.prepare(calm)
            cut = occasion(Fuse(lasts), calm.memory)
            try:
                await getattr(handler, method)(cut)
            except Crash:
                is_crashed = True
            else:
                is_crashed = False
            after = occasion(Fuse(), cut.memory)
            if method == "prepare":
                await handler.prepare(after)
                assert prepared()
            await handler.undo(after)
            assert state() == beginning, f"after a crash in {method} at moment {lasts}"
            if not is_crashed:
                moments += lasts
                break
    return moments
