"""The service manager's side: readiness, the watchdog, a line of status, in systemd's protocol. Nothing elsewhere."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import MutableMapping

__all__ = ["Supervisor"]

_US_PER_S = 1_000_000
_PATIENCE_S = 2.0
"""How long the two words that must arrive wait for room: without the first, systemd takes the start for failed."""


class Supervisor:
    """Tells systemd how the process is.

    Args:
        environment: Where systemd says whether it listens. What it says is taken out: it is not meant for hooks, which
            could be services themselves and believe that somebody waits for their word.
    """

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        self._address = environment.pop("NOTIFY_SOCKET", "")
        own = environment.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        interval = environment.pop("WATCHDOG_USEC", "")
        self._watchdog_us = int(interval) if own and interval.isdecimal() else 0
        self._status = ""

    @property
    def watchdog_s(self) -> float | None:
        """How often a sign of life is wanted: twice in the time after which we count as dead; None: never."""
        return self._watchdog_us / _US_PER_S / 2 if self._watchdog_us and self._address else None

    def ready(self) -> None:
        """We have started."""
        self._tell("READY=1", _PATIENCE_S)

    def stopping(self) -> None:
        """We are about to end."""
        self._tell("STOPPING=1", _PATIENCE_S)

    def alive(self) -> None:
        """We are not stuck."""
        self._tell("WATCHDOG=1")

    def status(self, text: str) -> None:
        """What `systemctl status` shows; told when it changes."""
        if text != self._status and self._tell(f"STATUS={' '.join(text.split())}"):
            self._status = text

    def _tell(self, text: str, patience_s: float = 0.0) -> bool:
        """Send one datagram; a service manager that does not take it is not our concern.

        Returns:
            Whether it was taken.
        """
        is_taken = False
        if sys.platform != "win32" and self._address:
            address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.settimeout(patience_s)
                sock.connect(address)
                sock.sendall(text.encode())
                is_taken = True
        return is_taken
