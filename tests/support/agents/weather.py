"""What can go wrong between an agent and its surroundings, and how likely it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["CALM", "ROUGH", "Fault", "Weather"]


class Fault(StrEnum):
    """What becomes of one request."""

    REFUSED = "refused"
    LOST = "lost on the way there"
    UNHEARD = "carried out, and the answer lost"
    DENIED = "carried out, and answered with an error"
    REPEATED = "carried out twice"
    DELAYED = "carried out long after the client gave up"
    LATE = "answered late"
    GONE = "410"
    BUSY = "429"
    BROKEN = "500"
    AWAY = "503"
    EMPTY = "200 without a body"
    HALF = "200 with half a body"
    STALE = "200 with an older document"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Likelihoods of the moment.

    Attributes:
        request: That something becomes of a request that should not.
        step: That a hook fails, hangs or breaks.
        gossip: That a word between peers is lost.
        store: That a transaction of the service fails.
        actuator: That the hypervisor fails.
    """

    request: float = 0.0
    step: float = 0.0
    gossip: float = 0.0
    store: float = 0.0
    actuator: float = 0.0


CALM = Weather()
ROUGH = Weather(request=0.03, step=0.15, gossip=0.2, store=0.0, actuator=0.1)
