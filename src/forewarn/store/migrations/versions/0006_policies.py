"""Columns for policies: the policies, the latest start of a maintenance, and its deferrals and extensions.

Revision: 0006.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add columns that older code works without."""
    op.add_column("scope", sa.Column("policy", sa.JSON(), nullable=True))
    op.add_column("vm", sa.Column("policy", sa.JSON(), nullable=True))
    op.add_column("maintenance", sa.Column("latest_start", sa.BigInteger(), nullable=True))
    op.add_column("maintenance", sa.Column("deferrals", sa.Integer(), server_default="0", nullable=False))
    op.add_column("maintenance", sa.Column("extensions", sa.Integer(), server_default="0", nullable=False))
    op.add_column("maintenance", sa.Column("extended", sa.BigInteger(), server_default="0", nullable=False))


def downgrade() -> None:
    """Remove them."""
    for column in ("extended", "extensions", "deferrals", "latest_start"):
        op.drop_column("maintenance", column)
    op.drop_column("vm", "policy")
    op.drop_column("scope", "policy")
