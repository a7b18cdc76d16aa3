"""Labels of hosts, scopes and VMs.

Revision: 0002. Code of 0001 can work with it: it neither reads nor writes the new columns.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_LABELLED = ("host", "scope", "vm")


def upgrade() -> None:
    """Add a column to each table of labelled objects, and record the oldest revision whose code still works."""
    for table in _LABELLED:
        op.add_column(table, sa.Column("labels", sa.JSON))
    meta = sa.table("meta", sa.column("key", sa.String), sa.column("value", sa.String))
    op.execute(meta.delete().where(meta.c.key == "compatible_since"))
    op.execute(meta.insert().values(key="compatible_since", value="0001"))


def downgrade() -> None:
    """Drop the columns."""
    for table in _LABELLED:
        op.drop_column(table, "labels")
