"""Hints that something has changed, from the watch of the control API, for commands that wait or follow.

A hint says only that it is worth reading again: what a command shows is always what it has read.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from forewarn.cli.connection import ControlConnection
from forewarn.cli.output import Output
from forewarn.clock import uptime_s

__all__ = ["REREAD_S", "ChangeHints", "Deadline"]

REREAD_S = 15.0
"""Maximum time between two reads; not every change has an entry in the audit log."""

_SETTLE_S = 0.2
"""Time for which further changes are gathered, so that a hundred changes are not read a hundred times."""


class Deadline:
    """End of the time that a command may take.

    Args:
        span_s: Time from now; None for no end.
    """

    def __init__(self, span_s: float | None) -> None:
        self._end_s = None if span_s is None else uptime_s() + span_s

    def limit(self, span_s: float) -> float:
        """Return the span, shortened to the time that is left; 0 if the time is over."""
        return span_s if self._end_s is None else max(0.0, min(span_s, self._end_s - uptime_s()))

    @property
    def is_over(self) -> bool:
        """True if the time is over."""
        return self._end_s is not None and uptime_s() >= self._end_s


class ChangeHints:
    """Hints from a watch that is open inside a `with` block: changes after its beginning are not missed.

    Args:
        connection: Connection to the service.
        output: Output for notices about a lost connection.
    """

    def __init__(self, connection: ControlConnection, output: Output) -> None:
        self._connection = connection
        self._output = output
        self._hint = threading.Event()
        self._error: Exception | None = None
        self._is_ended = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        newest = self._connection.get("/v1/audit-log", limit=1, newest="true")["items"]
        position = int(newest[-1]["sequence"]) if newest else 0
        # A daemon, so that Ctrl-C need not wait for it.
        self._thread = threading.Thread(target=self._read_watch, args=(position,), name="watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_ended = True
        self._connection.end_watch()

    def wait(self, deadline: Deadline) -> None:
        """Return when it is worth reading again: after a change, after a while, or when the time is over.

        Raises:
            ForewarnError: The watch has ended, for example because the token was revoked.
        """
        if self._hint.wait(deadline.limit(REREAD_S)):
            # Nothing sets this event; it is a sleep that ends with the deadline.
            threading.Event().wait(deadline.limit(_SETTLE_S))
            self._hint.clear()
        if self._error is not None:
            raise self._error

    def _read_watch(self, position: int) -> None:
        try:
            for _entry in self._connection.watch_entries(position, self._note):
                self._hint.set()
        except Exception as error:  # noqa: BLE001 - raised again where the command waits
            self._error = error
            self._hint.set()

    def _note(self, line: str) -> None:
        """Pass on a notice about the connection; after a new connection, changes may have been missed."""
        if self._is_ended:
            raise ConnectionAbortedError
        self._output.print_notice(line)
        self._hint.set()
