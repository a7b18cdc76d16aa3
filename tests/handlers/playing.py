"""Handlers of several languages, tried: many at a time, for they mostly sleep."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from forewarn.testing.scenario.scenario_loader import load_scenario
from forewarn.testing.trial.report import TrialReport
from forewarn.testing.trial.trial import try_handler
from tests.handlers.planted import CORRECT, PlantedFault, correct_source

__all__ = ["Play", "missing_tool", "play_all"]

_AT_A_TIME = 20
_TOOLS = {"python": (), "bash": ("bash", "curl", "jq"), "node": ("node",), "perl": ("perl",), "go": ("go",)}
_RUN = {"python": [sys.executable], "bash": ["bash"], "node": ["node"], "perl": ["perl"], "go": []}


@dataclass(frozen=True, slots=True, eq=False)
class Play:
    """One handler in one scenario.

    Attributes:
        language: What it is written in.
        scenario: Its name.
        fault: What is planted in it; None: nothing, it is correct.
    """

    language: str
    scenario: str
    fault: PlantedFault | None = None

    def __str__(self) -> str:
        """For the names of tests."""
        return f"{self.language}-{self.scenario if self.fault is None else self.fault.name}"


def missing_tool(language: str) -> str:
    """What this machine lacks for handlers in that language; empty: nothing."""
    return next((tool for tool in _TOOLS[language] if shutil.which(tool) is None), "")


async def play_all(
    plays: Iterable[Play],
    folder: Path,
    *,
    patience_s: float,
    on_report: Callable[[Play, TrialReport], None] = lambda _play, _report: None,
) -> dict[Play, TrialReport]:
    """Try each of these handlers in its scenario; files are made in the folder."""
    gate = asyncio.Semaphore(_AT_A_TIME)
    builds = asyncio.Lock()  # a compiler keeps all cores busy
    compiled: dict[str, Path] = {}
    reports: dict[Play, TrialReport] = {}

    async def play_one(play: Play) -> None:
        async with gate:
            own = folder / str(play)
            own.mkdir()
            async with builds:
                command = await asyncio.to_thread(_command, play, own, compiled)
            marker = own / "drained"
            reports[play] = await try_handler(
                load_scenario(play.scenario if play.fault is None else play.fault.scenario_file),
                [*command, str(marker)],
                patience_s=patience_s,
                prepared=f"test -e {marker}",
                recovered=f"test ! -e {marker}",
            )
            on_report(play, reports[play])

    async with asyncio.TaskGroup() as group:
        for play in plays:
            group.create_task(play_one(play))
    return reports


def _command(play: Play, folder: Path, compiled: dict[str, Path]) -> list[str]:
    """Write the handler, compile its source if no other play has; return how to start it."""
    source = correct_source(play.language) if play.fault is None else play.fault.source(play.language)
    file = folder / CORRECT[play.language].name
    file.write_text(source, encoding="utf-8")
    if play.language == "go":
        if source not in compiled:
            # The linker takes two thirds of the time without debugging information.
            build = ["go", "build", "-ldflags", "-s -w", "-o", str(folder / "handler"), str(file)]
            subprocess.run(build, check=True, cwd=folder)
            compiled[source] = folder / "handler"
        return [str(compiled[source])]
    return [*_RUN[play.language], str(file)]
