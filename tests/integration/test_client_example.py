"""The example that is built on the client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import ROOT
from tests.support.processes import served, wait_for
from tests.support.spans import GUARD_S


@pytest.mark.slow
def test_the_example_goes_through_a_whole_event(tmp_path: Path) -> None:
    """R100, R103, R104."""
    quick = ("--set", "simulate_impact_after=0s", "--set", "simulate_complete_after=1s")
    with served(tmp_path, *quick) as service:
        command = [sys.executable, str(ROOT / "examples/watch.py"), service.metadata_url, "--once"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as handler:
            try:
                wait_for(lambda: service.forewarn("vm", "show", "vm-1")["enabled"])
                service.forewarn("maintenance", "schedule", "--vm", "vm-1", "--type", "Freeze")
                output, _ = handler.communicate(timeout=GUARD_S)
            finally:
                handler.kill()
    lines = ["this is vm-1", "prepare: Freeze of vm-1", "approved", "started", "recover: Freeze is over"]
    assert output.splitlines() == lines
