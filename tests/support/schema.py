"""New SQLite databases get their schema from one that was made by the migrations, as those on PostgreSQL do.

Tests open hundreds of new databases, and to run all migrations takes thirty times as long as what they make.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from forewarn.store import sql
from forewarn.store.migrate import upgrade_schema

__all__ = ["copied_schema"]

_TRANSACTION = ("BEGIN TRANSACTION;", "COMMIT;")


@contextmanager
def copied_schema() -> Iterator[None]:
    """Until the block ends, the migrations run for the first new database of SQLite, and for any that is not new."""
    statements: list[str] = []

    def upgrade_or_copy(connection: sa.Connection) -> None:
        is_new = connection.dialect.name == "sqlite" and not sa.inspect(connection).get_table_names()
        if is_new and statements:
            for statement in statements:
                connection.exec_driver_sql(statement)
            return
        upgrade_schema(connection)
        if is_new:
            database = connection.connection.driver_connection
            assert database is not None
            statements.extend(each for each in database.iterdump() if each not in _TRANSACTION)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql, "upgrade_schema", upgrade_or_copy)
        yield
