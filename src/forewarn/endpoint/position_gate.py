"""Gate in a metadata process that shows VMs exactly the published updates."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from forewarn.endpoint import messages

__all__ = ["PositionGate"]


class PositionGate:
    """Messages of the service that have been received, and take effect once they are published.

    Args:
        published: View whose item 0 is the published position.
        apply: Lets a message take effect.
        confirm: Called with the position up to which all updates have been received.

    Attributes:
        published: As above.
        shown: Position up to which the updates have taken effect.
    """

    def __init__(
        self,
        published: memoryview,
        apply: Callable[[messages.FromService], None],
        confirm: Callable[[int], None],
    ) -> None:
        self.published = published
        self.shown = 0
        self._apply = apply
        self._confirm = confirm
        self._received = 0
        self._has_state = False
        self._begun: list[messages.FromService] = []
        self._waiting: deque[tuple[int, list[messages.FromService]]] = deque()
        self._held: list[Callable[[], None]] = []

    def add(self, message: messages.FromService) -> None:
        """Take a message from the service: let it take effect now, or once it is published."""
        match message:
            case messages.PositionReached():
                self._end_update(message.position)
            case messages.PositionPublished():
                pass
            case messages.InventoryPart() if not message.is_last and not self._waiting:
                self._apply(message)  # only prepares: nothing is shown before the last part
            case messages.DocumentUpdate() | messages.InventoryPart():
                if self._has_state:
                    self._begun.append(message)
                else:
                    self._apply(message)  # no VM is answered yet
            case messages.CallResult() | messages.SyncRequest():
                # The answer to an approval takes effect after the update that the approval caused.
                self._waiting.append((self._received, [message]))
            case _:
                self._apply(message)
        self.catch_up()

    def is_current(self) -> bool:
        """Return True if everything published has taken effect, as `catch_up`; quicker if nothing is new."""
        return self.shown >= self.published[0] or self.catch_up()

    def catch_up(self) -> bool:
        """Let everything that is published take effect; return False if some of it has not been received yet."""
        published = self.published[0]
        waiting = self._waiting
        while waiting and waiting[0][0] <= published:
            position, updates = waiting[0]
            for message in updates:
                self._apply(message)
            # Only now: an update that fails stays here, and fails again where it ends the process.
            del waiting[0]
            self.shown = position
        if self.shown < published:
            return False
        if self._held:
            held, self._held = self._held, []
            for resume in held:
                resume()
        return True

    def hold(self, resume: Callable[[], None]) -> None:
        """Have `resume` called once everything published has taken effect."""
        self._held.append(resume)

    def _end_update(self, position: int) -> None:
        self._received = position
        if self._has_state:
            self._waiting.append((position, self._begun))
            self._begun = []
        else:
            self._has_state = True
            self.shown = position
        self._confirm(position)
