"""Where ids come from."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from forewarn.util.ids import SeededIds, make_random_id

GUID = re.compile(r"[0-9A-F]{8}-[0-9A-F]{4}-4[0-9A-F]{3}-[89AB][0-9A-F]{3}-[0-9A-F]{12}")
SHORT = re.compile(r"[0-9a-z]{10}")


@pytest.mark.parametrize("source", [make_random_id, SeededIds(1)])
def test_an_event_gets_an_upper_case_guid_and_the_rest_a_short_id(source: Callable[[str], str]) -> None:
    """R30, A8."""
    events = {source("event") for _ in range(1000)}
    others = {source("maintenance") for _ in range(1000)}
    assert len(events) == len(others) == 1000
    assert all(GUID.fullmatch(id_) for id_ in events)
    assert all(SHORT.fullmatch(id_) for id_ in others)
    assert not any(letter in id_ for id_ in others for letter in "ilou"), "none that are taken for another"


def test_the_same_seed_makes_the_same_ids() -> None:
    kinds = ["event", "maintenance", "event"]
    first, second, other = SeededIds(7), SeededIds(7), SeededIds(8)
    made = [first(kind) for kind in kinds]
    assert made == [second(kind) for kind in kinds]
    assert made != [other(kind) for kind in kinds]


def test_random_ids_follow_from_no_seed() -> None:
    assert make_random_id("event") != make_random_id("event")
