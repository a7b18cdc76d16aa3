"""Output of the agent's log: readable lines on a terminal, lines with a priority for the journal, JSON in a file."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from forewarn.errors import ConfigError
from forewarn.util.escape import escape_json, escape_lines

__all__ = ["configure_logging"]

_FILE_SIZE_BYTES_MAX = 10 << 20
_FILES_KEPT = 3
_FILE_MODE = 0o640
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that every record has; those that a call adds are logged in addition to the text."""

_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
"""Syslog levels, which the journal reads at the beginning of a line."""


def configure_logging(level: str, file: str = "", environment: Mapping[str, str] = os.environ) -> None:
    """Send the agent's log to a file, the journal or the terminal.

    Args:
        level: Lowest level that is logged: ``debug``, ``info``, ``warning``, ``error``.
        file: Path of a log file, kept within 10 MiB and three older ones; if empty, stderr.
        environment: Environment that shows if stderr is the journal.

    Raises:
        ConfigError: The file cannot be written.
    """
    handler: logging.Handler
    if file:
        from logging.handlers import RotatingFileHandler

        try:
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            _create_file(file)
            rotating = RotatingFileHandler(
                file, maxBytes=_FILE_SIZE_BYTES_MAX, backupCount=_FILES_KEPT, encoding="utf-8"
            )
        except OSError as error:
            raise ConfigError(f"cannot write the log file {file}: {error.strerror}") from error
        # RotatingFileHandler would create the next file by the umask alone; `_rotate_file` gives it a stricter mode.
        rotating.rotator = _rotate_file
        handler = rotating
        handler.setFormatter(_JsonFormatter())
    else:
        handler = logging.StreamHandler(sys.stderr)
        in_journal = _is_journal(environment.get("JOURNAL_STREAM", ""))
        handler.setFormatter(
            _JournalFormatter() if in_journal else _PlainFormatter() if sys.stderr.isatty() else _JsonFormatter()
        )
    logger = logging.getLogger("forewarn")
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


def _create_file(file: str) -> None:
    """Create the file, unless it exists, for owner and group only: the output of hooks may be secret."""
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT, _FILE_MODE))


def _rotate_file(file: str, older: str) -> None:
    Path(file).replace(older)
    _create_file(file)


def _is_journal(stream: str) -> bool:
    """Return True if stderr is the journal; the variable names the stream, because it outlives a redirection."""
    try:
        status = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return stream == f"{status.st_dev}:{status.st_ino}"


def _get_extra_fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _OWN}


def _format_time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _JsonFormatter(logging.Formatter):
    """One JSON object on each line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {"timestamp": _format_time(record), "level": record.levelname.lower()}
        line["event"] = record.getMessage()
        line |= {name: value for name, value in _get_extra_fields(record).items() if value not in ("", None)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return escape_json(json.dumps(line, ensure_ascii=False, default=str))


class _PlainFormatter(logging.Formatter):
    """Readable lines for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{_format_time(record)} {record.levelname.lower():7} {' '.join(record.getMessage().split())}"
        output = _get_extra_fields(record).get("output")
        if isinstance(output, str) and output.strip():
            text += "".join(f"\n    {line}" for line in output.splitlines())
        return escape_lines(f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text)


class _JournalFormatter(_JsonFormatter):
    """JSON with a leading priority, which the journal removes."""

    def format(self, record: logging.LogRecord) -> str:
        return f"<{_PRIORITIES.get(record.levelno, 6)}>{super().format(record)}"
