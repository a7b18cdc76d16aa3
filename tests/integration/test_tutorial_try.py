"""The pages on testing handlers: what they show happens as they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import ROOT, files_in

pytestmark = pytest.mark.begins_first(340)

TUTORIAL = ROOT / "docs/tutorial/test-your-handler.md"
PREPARED = ("--prepared", "test -e drained")


def tried(folder: Path, handler: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forewarn", "try", *options, "--", sys.executable, handler]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in files_in(TUTORIAL).items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(600)
def test_the_tutorial_finds_the_faults_of_the_handler_and_mends_them(folder: Path) -> None:
    """It shows a handler of which each version fails as the page says, and the last passes."""
    passes = tried(folder, "handler.py", "--scenario", "live-migration")
    assert passes.returncode == 0, passes.stderr
    unprepared = tried(folder, "handler.py", "--scenario", "live-migration", *PREPARED)
    assert unprepared.returncode == 1
    assert "it approved while the VM was not prepared" in unprepared.stderr
    prepared = tried(folder, "prepared.py", "--scenario", "live-migration", *PREPARED)
    assert prepared.returncode == 0, prepared.stderr
    dies = tried(folder, "prepared.py", "--scenario", "hard-times.yaml", *PREPARED)
    assert dies.returncode == 1
    assert "it exited with status" in dies.stdout
    played = subprocess.run(
        [sys.executable, "-m", "forewarn", "scenario", "play", "hard-times.yaml"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert played.returncode == 0, played.stderr
    careful = tried(folder, "careful.py", "--scenario", "hard-times.yaml", *PREPARED)
    assert careful.returncode == 0, careful.stdout + careful.stderr


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(1200)
def test_all_that_can_happen_finds_the_rest_and_the_last_handler_passes(folder: Path) -> None:
    """The page's own example is the one to be copied; of the one before it, it says what is found."""
    assert (folder / "whole.py").read_text() == (ROOT / "examples/handlers/handler.py").read_text()
    options = ("--all", *PREPARED, "--recovered", "test ! -e drained")
    whole = tried(folder, "whole.py", *options)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    careful = tried(folder, "careful.py", *options)
    assert careful.returncode == 1
    for words in ("which is not its VM", "had seen the event as Started", "had not recovered"):
        assert words in careful.stdout


@pytest.mark.slow
@pytest.mark.namespaces
def test_a_larger_incarnation_is_not_what_to_look_for(folder: Path) -> None:
    """R101: had it lived on, it would have missed the second restart, as the page says."""
    code = (folder / "careful.py").read_text().replace("!= last", "> (last or 0)")
    (folder / "larger.py").write_text(code)
    missed = tried(folder, "larger.py", "--scenario", "hard-times.yaml")
    assert missed.returncode == 1
    assert "the handler did not approve second" in missed.stdout


def test_the_tests_of_the_how_to_pass(tmp_path: Path) -> None:
    files = files_in(ROOT / "docs/how-to/test-a-handler.md")
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", str(tmp_path)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stdout
    assert "7 passed" in ran.stdout
    assert len(files) == 5
