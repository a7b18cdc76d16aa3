"""The time of announcement, which is later than the creation for a maintenance that had to queue.

Revision: 0007.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add a column that older code works without."""
    op.add_column("maintenance", sa.Column("announced_at", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Remove it."""
    op.drop_column("maintenance", "announced_at")
