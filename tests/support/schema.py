"""The schema of databases under test: copied rather than migrated, or older than the code.

New SQLite databases get their schema from one that was made by the migrations, as those on PostgreSQL do: tests open
hundreds of new databases, and to run the migrations takes thirty times as long as what they make.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree

import pytest
import sqlalchemy as sa

from forewarn.store import copying, migrate, sql
from forewarn.store.migrate import HEAD, MIGRATIONS, upgrade_schema

__all__ = ["NEXT", "copied_schema", "next_version"]

_TRANSACTION = ("BEGIN TRANSACTION;", "COMMIT;")

NEXT = f"{int(HEAD) + 1:04}"
"""Revision of the schema of the next version, with which code of this version cannot work."""

_NEXT_MIGRATION = f"""
import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{HEAD}"


def upgrade() -> None:
    op.add_column("host", sa.Column("to_come", sa.String()))
    meta = sa.table("meta", sa.column("key"))
    op.execute(meta.delete().where(meta.c.key == "compatible_since"))


def downgrade() -> None:
    op.drop_column("host", "to_come")
"""


@contextmanager
def copied_schema() -> Iterator[None]:
    """Until the block ends, the migrations run for the first new database of SQLite, and for any that is not new."""
    statements: list[str] = []

    def upgrade_or_copy(connection: sa.Connection) -> None:
        is_new = (
            migrate.HEAD == HEAD
            and connection.dialect.name == "sqlite"
            and not sa.inspect(connection).get_table_names()
        )
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


@contextmanager
def next_version(folder: Path) -> Iterator[None]:
    """Until the block ends, the code is the next version's: what was made before has an older schema.

    Args:
        folder: A folder that is not there yet, for the migrations of that version.
    """
    copytree(MIGRATIONS, folder)
    (folder / "versions" / f"{NEXT}_next.py").write_text(_NEXT_MIGRATION)
    with pytest.MonkeyPatch.context() as patch:
        for module in (migrate, copying):
            patch.setattr(module, "HEAD", NEXT)
            patch.setattr(module, "MIGRATIONS", folder)
        yield
