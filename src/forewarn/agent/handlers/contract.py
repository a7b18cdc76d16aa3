"""What a built-in handler promises, and what it is given.

A handler is a frozen struct: its fields are the settings of its table in the configuration. It takes something out of
service and puts it back. What it finds out before it acts (was the node cordoned already?) it remembers first, so that
a crash in between cannot make it forget: `undo` puts back what `prepare` changed, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import msgspec

from forewarn.agent.codec import Span
from forewarn.wire.document import Event

__all__ = ["Handler", "Occasion", "Ran"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What became of a command."""

    status: int
    output: str
    errors: str


class Occasion(Protocol):
    """The event about which a handler is called, and its hands."""

    @property
    def event(self) -> Event:
        """As it was seen last."""
        ...

    @property
    def vm(self) -> str:
        """This VM's name."""
        ...

    @property
    def now(self) -> datetime:
        """The present moment, aware, UTC."""
        ...

    @property
    def memory(self) -> dict[str, Any]:
        """What this handler has remembered about this event; empty when it has not prepared anything."""
        ...

    async def remember(self, **facts: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
        """Add to `memory`, on disk when this returns."""
        ...

    async def run(
        self, *command: str, stdin: bytes = b"", timeout_s: float | None = None, is_checked: bool = True
    ) -> Ran:
        """Run a command without a shell; it is ended when the step is stopped or its time is over.

        Raises:
            HookFailed: It cannot be started, took too long, or, when checked, ended with another status than 0.
        """
        ...

    async def pause(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def log(self, text: str) -> None:
        """Say something that is worth a line in the log."""
        ...


class Handler(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="use"):
    """Takes something out of service, and puts it back. Every method may be repeated.

    Attributes:
        timeout: For one call of a method.
    """

    timeout: Span = Span(minutes=5)

    @property
    def name(self) -> str:
        """What stands in ``use``."""
        return str(self.__struct_config__.tag)

    async def prepare(self, occasion: Occasion) -> None:
        """Take it out of service.

        Raises:
            HookFailed: It did not work.
        """
        raise NotImplementedError

    async def started(self, occasion: Occasion) -> None:
        """Note that the impact may happen at any moment; most handlers have nothing to do."""

    async def undo(self, occasion: Occasion) -> None:
        """Put back what `prepare` changed; nothing when `memory` is empty.

        Raises:
            HookFailed: It did not work.
        """
        raise NotImplementedError

    def explain(self) -> Sequence[str]:
        """What `prepare` does, in words, for `forewarn agent check`."""
        raise NotImplementedError
