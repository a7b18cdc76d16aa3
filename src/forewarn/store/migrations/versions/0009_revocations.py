"""Used login links and logged-out sessions: no replica accepts them again.

Revision: 0009.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add a table unknown to older code."""
    op.create_table(
        "revocation",
        sa.Column("nonce", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("nonce", name=op.f("pk_revocation")),
        comment="Login links that were used and sessions that were logged out of, until they expire.",
    )
    op.create_index(op.f("ix_revocation_expires_at"), "revocation", ["expires_at"], unique=False)
    op.create_index("ix_revocation_actor_expires_at", "revocation", ["actor", "expires_at"], unique=False)


def downgrade() -> None:
    """Remove it."""
    op.drop_index("ix_revocation_actor_expires_at", table_name="revocation")
    op.drop_index(op.f("ix_revocation_expires_at"), table_name="revocation")
    op.drop_table("revocation")
