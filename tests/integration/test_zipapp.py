"""The testing kit as one file: built as `make zipapp` does, and run on a machine that has Python and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.support.documents import ROOT
from tests.support.spans import GUARD_S

pytestmark = pytest.mark.slow  # builds for many seconds, and asks a package index

_BUILD_S = 10 * GUARD_S
_SPY = """
import importlib.util, os
print("sees", importlib.util.find_spec("forewarn"), os.getenv("PYTHONPATH"))
"""


@dataclass(frozen=True)
class Machine:
    """One with Python and the usual commands, and the file.

    Attributes:
        file: What `make zipapp` builds.
        environment: All variables that it has.
    """

    file: Path
    environment: dict[str, str]

    def run(self, *words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        command = [str(self.file), *words]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, cwd=cwd, timeout=2 * GUARD_S
        )


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    folder = tmp_path_factory.mktemp("machine")
    for name in ("bin", "home"):
        (folder / name).mkdir()
    interpreter = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    for name in ("python3", interpreter.name):
        (folder / "bin" / name).symlink_to(interpreter)
    file = folder / "forewarn.pyz"
    build = [sys.executable, str(ROOT / "tools" / "build_zipapp.py"), "--out", str(file)]
    done = subprocess.run(build, capture_output=True, text=True, check=False, timeout=_BUILD_S)
    assert done.returncode == 0, done.stdout + done.stderr
    path = f"{folder / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin"
    return Machine(file, {"PATH": path, "HOME": str(folder / "home"), "NO_COLOR": "1"})


def test_one_file_lists_the_scenarios(machine: Machine) -> None:
    done = machine.run("scenario", "list")
    assert done.returncode == 0, done.stderr
    assert "live-migration" in done.stdout


def test_one_file_tries_a_handler(machine: Machine, tmp_path: Path) -> None:
    handler = ROOT / "examples" / "handlers" / "handler.py"
    words = ["try", "--scenario", "live-migration", "--junit", "junit.xml", "--", "python3", str(handler)]
    done = machine.run(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    root = ET.parse(tmp_path / "junit.xml").getroot()  # noqa: S314 - written by the file under test
    assert root.findall(".//testcase")
    assert not root.findall(".//failure")


def test_the_handler_sees_no_library_of_the_file(machine: Machine, tmp_path: Path) -> None:
    """A handler in another version of Python could not load them."""
    (tmp_path / "spy.py").write_text(_SPY)
    done = machine.run("try", "--scenario", "live-migration", "--", "python3", "spy.py", cwd=tmp_path)
    assert "sees None None" in done.stdout
    assert done.returncode == 1


def test_a_service_needs_an_installation(machine: Machine) -> None:
    done = machine.run("serve")
    assert done.returncode == 1
    assert "pip install 'forewarn[server]'" in done.stderr
    assert done.stderr.count("\n") == 1
