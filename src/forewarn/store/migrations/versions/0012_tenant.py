"""The tenant that requested a maintenance.

Revision: 0012.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_INDEX = "ix_maintenance_tenant"


def upgrade() -> None:
    """Add a column that older code works without; earlier requests of tenants are not counted."""
    op.add_column("maintenance", sa.Column("tenant_key", sa.String(), nullable=True))
    where = sa.text("tenant_key IS NOT NULL")
    columns = ["tenant_key", "created_at"]
    op.create_index(_INDEX, "maintenance", columns, unique=False, sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    """Remove it."""
    op.drop_index(_INDEX, table_name="maintenance")
    op.drop_column("maintenance", "tenant_key")
