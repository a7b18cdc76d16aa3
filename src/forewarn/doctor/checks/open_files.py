"""The service may open enough files for a connection of each VM."""

from __future__ import annotations

from forewarn.doctor.finding import Finding, ok, warn
from forewarn.doctor.situation import Situation

__all__ = ["check_open_files"]

_SPARE = 1024
"""Files for everything but connections of VMs."""


def check_open_files(situation: Situation) -> Finding:
    """Check the limit of open files of the service against the number of VMs."""
    status = situation.status or {}
    most, vms = status["open_files_max"], status["inventory"]["vms"]
    if most is None:
        return ok("the service may open any number of files")
    if most < vms + _SPARE:
        advice = "Raise LimitNOFILE of the service (ulimit -n), and connections_max with it."
        return warn(f"the service may open {most} files, and each of {vms} VMs may hold a connection", advice)
    return ok(f"the service may open {most} files, enough for {vms} VMs")
