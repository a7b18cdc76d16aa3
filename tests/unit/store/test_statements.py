from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from forewarn.store import statements
from forewarn.store import tables as t

QUERIES = {name: found for name in statements.__all__ if isinstance(found := getattr(statements, name), sa.Select)} | {
    f"{column.table.name}.{column.name}": statements.select_by_key(column)
    for column in (t.audience.c.key, t.event.c.id, t.event.c.maintenance_id, t.maintenance.c.id, t.vm.c.host)
}
DIALECT: sa.Dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
TEXTS = {name: str(query.compile(dialect=DIALECT)) for name, query in QUERIES.items()}
BY_KEY = {name: text for name, text in TEXTS.items() if f"%({statements.KEYS})s" in text}


def test_most_queries_are_by_key() -> None:
    assert len(BY_KEY) > 10


@pytest.mark.parametrize("text", BY_KEY.values(), ids=list(BY_KEY))
def test_postgresql_gets_the_same_text_for_any_number_of_keys(text: str) -> None:
    assert "= ANY (%(keys)s)" in text


def test_sqlite_gets_a_parameter_for_each_key() -> None:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        t.metadata.create_all(connection)
        texts: list[str] = []
        sa.event.listen(connection, "before_cursor_execute", lambda *given: texts.append(given[2]))
        assert connection.execute(statements.EVENT_AUDIENCES, {statements.KEYS: ["a", "b"]}).all() == []
    engine.dispose()
    assert [text.split("WHERE ")[1] for text in texts] == ["event.id IN (?, ?)"]
