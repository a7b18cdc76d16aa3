"""`forewarn fault` with a service of another version."""

from __future__ import annotations

import pytest

from forewarn.cli.connection import ControlConnection
from forewarn.cli.main import run_command_line


def test_a_kind_that_only_a_newer_service_knows_is_injected_and_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = {"id": 7, "kind": "hiccup", "vms": [], "method": None, "count": None, "rate": 1.0, "until": None}
    monkeypatch.setattr(ControlConnection, "send_change", lambda *_arguments: fault)
    assert run_command_line(["fault", "inject", "hiccup"]) == 0
    assert capsys.readouterr() == ("fault 7: hiccup\n", "")
