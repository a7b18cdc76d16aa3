"""One replica leads."""

from __future__ import annotations

from forewarn.doctor.finding import Finding, fail, ok, skip, warn
from forewarn.doctor.situation import Situation

__all__ = ["check_leadership"]


def check_leadership(situation: Situation) -> Finding:
    """Check that a leader is known, and that it does not stand alone."""
    replicas = (situation.status or {})["replicas"]
    if replicas["role"] == "single":
        return skip("a service on SQLite has no replicas")
    if replicas["leader"] is None:
        advice = "Look into the logs of all replicas: each says why it does not lead, such as a clock that is off."
        return fail("no replica is the leader, so nothing that is due starts", advice)
    if replicas["count"] == 1:
        advice = "Start another replica, so that one can take over."
        return warn(f"{replicas['leader']} is the only replica", advice)
    return ok(f"{replicas['leader']} leads")
