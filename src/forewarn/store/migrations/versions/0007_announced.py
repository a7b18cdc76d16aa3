"""When a maintenance was announced, which for one that had to queue is later than its creation.

Revision: 0007.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add a column that the code before this does without."""
    op.add_column("maintenance", sa.Column("announced_at", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Take it away."""
    op.drop_column("maintenance", "announced_at")
