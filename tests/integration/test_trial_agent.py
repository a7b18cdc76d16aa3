"""`forewarn try` passes Forewarn's own agent, the best handler that we know, in every scenario."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from forewarn.testing.scenario.scenario_loader import load_scenario, shipped_scenarios

pytestmark = [pytest.mark.slow, pytest.mark.namespaces, pytest.mark.begins_first(280)]

AGENT = """
dry_run = false
state_file = "{folder}/agent.json"
listen = "127.0.0.1:0"

[[rule]]
name = "anything"
handlers = [{{ use = "file", touch = "{folder}/drained" }}]
"""


@pytest.mark.parametrize("name", [name for name in shipped_scenarios() if load_scenario(name).only is None])
def test_a_good_handler_passes_every_scenario(tmp_path: Path, name: str) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(AGENT.format(folder=tmp_path))
    drained = tmp_path / "drained"
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "forewarn", "try", "--scenario", name, "--json"),
            *("--prepared", f"test -e {drained}", "--recovered", f"test ! -e {drained}"),
            *("--", sys.executable, "-m", "forewarn", "agent", "run", "--config", str(config)),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert [finding for finding in report["findings"] if finding["is_wrong"]] == []
    wants_approval = any(
        step.approve is not None and step.approve.by == load_scenario(name).handler
        for step in load_scenario(name).steps
    )
    assert bool(report["approvals"]) >= wants_approval
