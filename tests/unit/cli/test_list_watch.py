"""Changes between two readings of a list."""

from __future__ import annotations

import pytest

from forewarn.cli.list_watch import RowWriter, find_changes
from forewarn.cli.output import Column, Output


def test_items_are_added_changed_and_removed() -> None:
    before = [{"id": "a", "state": 1}, {"id": "b", "state": 1}, {"id": "c", "state": 1}]
    after = [{"id": "d", "state": 1}, {"id": "b", "state": 2}, {"id": "c", "state": 1}]
    assert find_changes(before, after, is_more=False) == [
        ("removed", {"id": "a", "state": 1}),
        ("added", {"id": "d", "state": 1}),
        ("changed", {"id": "b", "state": 2}),
    ]


def test_an_item_that_may_be_further_down_is_not_removed() -> None:
    assert find_changes([{"name": "a"}], [{"name": "b"}], is_more=True) == [("added", {"name": "b"})]


def test_columns_grow_with_their_cells(capsys: pytest.CaptureFixture[str]) -> None:
    writer, columns = RowWriter(Output()), [Column("name"), Column("host")]
    writer.print_rows(columns, [("listed", {"name": "a", "host": None})])
    writer.print_rows(columns, [("added", {"name": "longer", "host": "h\x1b"})])
    writer.print_rows(columns, [("changed", {"name": "a", "host": "h2"})])
    assert capsys.readouterr().out.splitlines() == [
        "CHANGE  NAME  HOST",
        "listed  a     -",
        "added   longer  h\\x1b",
        "changed  a       h2",
    ]
