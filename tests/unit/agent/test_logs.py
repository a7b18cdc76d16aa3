"""Where log lines go, and in what form."""

from __future__ import annotations

import json
import logging
import os
import pty
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import pytest

from forewarn.agent.logs import configure_logging
from forewarn.errors import ConfigError

log = logging.getLogger("forewarn.agent")


class Stderr:
    """A stderr that is a file."""

    def __init__(self, file: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = file
        self._monkeypatch = monkeypatch

    def configure(self, level: str = "info", stream: str = "") -> None:
        """Log to it; `stream` is what systemd says of stderr."""
        self._monkeypatch.setattr(sys, "stderr", self.file)
        configure_logging(level, environment={"JOURNAL_STREAM": stream} if stream else {})

    @property
    def stream(self) -> str:
        """How systemd names it."""
        status = os.fstat(self.file.fileno())
        return f"{status.st_dev}:{status.st_ino}"

    def lines(self) -> list[str]:
        """What it holds."""
        self.file.seek(0)
        return self.file.read().splitlines()


@pytest.fixture
def stderr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stderr]:
    with (tmp_path / "stderr").open("w+") as file:
        yield Stderr(file, monkeypatch)


class Terminal(Stderr):
    """A stderr at which somebody sits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ours, theirs = pty.openpty()
        super().__init__(os.fdopen(theirs, "w"), monkeypatch)

    def lines(self) -> list[str]:
        return os.read(self._ours, 10_000).decode().splitlines()

    def close(self) -> None:
        self.file.close()
        os.close(self._ours)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    made = Terminal(monkeypatch)
    yield made
    made.close()


def test_elsewhere_than_on_a_terminal_a_line_is_a_json_object(stderr: Stderr) -> None:
    stderr.configure()
    log.info("event %s is seen", "E1", extra={"event_id": "E1", "resources": ["a", "b"], "output": "", "rule": None})
    (line,) = stderr.lines()
    told = json.loads(line)
    assert datetime.fromisoformat(told.pop("timestamp")).tzinfo == UTC
    assert told == {"level": "info", "event": "event E1 is seen", "event_id": "E1", "resources": ["a", "b"]}


def break_down() -> None:
    raise ValueError("first\nsecond")


def test_lines_and_traces_stay_on_one_line(stderr: Stderr) -> None:
    stderr.configure()
    try:
        break_down()
    except ValueError:
        log.exception("it\nbroke", extra={"output": "a\nb"})
    (line,) = stderr.lines()
    told: dict[str, Any] = json.loads(line)
    assert (told["event"], told["output"]) == ("it\nbroke", "a\nb")
    assert told["exception"].startswith("Traceback")


@pytest.mark.parametrize(
    ("level", "priority"), [("debug", 7), ("info", 6), ("warning", 4), ("error", 3), ("critical", 2)]
)
def test_the_journal_is_told_the_priority_of_a_line(stderr: Stderr, level: str, priority: int) -> None:
    stderr.configure("debug", stderr.stream)
    getattr(log, level)("hello")
    (line,) = stderr.lines()
    assert line.startswith(f"<{priority}>{{")
    assert json.loads(line[3:])["level"] == level


@pytest.mark.parametrize("stream", ["", "8:1", "nonsense"])
def test_a_stderr_that_was_redirected_is_not_the_journal(stderr: Stderr, stream: str) -> None:
    stderr.configure("info", stream)
    log.info("hello")
    assert stderr.lines()[0].startswith("{")


def test_a_stderr_that_is_no_file_is_not_the_journal(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", environment={"JOURNAL_STREAM": "8:1"})
    log.info("hello")
    assert capsys.readouterr().err.startswith("{")


def test_on_a_terminal_a_line_is_for_people_and_a_hooks_output_below_it(terminal: Terminal) -> None:
    terminal.configure()
    log.warning("step\nprepare is done", extra={"event_id": "E1", "output": "one\ntwo\n"})
    first, *rest = terminal.lines()
    assert first.endswith("Z warning step prepare is done")
    assert rest == ["    one", "    two"]


def test_a_terminal_shows_the_trace_of_an_error(terminal: Terminal) -> None:
    terminal.configure()
    try:
        break_down()
    except ValueError:
        log.exception("it broke")
    first, second, *_ = terminal.lines()
    assert first.endswith("Z error   it broke")
    assert second.startswith("Traceback")


def test_a_file_is_made_with_its_folder_and_is_not_for_everybody(tmp_path: Path) -> None:
    file = tmp_path / "log" / "agent.log"
    configure_logging("info", str(file), environment={"JOURNAL_STREAM": "8:1"})
    log.info("grüße", extra={"path": Path("/etc")})
    assert json.loads(file.read_text(encoding="utf-8"))["path"] == "/etc"
    assert "grüße" in file.read_text(encoding="utf-8")
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_file_is_kept_within_a_limit_and_older_ones_keep_their_mode(tmp_path: Path) -> None:
    file = tmp_path / "agent.log"
    configure_logging("info", str(file), environment={})
    for _ in range(60):
        log.info("x" * (1 << 20))
    files = sorted(tmp_path.iterdir())
    assert [each.name for each in files] == ["agent.log", "agent.log.1", "agent.log.2", "agent.log.3"]
    assert max(each.stat().st_size for each in files) <= 10 << 20
    assert {each.stat().st_mode & 0o777 for each in files} == {0o640}


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^cannot write the log file {tmp_path}: Is a directory$"):
        configure_logging("info", str(tmp_path), environment={})


@pytest.mark.parametrize(
    ("level", "shown"),
    [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)],
)
def test_the_level_says_what_is_left_out(stderr: Stderr, level: str, shown: int) -> None:
    stderr.configure(level)
    for each in (log.debug, log.info, log.warning, log.error):
        each("hello")
    assert len(stderr.lines()) == shown
