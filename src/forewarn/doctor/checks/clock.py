"""Clocks: the service trusts its own, and all agree."""

from __future__ import annotations

import shutil
import subprocess
from datetime import datetime

from forewarn.doctor.finding import Finding, fail, ok, skip, warn
from forewarn.doctor.situation import Situation

__all__ = ["check_machine_clock", "check_ntp", "check_service_clock"]

_SKEW_MAX_S = 1.0
"""Difference from the database's clock at which a replica cannot lead."""

_SKEW_WARN_S = 0.25
_DIFFERENCE_MAX_S = 5.0
"""Difference between two machines, of which the time of an answer may be a part."""

_TIMEOUT_S = 10
_NTP_ADVICE = "Let NTP set the clocks of all machines, for example with 'timedatectl set-ntp true'."


def check_service_clock(situation: Situation) -> Finding:
    """Check that the clock of the service has not jumped, and agrees with the database's."""
    status = situation.status or {}
    jump_s, skew_s = status["clock"]["jump_s"], status["skew_s"]
    if jump_s is not None:
        advice = "Check the time, then run 'forewarn clock confirm'; until then, nothing that is due starts."
        return fail(f"the clock of the service jumped by {jump_s:.0f} s", advice)
    if abs(skew_s) > _SKEW_MAX_S:
        return fail(f"the clock of the replica is {skew_s:+.1f} s from the database's: it cannot lead", _NTP_ADVICE)
    if abs(skew_s) > _SKEW_WARN_S:
        return warn(f"the clock of the replica is {skew_s:+.1f} s from the database's", _NTP_ADVICE)
    return ok("the clock of the service is trusted")


def check_machine_clock(situation: Situation) -> Finding:
    """Check that the clock of this machine agrees with that of the service."""
    status = situation.status or {}
    if status["clock"]["clock"] == "virtual":
        return skip("the service has a virtual clock")
    apart_s = (situation.now - datetime.fromisoformat(status["now"])).total_seconds()
    if abs(apart_s) > _DIFFERENCE_MAX_S:
        return warn(f"the clock of this machine is {apart_s:+.0f} s from that of the service", _NTP_ADVICE)
    return ok("the clock of this machine agrees with that of the service")


def check_ntp(_situation: Situation) -> Finding:
    """Check that the clock of this machine is set by NTP, where systemd knows."""
    timedatectl = shutil.which("timedatectl")
    if timedatectl is None:
        return skip("the command timedatectl is not installed, so the state of NTP is not known")
    command = [timedatectl, "show", "--property=NTPSynchronized", "--value"]
    try:
        # The path of the program is absolute, and no shell is involved.
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return skip("timedatectl does not answer, so the state of NTP is not known")
    if done.stdout.strip() == "yes":
        return ok("NTP sets the clock of this machine")
    return warn("the clock of this machine is not synchronized by NTP", _NTP_ADVICE)
