"""The time and the reason of a host's reported failure.

Revision: 0008.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add columns that older code works without."""
    op.add_column("host", sa.Column("failed_at", sa.BigInteger(), nullable=True))
    op.add_column("host", sa.Column("failure_reason", sa.String(), nullable=True))


def downgrade() -> None:
    """Remove them."""
    op.drop_column("host", "failure_reason")
    op.drop_column("host", "failed_at")
