"""Host endpoints are connected, and stay so."""

from __future__ import annotations

from datetime import timedelta

from forewarn.doctor.finding import Finding, ok, skip, warn
from forewarn.doctor.situation import Situation
from forewarn.util.duration import format_duration

__all__ = ["check_endpoints"]

_YOUNG_S = 60
_SETTLED_S = 600


def check_endpoints(situation: Situation) -> Finding:
    """Check the number and the age of the connections of host endpoints to the replica that answers."""
    status = situation.status or {}
    endpoints = status["endpoints"]
    count, oldest_s = endpoints["connected"], endpoints["oldest_s"]
    if count == 0:
        return skip("no host endpoint is connected to this replica")
    age = format_duration(timedelta(seconds=round(oldest_s)))
    if oldest_s < _YOUNG_S and status["replicas"]["up_s"] > _SETTLED_S:
        advice = "Look into the logs of the host endpoints: they connect again and again."
        return warn(f"all {count} connections are younger than a minute", advice)
    return ok(f"{count} connected to this replica, the first for {age}")
