"""Bringing a database to the newest schema.

Replicas are upgraded one after the other, so for a while old code works on a new schema. A migration that old code can
live with says since which revision that is so, in the table `meta`: a column more that may be empty, a table more. It
leaves what an earlier one has said there, for that still holds. One that old code cannot live with removes what is said
there, and old code refuses the database.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from forewarn.errors import StoreCorrupt

__all__ = ["COMPATIBLE_SINCE", "HEAD", "upgrade"]

COMPATIBLE_SINCE = "compatible_since"
"""The key in `meta` of the oldest revision whose code can live with this schema."""

HEAD = "0012"
"""The newest revision under `migrations/versions`; a test holds the two together."""


_HALTED_S = 60
"""After so long without a statement, PostgreSQL ends a migration whose process was halted."""


def upgrade(connection: sa.Connection) -> None:
    """Run the migrations that are missing; quick when there are none.

    Raises:
        StoreCorrupt: The schema is of a version that this one does not know, or it is not ours.
    """
    revision = None
    tables = set(sa.inspect(connection).get_table_names())
    if "alembic_version" in tables:
        revision = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
        if revision == HEAD or _can_live_with(connection, revision):
            return
    foreign = sorted(tables - {"alembic_version"})
    if foreign and ("meta" not in tables or revision is None):
        names = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")  # noqa: PLR2004 - enough to know it by
        msg = f"the database holds what is not Forewarn's (tables {names}): give Forewarn a database of its own"
        raise StoreCorrupt(msg)
    from alembic import command  # noqa: PLC0415 - a fifth of a second to import, and needed once in a database's life
    from alembic.config import Config  # noqa: PLC0415 - see above
    from alembic.util import CommandError  # noqa: PLC0415 - see above

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    if connection.dialect.name == "postgresql":
        # Between two of its statements, a busy machine may leave this alone for longer than it may leave a change.
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{_HALTED_S}s'")
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        msg = f"the database has schema {revision}, unknown here: use the Forewarn that wrote it, or a newer one"
        raise StoreCorrupt(msg) from error


def _can_live_with(connection: sa.Connection, revision: str | None) -> bool:
    """Whether the schema is a later one, and says that our code can live with it."""
    if revision is None or revision <= HEAD or not sa.inspect(connection).has_table("meta"):
        return False
    query = sa.text("SELECT value FROM meta WHERE key = :key")
    since = connection.execute(query, {"key": COMPATIBLE_SINCE}).scalar()
    return since is not None and str(since) <= HEAD
