"""Formats of lists, members of items, and their order."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.cli.list_format import ListFormat, parse_list_format, read_member, sort_items


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("name", "a"),
        ("labels.rack", "r1"),
        ("labels.a.b", "dotted"),
        ("labels.none", None),
        ("none", None),
        ("name.rack", None),
        ("events.id", ["E1", "E2"]),
        ("events.none", []),
    ],
)
def test_a_member_is_found_by_its_path(member: str, value: object) -> None:
    item = {"name": "a", "labels": {"rack": "r1", "a.b": "dotted"}, "events": [{"id": "E1"}, {"id": "E2"}]}
    assert read_member(item, member) == value


@pytest.mark.parametrize(
    ("values", "order"),
    [
        ([10, 9, None, 0.5], [0.5, 9, 10, None]),
        (["b", None, "a"], ["a", "b", None]),
        # As text, the fraction would come first.
        (
            ["2030-01-01T00:00:00.5Z", "2030-01-01T00:00:00Z", "2029-01-01T00:00:00Z"],
            ["2029-01-01T00:00:00Z", "2030-01-01T00:00:00Z", "2030-01-01T00:00:00.5Z"],
        ),
        ([["b"], ["a", "c"], []], [["a", "c"], ["b"], []]),
        ([True, False], [False, True]),
        (["x", 1, None], [1, "x", None]),
    ],
)
def test_values_have_an_order_and_missing_ones_come_last(values: list[Any], order: list[Any]) -> None:
    items = [{"value": value} for value in values]
    assert [item["value"] for item in sort_items(items, "value")] == order
    backwards = [value for value in reversed(order) if value not in (None, [])]
    missing = [value for value in order if value in (None, [])]
    assert [item["value"] for item in sort_items(items, "-value")] == backwards + missing


def test_equal_values_keep_their_order_both_ways() -> None:
    items = [{"value": 1, "name": "a"}, {"value": 1, "name": "b"}]
    assert sort_items(items, "value") == items
    assert sort_items(items, "-value") == items


def test_an_empty_list_has_any_member() -> None:
    assert sort_items([], "nope") == []


def test_the_default_is_a_table() -> None:
    assert parse_list_format(None) == ListFormat()
