"""The command line in the test's process, against a service in a thread."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from forewarn.cli.main import run_command_line
from tests.support.service import Running

__all__ = ["CommandLine"]


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
