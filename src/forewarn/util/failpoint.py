"""Points in the code at which a crash or a halt is worth most; the simulation strikes there.

Reaching a point costs a comparison unless something listens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

__all__ = ["FailPoint", "listen_to_failpoints", "reach_failpoint"]


class FailPoint(StrEnum):
    """All points, in the order in which a maintenance meets them."""

    LEASE_TAKEN = "lease-taken"
    """A replica has become the leader, and nothing knows of it yet."""
    COMMITTED = "committed"
    """A replica has committed a change and not published it."""
    REMOTE_CHANGES_READ = "remote-changes-read"
    """A replica has read what others have committed, and not published it."""
    STATE_SAVED = "state-saved"
    """A host endpoint has written an update to its disk, and not shown it."""
    STEP_RECORDED = "step-recorded"
    """An agent has written to its disk what it does next, and has not begun it."""
    STEP_ENDED = "step-ended"
    """A step of an agent has ended, and its end is not on the disk."""
    APPROVAL_SENT = "approval-sent"
    """An agent has the answer to its approval, and has not recorded it."""
    APPROVAL_FORWARDED = "approval-forwarded"
    """A host endpoint has the control plane's answer to an approval, and has not passed it on."""
    BEFORE_EXECUTE = "before-execute"
    """The leader has decided to carry out a maintenance, and has not called the actuator."""
    EXECUTED = "executed"
    """The actuator has answered, and nothing of that is recorded."""
    NOTIFIED = "notified"
    """A receiver has accepted a notification, and that is not recorded."""


_listener: Callable[[FailPoint], None] | None = None


def reach_failpoint(point: FailPoint) -> None:
    """Say that the caller is at this point; nothing happens unless something listens."""
    if _listener is not None:
        _listener(point)


@contextmanager
def listen_to_failpoints(listener: Callable[[FailPoint], None]) -> Iterator[None]:
    """Call a function for each point that is reached while the block runs; one listener at a time."""
    global _listener  # noqa: PLW0603 - an argument would have to pass through everything
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before
