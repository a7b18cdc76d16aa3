"""Problems because of which VMs are not answered: their causes with remedies, and their log."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import NamedTuple

import structlog

from forewarn.host.listening_socket import PATH_BYTES_MAX, ListenAddress

__all__ = ["ListenerProblem", "ProblemLog", "describe_os_error", "explain_error"]

_log = structlog.get_logger("forewarn.host")

_NAMES_TOLD_MAX = 5


class ListenerProblem(NamedTuple):
    """Problem because of which a VM is not answered.

    Attributes:
        vm: Name of the VM; empty for all.
        reason: Cause and remedy.
    """

    vm: str
    reason: str


_ADVICE_TCP = {
    errno.EACCES: "run as root or with CAP_NET_BIND_SERVICE",
    errno.EPERM: "run as root or with CAP_NET_RAW, which Linux before 5.7 requires to bind to an interface",
    errno.EADDRINUSE: "run 'ss -ltnp' to find the process that listens there",
    errno.EADDRNOTAVAIL: "add it to this host, for example with 'ip address add {host}/{bits} dev lo'",
    errno.EMFILE: "raise the limit on open files",
}
_ADVICE_UNIX = {
    errno.EACCES: "give this user write access to the folder",
    errno.EADDRINUSE: "another process listens on its socket: stop it or choose another folder",
    errno.ENOTSOCK: "remove the file at the path of its socket",
    errno.ENAMETOOLONG: f"a socket path has at most {PATH_BYTES_MAX} bytes: choose a shorter folder",
    errno.EMFILE: "raise the limit on open files",
}


def explain_error(place: ListenAddress, error: OSError) -> str:
    """Return the reason of an error, with a remedy; the same text for all VMs with the same problem."""
    number = error.errno or 0
    if place.path is not None:
        return f"{place.path.parent}: {describe_os_error(error)}; {_ADVICE_UNIX.get(number, 'check the folder')}"
    is_v6 = ":" in place.host
    where = f"[{place.host}]:{place.port}" if is_v6 else f"{place.host}:{place.port}"
    advice = _ADVICE_TCP.get(number, "check the address").format(host=place.host, bits=128 if is_v6 else 32)
    return f"{where}: {describe_os_error(error)}; {advice}"


def describe_os_error(error: OSError) -> str:
    """Return the reason of an error in lower case, as part of a message."""
    return (error.strerror or str(error)).lower()


class ProblemLog:
    """Log of problems. Checks run every few seconds, and a lasting problem must not fill the log."""

    def __init__(self) -> None:
        self._logged: set[ListenerProblem] = set()

    def write(self, problems: Iterable[ListenerProblem]) -> None:
        """Log one line per reason, with the VMs newly affected; `problems` are all that exist now."""
        current = dict.fromkeys(problems)
        new: dict[str, list[str]] = {}
        for vm, reason in current:
            if (vm, reason) not in self._logged:
                new.setdefault(reason, []).append(vm)
        self._logged = set(current)
        for reason, vms in new.items():
            shown = ", ".join(vm or "VMs" for vm in vms[:_NAMES_TOLD_MAX])
            rest = f" and {len(vms) - _NAMES_TOLD_MAX} more" if len(vms) > _NAMES_TOLD_MAX else ""
            _log.warning(f"cannot serve {shown}{rest}, retrying: {reason}")
