"""The service manager's side: readiness, the watchdog, a line of status, in systemd's protocol. Nothing elsewhere."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Mapping

__all__ = ["Supervisor"]

_US_PER_S = 1_000_000


class Supervisor:
    """Tells systemd how the process is.

    Args:
        environment: Where systemd says whether it listens.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        own = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        interval = environment.get("WATCHDOG_USEC", "")
        self._watchdog_us = int(interval) if own and interval.isdecimal() else 0

    @property
    def watchdog_s(self) -> float | None:
        """How often a sign of life is wanted: twice in the time after which we count as dead; None: never."""
        return self._watchdog_us / _US_PER_S / 2 if self._watchdog_us and self._address else None

    def ready(self) -> None:
        """We have started."""
        self._tell("READY=1")

    def stopping(self) -> None:
        """We are about to end."""
        self._tell("STOPPING=1")

    def alive(self) -> None:
        """We are not stuck."""
        self._tell("WATCHDOG=1")

    def status(self, text: str) -> None:
        """What `systemctl status` shows."""
        self._tell(f"STATUS={' '.join(text.split())}")

    def _tell(self, text: str) -> None:
        """Send one datagram; a service manager that does not take it is not our concern."""
        if sys.platform != "win32" and self._address:
            address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)  # noqa: FBT003 - the signature is the socket's
                sock.sendto(text.encode(), address)
