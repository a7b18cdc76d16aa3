"""What the documentation shows works as shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.documents import ROOT, Example, examples, files_in, links, pages
from tests.support.processes import Served, served, wait_for
from tests.support.spans import GUARD_S

EXAMPLES = list(examples())
_FIRST = ("README", "first-steps")
"""What a newcomer reads is tried with the quick tests, all else with the slow ones."""
_SLOW = (pytest.mark.slow, pytest.mark.begins_first(150))


def _run(example: Example, service: Served, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a block as a reader would paste it, against a service on other ports."""
    script = example.script.replace("127.0.0.1:8169", urlsplit(service.metadata_url).netloc)
    environment = service.environment | {"PATH": f"{Path(sys.executable).parent}:{service.environment['PATH']}"}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=5 * GUARD_S,
    )


@pytest.mark.parametrize(
    "example",
    [pytest.param(e, marks=() if e.page.stem in _FIRST else _SLOW, id=f"{e.page.stem}: {e.name}") for e in EXAMPLES],
)
def test_an_example_runs_as_shown(example: Example, tmp_path: Path) -> None:
    arguments = ("--clock", "virtual") if "virtual" in example.name else ()
    for name, text in files_in(example.page).items():
        (tmp_path / name).write_text(text)
    with served(tmp_path, *arguments) as service:
        done = _run(example, service, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_there_are_examples_to_run() -> None:
    assert {e.page.name for e in EXAMPLES} >= {"README.md", "first-steps.md", "inventory.md", "virtual-time.md"}


@pytest.mark.parametrize("page", pages(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_links_only_to_what_is_there(page: Path) -> None:
    broken = [target for target in links(page) if not (page.parent / target).exists()]
    assert broken == []


def test_the_example_handler_goes_through_a_whole_event(tmp_path: Path) -> None:
    quick = ("--set", "simulate_impact_after=0s", "--set", "simulate_complete_after=1s")
    with served(tmp_path, *quick) as service:
        command = [sys.executable, str(ROOT / "examples/handler.py"), service.metadata_url, "--once"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as handler:
            try:
                wait_for(lambda: service.forewarn("vm", "show", "vm-1")["enabled"])
                service.forewarn("maintenance", "schedule", "--vm", "vm-1", "--type", "Freeze")
                output, _ = handler.communicate(timeout=GUARD_S)
            finally:
                handler.kill()
    assert output.splitlines() == ["prepare: Freeze of vm-1", "approved", "recover"]
