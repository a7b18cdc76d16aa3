"""A scenario from the content of its file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from forewarn.testing.scenario.parameters import Scalar
from forewarn.testing.scenario.scenario_file import ScenarioFile
from forewarn.testing.scenario.scenario_loader import Scenario, parse_file

__all__ = ["parse_scenario"]


def parse_scenario(
    content: bytes, name: str, where: str = "", *, folder: Path | None = None, given: Mapping[str, Scalar] | None = None
) -> Scenario:
    """Return the scenario; `where` is the file in errors, and `folder` that of the files that it includes."""
    return parse_file(ScenarioFile(name=name, content=content, display_name=where or name, folder=folder), given)
