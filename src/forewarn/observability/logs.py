"""Log configuration: destination, format and rate limit."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TextIO, cast

import structlog

from forewarn.clock import uptime_s
from forewarn.util.escape import escape_controls

__all__ = ["LogRateLimit", "SafeStream", "configure_logging", "escape_values"]

_LIMITED = frozenset({"warning", "error", "critical"})
_SPAN_S = 60.0
_LINES_MAX = 60
"""Maximum number of different lines per event and minute."""

_KNOWN_MAX = 1000
_FACTS_LENGTH_MAX = 200


def configure_logging() -> None:
    """Send logs to stderr, as readable lines on a terminal and as JSON elsewhere."""
    stream = SafeStream(sys.stderr)
    rendering: list[Any] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    if sys.stderr.isatty():
        rendering = [escape_values, structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            # Before the time stamp, which would make every line a different one.
            LogRateLimit(uptime_s),
            stream.add_failures,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *rendering,
        ],
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", stream)),
        cache_logger_on_first_use=True,
    )


class SafeStream:
    """Stream that never raises: a full disk or a closed pipe must not end the work that wanted to log.

    Args:
        stream: Stream to which everything is passed on.

    Attributes:
        failures: Number of lines that could not be written since the latest that could. The stream may keep some of
            them, and write them later.
    """

    def __init__(self, stream: TextIO) -> None:
        self.failures = 0
        self._stream = stream
        self._has_failed = False

    def write(self, text: str) -> None:
        """Write text; a failure shows at the next `flush`."""
        try:
            self._stream.write(text)
        except (OSError, ValueError):  # ValueError: the stream is closed
            self._has_failed = True

    def flush(self) -> None:
        """Write what is buffered, and count a failed line."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._has_failed = True
        self.failures = self.failures + 1 if self._has_failed else 0
        self._has_failed = False

    def add_failures(self, _logger: Any, _name: str, event: Any) -> Any:  # noqa: ANN401 - structlog's processor
        """Add the number of failures, so that a reader knows that lines may be missing."""
        return {**event, "unwritten_lines": self.failures} if self.failures else event


class LogRateLimit:
    """Log processor that passes a repeated failure once a minute, with the number of suppressed repetitions.

    If a database is down, a receiver refuses or a disk is full, an operation that is retried every second fails every
    second, and strangers can cause some failures at will. Identical warnings and errors count as one; an event with
    changing facts passes up to `_LINES_MAX` times a minute. Lower levels always pass.

    Args:
        uptime_s: Monotonic clock, in seconds.
    """

    def __init__(self, uptime_s: Callable[[], float]) -> None:
        self._uptime_s = uptime_s
        self._known: OrderedDict[tuple[object, ...], tuple[float, int, int]] = OrderedDict()

    def __call__(self, _logger: Any, _name: str, event: Any) -> Any:  # noqa: ANN401 - structlog's processor
        """Pass the event on, or drop it."""
        if event.get("level") not in _LIMITED:
            return event
        what = (event["level"], str(event.get("event"))[:_FACTS_LENGTH_MAX])
        facts = str(sorted((name, str(value)) for name, value in event.items() if name not in {"level", "event"}))
        repeated = self._count_suppressed((*what, facts[:_FACTS_LENGTH_MAX]), 1)
        # Two limits: one line a minute with the same facts, and `_LINES_MAX` of the event whatever its facts.
        if repeated is None or self._count_suppressed(what, _LINES_MAX) is None:
            raise structlog.DropEvent
        return {**event, "repeated": repeated} if repeated else event

    def _count_suppressed(self, key: tuple[object, ...], lines_max: int) -> int | None:
        """Return the number of lines suppressed in the previous minute; None if this line is suppressed."""
        now_s = self._uptime_s()
        # Removed and inserted again below, so that the line seen longest ago is evicted first.
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


def escape_values(_logger: Any, _name: str, event: Any) -> Any:  # noqa: ANN401 - structlog's processor
    """Escape control characters in values; for terminals only, since JSON escapes them anyway."""
    return {key: escape_controls(value) if isinstance(value, str) else value for key, value in event.items()}
