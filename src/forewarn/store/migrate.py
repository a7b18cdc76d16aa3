"""Upgrade of a database to the newest schema.

Replicas are upgraded one after the other, so for a while old code works on a new schema. If old code can work with the
result of a migration (such as one more nullable column, or one more table), the migration records in the table `meta`
the oldest revision whose code can. It keeps the record of an earlier migration, as that one still holds. If old code
cannot, the migration removes the record, and old code refuses the database.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from forewarn.errors import StoreCorrupt

__all__ = ["COMPATIBLE_SINCE", "HEAD", "MIGRATIONS", "upgrade_schema"]

COMPATIBLE_SINCE = "compatible_since"
"""Key in `meta` of the oldest revision whose code can work with this schema."""

# Written out: Alembic could be asked, but importing it would take a fifth of a second at each start.
HEAD = "0002"
"""The newest revision under `migrations/versions`; a test checks that they match."""

MIGRATIONS = Path(__file__).parent / "migrations"
"""Folder of Alembic's environment, with all revisions."""

_HALTED_S = 60
"""Time without a statement after which PostgreSQL ends a migration whose process was halted."""


def upgrade_schema(connection: sa.Connection) -> None:
    """Run the missing migrations; quick if there are none.

    Raises:
        StoreCorrupt: The schema is of a version unknown to this one, or it is not ours.
    """
    revision = None
    tables = set(sa.inspect(connection).get_table_names())
    if "alembic_version" in tables:
        revision = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
        if revision == HEAD or _is_compatible(connection, revision):
            return
    foreign = sorted(tables - {"alembic_version"})
    # Alembic would create our tables among those of another program.
    if foreign and ("meta" not in tables or revision is None):
        names = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")  # noqa: PLR2004 - enough to recognize it
        raise StoreCorrupt(f"the database has tables of another program ({names}): use an empty database")
    from alembic import command  # noqa: PLC0415 - a fifth of a second to import, and needed once in a database's life
    from alembic.config import Config  # noqa: PLC0415 - see above
    from alembic.util import CommandError  # noqa: PLC0415 - see above

    config = Config()
    # Alembic interpolates options: a % in the path has to be doubled.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    if connection.dialect.name == "postgresql":
        # On a busy machine, two statements of a migration may be further apart than the usual time-out allows.
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{_HALTED_S}s'")
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        msg = f"the database has unknown schema {revision}: use the version of Forewarn that wrote it, or a newer one"
        raise StoreCorrupt(msg) from error


def _is_compatible(connection: sa.Connection, revision: str | None) -> bool:
    """Return True if the schema is a later one that records that our code can work with it."""
    # Revisions are numbers of four digits, so they can be compared as text.
    if revision is None or revision <= HEAD or not sa.inspect(connection).has_table("meta"):
        return False
    query = sa.text("SELECT value FROM meta WHERE key = :key")
    since = connection.execute(query, {"key": COMPATIBLE_SINCE}).scalar()
    return since is not None and str(since) <= HEAD
