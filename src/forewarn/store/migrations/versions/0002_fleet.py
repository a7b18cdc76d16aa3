"""Columns and tables for replicas: the start of execution, the order of document changes, and a lease.

Revision: 0002.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add a column that older code works without, and tables unknown to it."""
    op.add_column("maintenance", sa.Column("begun_at", sa.BigInteger(), nullable=True))
    op.create_table(
        "feed",
        sa.Column("audience", sa.String(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("audience", name=op.f("pk_feed")),
        comment="When each document changed last, by the counter; the inventory has the empty name.",
    )
    op.create_index(op.f("ix_feed_sequence"), "feed", ["sequence"], unique=False)
    op.create_table(
        "host_token",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_host_token")),
        sa.UniqueConstraint("digest", name=op.f("uq_host_token_digest")),
    )
    op.create_index(op.f("ix_host_token_host"), "host_token", ["host"], unique=False)
    op.create_table(
        "rollout",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("is_ended", sa.Boolean(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollout")),
    )
    op.create_index("ix_rollout_is_ended_created_at", "rollout", ["is_ended", "created_at"], unique=False)
    op.create_table(
        "lease",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_lease")),
        comment="Which replica carries out what is due, for how long by the database's clock, and how often that changed.",
    )


def downgrade() -> None:
    """Remove them."""
    op.drop_table("lease")
    op.drop_index("ix_rollout_is_ended_created_at", table_name="rollout")
    op.drop_table("rollout")
    op.drop_index(op.f("ix_host_token_host"), table_name="host_token")
    op.drop_table("host_token")
    op.drop_index(op.f("ix_feed_sequence"), table_name="feed")
    op.drop_table("feed")
    op.drop_column("maintenance", "begun_at")
