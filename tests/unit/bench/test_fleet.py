"""The fleets of the benchmark follow the schema of the database."""

from __future__ import annotations

import pytest

from bench.fleet import COPIED
from forewarn.store.tables import metadata


@pytest.mark.parametrize(("table", "key", "changed"), [row[:3] for row in COPIED], ids=[row[0] for row in COPIED])
def test_a_table_that_is_copied_is_in_the_schema(table: str, key: str, changed: dict[str, str]) -> None:
    columns = {column.name for column in metadata.tables[table].columns}
    assert {key, *changed} <= columns
