"""Reading the Markdown files of the repository: their links, and the examples that tests run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Example", "examples", "files_in", "links", "pages"]

ROOT = Path(__file__).parents[2]

_BLOCK = re.compile(r"<!-- (?P<kind>runs|file): (?P<name>[^>]+?) -->\n```\w*\n(?P<text>.*?)```\n", re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Example:
    """A block of shell commands that is marked to be run."""

    page: Path
    name: str
    script: str


def pages() -> list[Path]:
    """Every Markdown page that is written by hand or made from the code."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def examples() -> Iterator[Example]:
    """Every block marked ``<!-- runs: NAME -->``."""
    for page in pages():
        for block in _BLOCK.finditer(page.read_text()):
            if block["kind"] == "runs":
                yield Example(page, block["name"], block["text"])


def files_in(page: Path) -> dict[str, str]:
    """Files that a page shows, marked ``<!-- file: NAME -->``."""
    return {b["name"]: b["text"] for b in _BLOCK.finditer(page.read_text()) if b["kind"] == "file"}


def links(page: Path) -> Iterator[str]:
    """Targets of links to files of the repository."""
    for target in _LINK.findall(page.read_text()):
        if "://" not in target and not target.startswith(("#", "mailto:")):
            yield target.partition("#")[0]
