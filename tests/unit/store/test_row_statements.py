from __future__ import annotations

from forewarn.store import tables as t
from forewarn.store.row_statements import insert_rows, update_rows, upsert_rows


def test_sqlite_gets_a_parameter_for_each_value() -> None:
    made = insert_rows(t.meta, ("key", "value"), "sqlite")
    assert made.sql == 'INSERT INTO meta ("key", value) VALUES (?, ?)'
    assert not made.is_json


def test_postgresql_gets_all_rows_as_one_parameter() -> None:
    made = insert_rows(t.meta, ("key", "value"), "postgresql")
    assert made.sql.startswith("INSERT INTO meta (key, value) SELECT key, value FROM json_populate_recordset(")
    assert made.sql.count("%s") == 1
    assert made.is_json


def test_a_row_that_exists_is_replaced_except_for_its_key() -> None:
    made = upsert_rows(t.meta, ("key", "value"), "sqlite")
    assert made.sql.endswith(' ON CONFLICT ("key") DO UPDATE SET value = excluded.value')
    assert made.keys == (0,)


def test_an_update_names_the_row_last() -> None:
    made = update_rows(t.event, ("approved_at", "approved_by"), "sqlite")
    assert made.sql == "UPDATE event SET approved_at = ?, approved_by = ? WHERE id = ?"
    assert made.names == ("approved_at", "approved_by", "id")
