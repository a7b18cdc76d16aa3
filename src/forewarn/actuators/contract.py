"""The contract of actuators: an actuator carries maintenances out, each under its id as the key.

The scheduler asks repeatedly until a maintenance is complete, also after a crash that lost an answer, and possibly from
another machine. So before it calls `execute`, it finds out if the maintenance was already begun:

- An observable actuator inspects its target. `observe` returns None while nothing was begun, and only then `execute` is
  called.
- For any other, such as a command that cannot be observed, `execute` is called only once: the call is committed before,
  in `Maintenance.begun_at`. After that the actuator is observed; for an unknown id it raises `ActuatorError`.

An actuator keeps no timers. `tests/conformance/test_actuator.py` runs the same suite over every implementation.
"""

from __future__ import annotations

import math
from contextvars import ContextVar
from datetime import datetime
from typing import Protocol

from forewarn.core.maintenance.actuator_result import Progress
from forewarn.core.model import Maintenance

__all__ = ["BEGIN_BEFORE_S", "TRACEPARENT", "Actuator", "Progress"]

BEGIN_BEFORE_S: ContextVar[float] = ContextVar("BEGIN_BEFORE_S", default=math.inf)
"""Uptime (`clock.uptime_s`) from which `execute` must not begin anything: another replica may have begun it.

A process that is suspended between its last lease check and the first step cannot notice that in time. So the step
itself checks once more.
"""

TRACEPARENT: ContextVar[str] = ContextVar("TRACEPARENT", default="")
"""W3C ``traceparent`` of the current call, to be sent to the other side; ``""`` if nothing is traced."""


class Actuator(Protocol):
    """Carries maintenances out. Every call may be cancelled and repeated."""

    @property
    def is_observable(self) -> bool:
        """True if `observe`, on any machine, can determine that nothing was begun under an id."""

    def plan(self, maintenance: Maintenance) -> tuple[str, ...]:
        """Return what `execute` would do, one line per action, for people; does nothing."""

    async def check(self) -> None:
        """Check that maintenances could be carried out now.

        Raises:
            ActuatorError: They could not; the message names what is missing.
        """

    async def execute(self, maintenance: Maintenance, now: datetime) -> Progress:
        """Begin a started maintenance that was not begun before.

        Raises:
            ActuatorError: Nothing was begun; the scheduler retries with backoff.
        """

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress | None:
        """Return the progress of what was begun under that id; None if nothing was.

        Raises:
            ActuationFailed: It failed permanently, and so did the maintenance.
            ActuatorBusy: It ended without having done anything; the scheduler executes it again with backoff, as often
                as other failing calls.
            ActuatorError: The progress is unknown now; the scheduler retries with backoff.
        """

    async def abort(self, maintenance: Maintenance, now: datetime) -> None:
        """Stop what was begun under that id, as far as possible; do nothing if nothing was begun.

        Called when an operator completes a started maintenance by hand, and when it has failed.
        """

    async def close(self) -> None:
        """Release connections and processes that may end; what was begun goes on."""
