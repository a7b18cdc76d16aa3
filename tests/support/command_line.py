"""The command line in the test's process, against a service in a thread."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from forewarn.cli.main import run_command_line
from tests.support.service import Running
from tests.support.spans import GUARD_S

__all__ = ["CommandLine", "StartedCommand"]


@dataclass(frozen=True)
class StartedCommand:
    """A command that runs in a process."""

    process: subprocess.Popen[str]

    def line(self) -> str:
        """Return the next line on stdout without its end; the test's own timeout is the limit."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().removesuffix("\n")

    def interrupt(self) -> int:
        """Press Ctrl-C and return the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> int:
        """Wait for the end and return the exit status."""
        return self.process.wait(GUARD_S)

    def rest(self) -> tuple[str, str]:
        """Wait for the end and return what was not read of stdout and stderr."""
        return self.process.communicate(timeout=GUARD_S)


@dataclass(frozen=True)
class CommandLine:
    """Commands with the address of a service, and by default with the token of its operator."""

    service: Running
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    token: str | None = None

    def run(self, *arguments: str, status: int = 0) -> tuple[str, str]:
        """Run a command that is to end with that status; return what it wrote to stdout and stderr."""
        self.monkeypatch.setenv("FOREWARN_TOKEN", self.token or self.service.service.tokens.operator_token)
        self.monkeypatch.setenv("NO_COLOR", "1")
        self.monkeypatch.delenv("COLUMNS", raising=False)  # a table as wide as it needs to be
        self.capsys.readouterr()
        ended = run_command_line([*arguments, "--control-url", self.service.service.control_url])
        shown = self.capsys.readouterr()
        assert ended == status, f"{arguments}: {ended}\n{shown.out}{shown.err}"
        return shown.out, shown.err

    def lines(self, *arguments: str) -> list[str]:
        """Run a command that is to succeed; return the lines on stdout."""
        return self.run(*arguments)[0].splitlines()

    def json(self, *arguments: str) -> Any:  # noqa: ANN401 - what the command printed
        """Run a command that is to succeed; return the JSON on stdout."""
        return json.loads(self.run(*arguments, "--json")[0])

    @contextmanager
    def start(self, *arguments: str) -> Iterator[StartedCommand]:
        """Start a command in a process, which ends with the block."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FOREWARN_")}
        token = self.token or self.service.service.tokens.operator_token
        process = subprocess.Popen(
            [sys.executable, "-m", "forewarn", *arguments, "--control-url", self.service.service.control_url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=kept | {"FOREWARN_TOKEN": token},
        )
        try:
            yield StartedCommand(process)
        finally:
            process.kill()
            process.communicate(timeout=GUARD_S)
