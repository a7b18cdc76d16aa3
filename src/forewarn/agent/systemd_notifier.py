"""Messages to systemd about readiness, watchdog and status. Without systemd they do nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import MutableMapping

__all__ = ["SystemdNotifier"]

_US_PER_S = 1_000_000
_PATIENCE_S = 2.0
"""Time that the two messages which must arrive wait for room: without READY, systemd counts the start as failed."""


class SystemdNotifier:
    """Reports the state of this process to systemd.

    Args:
        environment: Environment with systemd's variables. They are removed, because they are not meant for hooks, which
            may be services themselves and would believe that systemd waits for their messages.
    """

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        self._address = environment.pop("NOTIFY_SOCKET", "")
        # WATCHDOG_PID names the process that systemd watches; other processes only inherit the variable.
        own = environment.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        interval = environment.pop("WATCHDOG_USEC", "")
        self._watchdog_us = int(interval) if own and interval.isdecimal() else 0
        self._status = ""

    @property
    def watchdog_s(self) -> float | None:
        """Interval of the watchdog message, half of systemd's limit; None if systemd expects none."""
        return self._watchdog_us / _US_PER_S / 2 if self._watchdog_us and self._address else None

    def notify_ready(self) -> None:
        """Report that the agent has started."""
        self._send_datagram("READY=1", _PATIENCE_S)

    def notify_stopping(self) -> None:
        """Report that the agent is about to end."""
        self._send_datagram("STOPPING=1", _PATIENCE_S)

    def notify_watchdog(self) -> None:
        """Report that the agent is not stuck."""
        self._send_datagram("WATCHDOG=1")

    def set_status(self, text: str) -> None:
        """Set the text that `systemctl status` shows; it is sent only when it changes."""
        # Remember the text only if it was sent, so that a lost one is sent again.
        if text != self._status and self._send_datagram(f"STATUS={' '.join(text.split())}"):
            self._status = text

    def _send_datagram(self, text: str, patience_s: float = 0.0) -> bool:
        """Send one datagram; a failure is ignored.

        Returns:
            True if it was sent.
        """
        is_taken = False
        if sys.platform != "win32" and self._address:
            # In NOTIFY_SOCKET, a leading @ means the NUL of an abstract socket.
            address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                # With 0 it does not block: a full queue must not stop the event loop for a status.
                sock.settimeout(patience_s)
                sock.connect(address)
                sock.sendall(text.encode())
                is_taken = True
        return is_taken
