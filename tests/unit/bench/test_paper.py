"""The paper on scale holds what the kept measurements say."""

from __future__ import annotations

import json

import pytest

from bench.paper import NEEDED, PAGE, PICTURE, costs_of, render
from bench.report import JSON_FILE


@pytest.fixture(scope="module")
def parts() -> dict[str, object]:
    found: dict[str, object] = json.loads(JSON_FILE.read_text(encoding="utf-8"))["parts"]
    assert found.keys() >= NEEDED
    return found


def test_parameters_come_from_the_measurements(parts: dict[str, object]) -> None:
    costs = costs_of(parts)
    assert 0 < costs.tell_s < costs.join_s < 0.1
    assert 0 < costs.approval_s < 1
    assert 0 < costs.commit_s < 1


def test_the_page_is_that_of_the_measurements(parts: dict[str, object]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for table in render(parts).values():
        assert table in page
    assert PICTURE.is_file()
