"""The database's clock, by which replicas decide, in the time between two readings of it."""

from __future__ import annotations

from datetime import datetime, timedelta

from forewarn.clock import Clock, RealClock, uptime_s

__all__ = ["SharedClock"]


class SharedClock(RealClock):
    """A `Clock` that continues from the readings of the database's clock, at the pace of a monotonic clock.

    A deadline is in the database's time. If a replica waited for it by its machine's clock, and that clock were set
    ahead, the wait would end before anything is due, and the scheduler would ask the database again without a pause.

    Args:
        machine: Clock of this machine, shown until the first reading.
    """

    def __init__(self, machine: Clock) -> None:
        super().__init__()
        self._machine = machine
        # The database's time at second 0 of the monotonic clock. Transactions set it in their thread.
        self._start: datetime | None = None

    def observe(self, now: datetime, asked_s: float, answered_s: float) -> None:
        """Correct this clock by a reading of the database's clock.

        The database read its clock at an unknown moment between question and answer. So a slow answer says little, and
        this clock changes only if the reading excludes what it shows.

        Args:
            now: The database's time.
            asked_s: Uptime before the question.
            answered_s: Uptime after the answer.
        """
        earliest, latest = now - timedelta(seconds=answered_s), now - timedelta(seconds=asked_s)
        self._start = earliest if self._start is None else min(max(self._start, earliest), latest)

    def now(self) -> datetime:
        """Return the database's time, as far as it is known."""
        return self._machine.now() if self._start is None else self._start + timedelta(seconds=uptime_s())
