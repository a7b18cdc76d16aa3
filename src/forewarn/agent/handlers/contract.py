"""The contract between the agent and its built-in handlers.

A handler is a frozen struct: its fields are the settings of its table in the configuration. It takes something out of
service and puts it back. Before it acts, it remembers the state that it finds (was the node cordoned already?), so that
a crash in between cannot lose it: `undo` puts back what `prepare` changed, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import msgspec

from forewarn.agent.codec import Duration
from forewarn.wire.document import Event

__all__ = ["BuiltInHandler", "CommandResult", "HandlerContext"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """Result of a command."""

    status: int
    output: str
    errors: str


class HandlerContext(Protocol):
    """The event for which a handler is called, and the operations that the handler may use."""

    @property
    def event(self) -> Event:
        """The event as last seen."""

    @property
    def vm(self) -> str:
        """This VM's name."""

    @property
    def now(self) -> datetime:
        """Current time, aware, UTC."""

    @property
    def memory(self) -> dict[str, Any]:
        """Facts that this handler has remembered about this event; empty if it has not prepared anything."""

    async def remember(self, **facts: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
        """Add to `memory`; it is on disk when this returns."""

    async def run(
        self, *command: str, stdin: bytes = b"", timeout_s: float | None = None, is_checked: bool = True
    ) -> CommandResult:
        """Run a command without a shell; it is ended when the step is stopped or its time is over.

        Raises:
            HookFailed: It cannot be started, takes too long, or, if checked, ends with a status other than 0.
        """

    async def pause(self, seconds: float) -> None:
        """Wait."""

    def log(self, text: str) -> None:
        """Write a line to the log."""


class BuiltInHandler(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="use"):
    """Base of the handlers: takes something out of service, and puts it back. Every method may be repeated.

    Attributes:
        timeout: Time limit for one call of a method.
    """

    timeout: Duration = Duration(minutes=5)

    @property
    def name(self) -> str:
        """Name of the handler, the value of ``use``."""
        return str(self.__struct_config__.tag)

    async def prepare(self, context: HandlerContext) -> None:
        """Take it out of service.

        Raises:
            HookFailed: It did not work.
        """
        raise NotImplementedError

    async def react_to_start(self, context: HandlerContext) -> None:
        """React to the start of the event: the impact may happen at any moment; most handlers have nothing to do."""

    async def undo(self, context: HandlerContext) -> None:
        """Put back what `prepare` changed; do nothing if `memory` is empty.

        Raises:
            HookFailed: It did not work.
        """
        raise NotImplementedError

    def describe_actions(self) -> Sequence[str]:
        """Describe what `prepare` does, in words, for `forewarn agent check`."""
        raise NotImplementedError
