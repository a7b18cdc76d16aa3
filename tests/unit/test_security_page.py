"""The page on security names tests; it must not name any that is gone."""

from __future__ import annotations

import re

import pytest

from tests.support.documents import ROOT

PAGE = (ROOT / "docs/explanation/security.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


def test_it_names_tests() -> None:
    assert len(NAMED) > 15


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_every_test_that_is_named_exists(file: str, name: str) -> None:
    assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE)


def test_every_row_of_a_threat_names_its_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| it ", "| they "))]
    assert rows
    assert [row for row in rows if "::test_" not in row] == []
