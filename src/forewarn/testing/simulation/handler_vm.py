"""A VM with a handler that is under test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from forewarn.agent.rule import EventStep
from forewarn.testing.simulation.vm import SimulatedVm

__all__ = ["Guest", "Handler", "HandlerVm"]


class Guest:
    """Access of a handler to its VM.

    The VM may be killed at any ``await``; when it runs again, the handler is started from the beginning. Its endpoint
    has the usual address, ``http://169.254.169.254``.
    """

    def __init__(self, vm: HandlerVm) -> None:
        self._vm = vm

    @property
    def name(self) -> str:
        """Name of the VM, as in ``Resources``."""
        return self._vm.name

    def read_state(self) -> bytes:
        """Return what `write_state` wrote last, also before a restart; ``b""`` at first."""
        return self._vm.disk

    def write_state(self, data: bytes) -> None:
        """Write the only file of the VM, atomically and durably.

        Raises:
            OSError: The disk is full; the file is as before.
        """
        self._vm.write(data)

    async def prepare(self, event_id: str) -> None:
        """Prepare for an event: takes up to 45 s.

        Raises:
            HookFailed: It has failed, possibly after 15 min.
        """
        await self._vm.prepare_for(event_id)

    async def recover(self, event_id: str) -> None:
        """Undo a preparation: takes up to 45 s.

        Raises:
            HookFailed: It has failed, possibly after 15 min; call it again.
        """
        await self._vm.recover_from(event_id)


Handler = Callable[[Guest], Awaitable[None]]
"""A handler: a coroutine function that runs as long as its VM."""


class HandlerVm(SimulatedVm):
    """A VM in which a `Handler` runs."""

    def configure(self, handler: Handler) -> None:
        """Set the handler; before the first start."""
        self._handler = handler
        self._prepared: dict[str, None] = {}

    @property
    def is_at_rest(self) -> bool:
        """True if the handler runs and has undone each preparation."""
        return self.is_running and not self._prepared

    async def run(self) -> None:
        """Run the handler.

        Raises:
            RuntimeError: The handler has returned.
        """
        await self._handler(Guest(self))
        raise RuntimeError("the handler has returned")

    async def prepare_for(self, event_id: str) -> None:
        """Prepare; see `Guest.prepare`."""
        await self.run_step(EventStep.PREPARE, event_id)
        self._prepared[event_id] = None

    async def recover_from(self, event_id: str) -> None:
        """Undo a preparation; see `Guest.recover`."""
        await self.run_step(EventStep.RECOVER, event_id)
        self._prepared.pop(event_id, None)
