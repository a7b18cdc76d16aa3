"""The pages on security and testing name tests and properties; they must not name any that is gone."""

from __future__ import annotations

import re

import pytest

from forewarn.testing.simulation.properties import PROPERTIES
from tests.simulation.bugs.bugs import BUGS
from tests.support.documents import ROOT

SECURITY, TESTING = ((ROOT / f"docs/explanation/{name}.md").read_text() for name in ("security", "testing"))
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", SECURITY + TESTING)))


def test_they_name_tests() -> None:
    assert len(NAMED) > 25


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_every_test_that_is_named_exists(file: str, name: str) -> None:
    assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE)


def test_every_row_of_a_threat_names_its_test() -> None:
    lines = [line for line in SECURITY.splitlines() if line.startswith("| ")]
    rows = [line for line in lines if not line.startswith(("| it ", "| they "))]
    assert rows
    assert [row for row in rows if "::test_" not in row] == []


def test_every_property_that_is_named_exists() -> None:
    sentences = re.findall(r"[Pp]ropert(?:y|ies) ((?:`\w+`(?:, | and )?)+)", TESTING)
    named = {name for sentence in sentences for name in re.findall(r"`(\w+)`", sentence)}
    assert len(named) > 8
    assert named <= {each.__name__ for each in PROPERTIES}


def test_the_number_of_planted_bugs_is_right() -> None:
    assert f"plants {len(BUGS)} bugs" in TESTING
