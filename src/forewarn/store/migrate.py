"""Bringing a database to the newest schema."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from forewarn.errors import StoreCorrupt

__all__ = ["HEAD", "upgrade"]

HEAD = "0002"
"""The newest revision under `migrations/versions`; a test holds the two together."""


def upgrade(connection: sa.Connection) -> None:
    """Run the migrations that are missing; quick when there are none.

    Raises:
        StoreCorrupt: The schema is of a version that this one does not know.
    """
    revision = None
    if sa.inspect(connection).has_table("alembic_version"):
        revision = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
        if revision == HEAD:
            return
    from alembic import command  # noqa: PLC0415 - a fifth of a second to import, and needed once in a database's life
    from alembic.config import Config  # noqa: PLC0415 - see above
    from alembic.util import CommandError  # noqa: PLC0415 - see above

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        msg = f"the database has schema {revision}, unknown here: use the Forewarn that wrote it, or a newer one"
        raise StoreCorrupt(msg) from error
