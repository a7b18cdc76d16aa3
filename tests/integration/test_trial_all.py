"""`forewarn try --all`: every scenario that can be tried, several at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from forewarn.testing.scenario.scenario_loader import load_scenario, shipped_scenarios
from tests.support.documents import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.begins_first(340)]


def whole_kit(folder: Path, handler: str, *options: str) -> subprocess.CompletedProcess[str]:
    """`forewarn try --all`, with the handler in a folder from which it is started."""
    (folder / "handler.py").write_text(handler)
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "forewarn",
            "try",
            "--all",
            "--shared-network",
            *options,
            "--",
            sys.executable,
            "handler.py",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_all_scenarios_are_tried_each_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """One table, one file for CI, one exit status; what is for playing only is left out."""
    code = (ROOT / "examples/handlers/handler.py").read_text()
    code = code.replace('"http://169.254.169.254/metadata/"', 'os.environ["FOREWARN_ENDPOINT"] + "/metadata/"')
    probes = ["--prepared", "test -e drained", "--recovered", "test ! -e drained"]
    ran = whole_kit(tmp_path, f"import os\n{code}", *probes, "--junit", "j.xml", "--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    reports = json.loads(ran.stdout)["scenarios"]
    wanted = [name for name in shipped_scenarios() if load_scenario(name).only != "play"]
    assert [report["scenario"] for report in reports] == wanted
    assert [finding for report in reports for finding in report["findings"] if finding["is_wrong"]] == []
    suites = ET.parse(tmp_path / "j.xml").getroot()  # noqa: S314 - our own file
    assert [suite.get("name") for suite in suites] == [f"forewarn try {name}" for name in wanted]
    assert not (tmp_path / "drained").exists()


@pytest.mark.namespaces
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("example", ["handler.py", "watch.py", "watch_async.py"])
def test_the_examples_pass_all_scenarios(tmp_path: Path, example: str) -> None:
    """With a long poll; with the library, whose pace is the usual one."""
    command = [sys.executable, "-m", "forewarn", "try", "--all", "--json"]
    command += ["--prepared", "test -e drained", "--recovered", "test ! -e drained", "--"]
    handler = [sys.executable, str(ROOT / "examples" / example)]
    ran = subprocess.run([*command, *handler], capture_output=True, text=True, timeout=1200, check=False, cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_what_failed_of_all_is_named_with_its_last_lines(tmp_path: Path) -> None:
    probes = ["--prepared", f"test -e {tmp_path}/drained", "--jobs", "9"]
    ran = whole_kit(tmp_path, "print('I am not ready'); raise SystemExit(7)", *probes)
    assert ran.returncode == 1
    assert "live-migration" in ran.stdout
    assert ran.stdout.count("it exited with status 7") >= 20
    assert "I am not ready" in ran.stdout
    assert "failed 25 of 25 scenarios: a-bad-day" in ran.stderr


def test_a_marker_that_all_would_share_is_not_used_by_several_at_a_time(tmp_path: Path) -> None:
    ran = whole_kit(tmp_path, "raise SystemExit(7)", "--prepared", f"test -e {tmp_path}/drained")
    assert ran.stderr.startswith(f"running one scenario at a time, because all would share {tmp_path}/drained: ")
