"""Where logs go, and how they look."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import structlog

from forewarn.clock import uptime_s
from forewarn.util.escape import escape_controls

__all__ = ["RateLimit", "configure_logging", "visible"]

_LIMITED = frozenset({"warning", "error", "critical"})
_SPAN_S = 60.0
_LINES_MAX = 60
"""Different lines of one event in a minute."""

_KNOWN_MAX = 1000
_FACTS_LENGTH_MAX = 200


def configure_logging() -> None:
    """Logs go to stderr: readable lines on a terminal, JSON elsewhere."""
    is_terminal = sys.stderr.isatty()
    renderer: Any = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if is_terminal
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            RateLimit(uptime_s),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info if not is_terminal else _as_is,
            *([visible] if is_terminal else []),
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


class RateLimit:
    """Lets a failure into the log once a minute: then with the number of times that it was left out.

    A database that is away, a receiver that refuses, a disk that is full: what is tried again each second fails each
    second, and strangers can make some of it fail at will. Warnings and errors that say the same count as one; of an
    event that says something else each time, so many get through. Anything below a warning always does.

    Args:
        uptime_s: Seconds since some moment.
    """

    def __init__(self, uptime_s: Callable[[], float]) -> None:
        self._uptime_s = uptime_s
        self._known: OrderedDict[tuple[object, ...], tuple[float, int, int]] = OrderedDict()

    def __call__(self, _logger: Any, _name: str, event: Any) -> Any:  # noqa: ANN401 - structlog's processor
        """Hand the event on, or drop it."""
        if event.get("level") not in _LIMITED:
            return event
        what = (event["level"], str(event.get("event"))[:_FACTS_LENGTH_MAX])
        facts = str(sorted((name, str(value)) for name, value in event.items() if name not in {"level", "event"}))
        repeated = self._left_out((*what, facts[:_FACTS_LENGTH_MAX]), 1)
        if repeated is None or self._left_out(what, _LINES_MAX) is None:
            raise structlog.DropEvent
        return {**event, "repeated": repeated} if repeated else event

    def _left_out(self, key: tuple[object, ...], lines_max: int) -> int | None:
        """How many lines were left out in the minute before; None: this one is left out, too."""
        now_s = self._uptime_s()
        began_s, lines, dropped = self._known.pop(key, (now_s, 0, 0))
        is_over = now_s - began_s >= _SPAN_S
        before = dropped if is_over else 0
        if is_over:
            began_s, lines, dropped = now_s, 0, 0
        is_shown = lines < lines_max
        self._known[key] = (began_s, lines + is_shown, dropped + (not is_shown))
        while len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)
        return before if is_shown else None


def visible(_logger: Any, _name: str, event: Any) -> Any:  # noqa: ANN401 - structlog's processor
    """Control characters of others as text; JSON escapes them anyway."""
    return {key: escape_controls(value) if isinstance(value, str) else value for key, value in event.items()}


def _as_is(_logger: Any, _name: str, event: Any) -> Any:  # noqa: ANN401 - structlog's processor
    return event
