"""What an actuator owes.

It is asked to bring a started maintenance to its end, and answers how far it is and when to be asked again. It may be
asked any number of times, also again after a crash that lost its answer: the maintenance's id is the key under which a
repeated call must have no further effect (invariant 3 of the design). It keeps no timers of its own.
"""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from forewarn.core.model import Maintenance
from forewarn.core.progress import Progress

__all__ = ["Actuator", "Progress"]


class Actuator(Protocol):
    """Carries maintenances out."""

    async def act(self, maintenance: Maintenance, now: datetime) -> Progress:
        """Begin or continue a started maintenance; may be cancelled and repeated.

        Raises:
            ActuatorError: It could not be done now; the scheduler asks again, later and later.
        """
        ...
