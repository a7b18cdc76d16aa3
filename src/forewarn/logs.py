"""Where logs go, and how they look."""

from __future__ import annotations

import sys
from typing import Any

import structlog

from forewarn.escape import escape_controls

__all__ = ["configure_logging", "visible"]


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
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info if not is_terminal else _as_is,
            *([visible] if is_terminal else []),
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def visible(_logger: Any, _name: str, event: Any) -> Any:  # noqa: ANN401 - structlog's processor
    """Control characters of others as text; JSON escapes them anyway."""
    return {key: escape_controls(value) if isinstance(value, str) else value for key, value in event.items()}


def _as_is(_logger: Any, _name: str, event: Any) -> Any:  # noqa: ANN401 - structlog's processor
    return event
