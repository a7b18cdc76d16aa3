"""Decision about how far updates are published, when several metadata processes show them.

An update is published once every process has received it, or once the time limit for that is over. A process that is
late by then makes its callers wait until it has caught up, so the order of what VMs see never depends on the limit.
"""

from __future__ import annotations

__all__ = ["Publication"]

_ON_THE_WAY_MAX = 100
"""Number of updates by which a late process may still be behind when it is waited for again.

While updates come without a pause, some of them are always on their way. These take milliseconds.
"""


class Publication:
    """Positions of the updates: queued, received by each process, and published.

    Attributes:
        queued: Position of the newest update.
        published: Position up to which VMs are shown updates; it never goes back.
        late: Numbers of the processes that are not waited for until they have caught up.
    """

    def __init__(self) -> None:
        # Not from 0, so that the state at the start has a position, too.
        self.queued = 1
        self.published = 1
        self.late: set[int] = set()
        self._received: dict[int, int] = {}

    def queue(self) -> int:
        """Return the position of a new update."""
        self.queued += 1
        self._publish_received()
        return self.queued

    def join(self, process: int, position: int) -> None:
        """Wait for this process from now on; it has received the updates up to `position`."""
        # Positions come from the process, which may have been taken over: none lies beyond what was queued.
        self._received[process] = min(position, self.queued)
        self._publish_received()

    def leave(self, process: int) -> None:
        """Wait for this process no longer."""
        self._received.pop(process, None)
        self.late.discard(process)
        self._publish_received()

    def confirm(self, process: int, position: int) -> None:
        """Note that this process has received the updates up to `position`."""
        if process not in self._received:
            return
        self._received[process] = min(position, self.queued)
        if position >= self.published - _ON_THE_WAY_MAX:
            self.late.discard(process)
        self._publish_received()

    def end_wait(self, position: int) -> list[int]:
        """Return the processes that have not received `position`, and wait for them no longer."""
        found = [each for each, received in self._received.items() if received < position and each not in self.late]
        self.late.update(found)
        self._publish_received()
        return found

    def _publish_received(self) -> None:
        awaited = (received for process, received in self._received.items() if process not in self.late)
        self.published = max(self.published, min(awaited, default=self.queued))
