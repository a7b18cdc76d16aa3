"""What an actuator owes: it carries maintenances out, each under its id as the key.

The scheduler asks again and again until a maintenance is complete, also after a crash that lost an answer, and perhaps
from another machine. So before it tells an actuator to execute, it finds out whether that was done already:

- An actuator that can be observed looks at what it works on. `observe` says None while nothing was begun, and only then
  `execute` is called.
- One that cannot (a command, a webhook) is told to execute once only: that it was told is committed before, in
  `Maintenance.begun_at`. From then on it is observed; if it knows nothing of that id, it says so by `ActuatorError`.

It keeps no timers of its own. `tests/conformance/test_actuator.py` runs the same duties over every implementation.
"""

from __future__ import annotations

import math
from contextvars import ContextVar
from datetime import datetime
from typing import Protocol

from forewarn.core.model import Maintenance
from forewarn.core.progress import Progress

__all__ = ["BEGIN_BEFORE_S", "TRACEPARENT", "Actuator", "Progress"]

BEGIN_BEFORE_S: ContextVar[float] = ContextVar("BEGIN_BEFORE_S", default=math.inf)
"""Uptime (`clock.uptime_s`) from which on `execute` may begin nothing: by then another replica may have begun it.

A process that is halted between its last look at its lease and what it begins finds out too late by itself. What it
has begun with looks once more.
"""

TRACEPARENT: ContextVar[str] = ContextVar("TRACEPARENT", default="")
"""The W3C ``traceparent`` of the call under way, to be handed on to whoever is asked; ``""``: nothing is traced."""


class Actuator(Protocol):
    """Carries maintenances out. Every call may be cancelled, and repeated."""

    @property
    def is_observable(self) -> bool:
        """Whether `observe` can tell, on whatever machine it is called, that nothing was begun under an id."""
        ...

    def plan(self, maintenance: Maintenance) -> tuple[str, ...]:
        """What `execute` would do, a line each, for people; does nothing."""
        ...

    async def check(self) -> None:
        """See whether it could carry anything out now.

        Raises:
            ActuatorError: It could not; with what is missing.
        """
        ...

    async def execute(self, maintenance: Maintenance, now: datetime) -> Progress:
        """Begin a started maintenance that was not begun before.

        Raises:
            ActuatorError: Nothing was begun; the scheduler tells it again, later and later.
        """
        ...

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress | None:
        """How far what was begun under that id is; None: nothing was.

        Raises:
            ActuationFailed: It failed for good; the maintenance has failed.
            ActuatorBusy: What was begun did nothing and has ended; the scheduler has it executed again, later and
                later, as often as other calls that fail.
            ActuatorError: It cannot be seen now; the scheduler asks again, later and later.
        """
        ...

    async def abort(self, maintenance: Maintenance, now: datetime) -> None:
        """Stop what was begun under that id, as far as that is possible; nothing happens where nothing was begun.

        Called when an operator completes a started maintenance by hand, and when it has failed.
        """
        ...

    async def close(self) -> None:
        """Let go of connections and processes that may end; what was begun goes on."""
        ...
