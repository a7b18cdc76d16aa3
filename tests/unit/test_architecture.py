"""ARCHITECTURE.md and CONTRIBUTING.md lead to files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "forewarn"


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_module_that_the_page_names_exists(page: str) -> None:
    """A row of the map gives the folder once, so a name without one may be in any folder."""
    named = re.findall(r"`((?:\w+/)*\w+\.py)`", (ROOT / page).read_text(encoding="utf-8"))
    existing = ["/" + path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")]
    existing += ["/" + path.relative_to(ROOT).as_posix() for path in ROOT.glob("[a-z]*/**/*.py")]
    assert named
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in existing)] == []
