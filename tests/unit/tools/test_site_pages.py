"""The navigation of the documentation site names every page once, and none that is not there."""

from __future__ import annotations

from collections import Counter

from tests.support.documents import ROOT, pages
from tools.site_pages import FRONT, SECTIONS, toctrees

DOCS = [page.relative_to(ROOT).with_suffix("").as_posix() for page in pages()]


def _named() -> list[str]:
    found = []
    for name in DOCS:
        folder = name.removesuffix(FRONT)
        for tree in toctrees(ROOT, name):
            lines = [line for line in tree.splitlines() if line and line[0] not in "`:"]
            found += [folder + line for line in lines]
    return found


def test_every_page_stands_in_the_navigation_once() -> None:
    counted = Counter(_named())
    assert [name for name, times in counted.items() if times > 1] == []
    assert set(DOCS) - set(counted) == {FRONT}


def test_the_navigation_names_only_pages_that_are_there() -> None:
    listed = {f"docs/{folder}/{page}" for folder, groups in SECTIONS.items() for g in groups.values() for page in g}
    assert listed - set(DOCS) == set()


def test_each_folder_has_a_page_in_front() -> None:
    folders = {p.parent.name for p in ROOT.glob("docs/*/*.md")}
    assert folders == set(SECTIONS)
    assert all((ROOT / "docs" / folder / f"{FRONT}.md").is_file() for folder in folders)
