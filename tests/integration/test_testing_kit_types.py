"""What a type checker finds in a test that uses the kit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import ROOT

RIGHT = """\
from forewarn.testing import (
    Advice, AsyncScheduledEvents, Document, Event, Exchange, InjectedFault, ScheduledEvent, ScheduledEvents
)


def use(events: ScheduledEvents) -> None:
    event: ScheduledEvent = events.schedule("Reboot", source="User", impact="Freeze")
    fault: InjectedFault = events.inject("503", method="POST")
    document: Document = events.document
    first: Event = document.events[0]
    asked: list[Exchange] = events.requests
    warnings: list[tuple[Exchange, Advice]] = events.warnings
    assert event.status == "Started" and event.type == "Reboot"
    events.advance("15m")
    assert event.status == "Completed"
    print(fault, first, asked, warnings)


async def use_async(events: AsyncScheduledEvents) -> None:
    event: ScheduledEvent = await events.schedule("Reboot", source="User", impact="Freeze")
    await events.inject("503", method="POST")
    assert event.status == "Started"
"""
WRONG = {
    "type": ('"Reboot", source', '"Rebot", source'),
    "source": ('source="User"', 'source="Tenant"'),
    "turn": ('impact="Freeze"', 'impact="Frieze"'),
    "fault": ('inject("503"', 'inject("504"'),
    "number": ('inject("503"', "inject(503"),
    "method": ('method="POST"', 'method="PUT"'),
}


def complaints(folder: Path, *snippets: str) -> list[list[int]]:
    """Run mypy once on each; the lines of which it complains."""
    files = [folder / f"snippet_{number}.py" for number in range(len(snippets))]
    for file, snippet in zip(files, snippets, strict=True):
        file.write_text(snippet)
    settings = folder / "mypy.ini"
    settings.write_text("[mypy]\nstrict = True\nfollow_imports = silent\n")
    command = [sys.executable, "-m", "mypy", "--config-file", str(settings), "--cache-dir", str(folder / "cache")]
    done = subprocess.run(
        [*command, *map(str, files)],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={"MYPYPATH": str(ROOT / "src")},
    )
    assert done.returncode in {0, 1}, done.stderr
    found = [line.partition(": error:")[0].rpartition(":") for line in done.stdout.splitlines() if ": error:" in line]
    return [[int(line) for path, _, line in found if path.endswith(file.name)] for file in files]


@pytest.mark.slow
def test_a_type_checker_finds_words_that_do_not_exist(tmp_path: Path) -> None:
    """In the kit for threads and in that for tasks; and nothing to complain of where all are right."""
    lines = RIGHT.splitlines()
    wrong = {name: RIGHT.replace(right, slip) for name, (right, slip) in WRONG.items()}
    found = dict(zip(["right", *wrong], complaints(tmp_path, RIGHT, *wrong.values()), strict=True))
    expected = {
        name: [number for number, line in enumerate(lines, 1) if right in line] for name, (right, _) in WRONG.items()
    }
    assert found == {"right": [], **expected}
    assert all(len(numbers) == 2 for numbers in expected.values())
