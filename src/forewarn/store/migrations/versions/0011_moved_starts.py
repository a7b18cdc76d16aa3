"""The flag for an immediate start if no VM can be warned, and the effect of quiet hours on NotBefore.

Revision: 0011.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add columns that older code works without."""
    flag: sa.Column[bool] = sa.Column("is_at_once_unwarned", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("maintenance", flag)
    op.add_column("maintenance", sa.Column("moved_from", sa.BigInteger(), nullable=True))
    op.add_column("maintenance", sa.Column("moved_by", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Remove them."""
    for name in ("moved_by", "moved_from", "is_at_once_unwarned"):
        op.drop_column("maintenance", name)
