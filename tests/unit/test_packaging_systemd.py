"""The units of `serve` and `endpoint`: systemd understands them, they are shut in, and name what there is."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forewarn.cli.main import make_app
from forewarn.config.settings import Settings
from tests.support.documents import ROOT

UNITS = sorted((ROOT / "packaging" / "systemd").glob("*.service"))
HAS_SYSTEMD = shutil.which("systemd-analyze") is not None

needs_systemd = pytest.mark.skipif(not HAS_SYSTEMD, reason="needs systemd-analyze, of Debian's systemd")


def test_there_is_a_unit_for_each_process() -> None:
    assert [unit.stem for unit in UNITS] == ["forewarn-endpoint", "forewarn-follow-libvirt", "forewarn-serve"]


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_understands_it_and_finds_it_shut_in(unit: Path) -> None:
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", str(unit)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_every_variable_and_option_that_it_names_is_there(unit: Path) -> None:
    text = unit.read_text()
    settings = {f"FOREWARN_{name.upper()}" for name in Settings.model_fields}
    commands = (["endpoint"], ["inventory", "follow-libvirt"])
    helped = "".join(CliRunner().invoke(make_app(), [*c, "--help"], env={"COLUMNS": "200"}).stdout for c in commands)
    names = set(re.findall(r"\bFOREWARN_[A-Z_]+\b", text)) - {"FOREWARN_NAME"}
    assert names
    assert {name for name in names if name not in settings and name not in helped} == set()
    [start] = re.findall(r"^ExecStart=/usr/bin/env forewarn ((?:[a-z][a-z-]* ?)+)(.*)$", text, re.MULTILINE)
    shown = CliRunner().invoke(make_app(), [*start[0].split(), "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert all(option in shown.stdout for option in re.findall(r"--[a-z-]+", start[1]))
