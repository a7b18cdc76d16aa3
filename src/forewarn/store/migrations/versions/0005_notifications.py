"""Tables for notifications: subscriptions, deliveries that did not get through at once, and the times of looks.

Revision: 0005.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add tables unknown to older code."""
    op.create_table(
        "look",
        sa.Column("maintenance_id", sa.String(), nullable=False),
        sa.Column("announced_at", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("maintenance_id", name=op.f("pk_look")),
        comment="When to see whether a maintenance was seen by its VMs, and is not late.",
    )
    op.create_index(op.f("ix_look_at"), "look", ["at"], unique=False)
    op.create_table(
        "subscription",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("secret", sa.String(), nullable=False),
        sa.Column("former_secret", sa.String(), nullable=True),
        sa.Column("former_until", sa.BigInteger(), nullable=True),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("vms", sa.JSON(), nullable=False),
        sa.Column("kinds", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("is_given_up", sa.Boolean(), nullable=False),
        sa.Column("cursor", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("failing_since", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_subscription")),
        sa.UniqueConstraint("name", name=op.f("uq_subscription_name")),
        comment="Who is told of what happens; the cursor says up to which audit log entry.",
    )
    op.create_table(
        "delivery",
        sa.Column("subscription_id", sa.String(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("last_error", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("subscription_id", "sequence", "subject", name=op.f("pk_delivery")),
        comment="What is being tried again for a subscription, and what was given up.",
    )
    op.create_index("ix_delivery_subscription_id_state", "delivery", ["subscription_id", "state"], unique=False)
    op.create_index(op.f("ix_delivery_at"), "delivery", ["at"], unique=False)
    op.execute(
        "INSERT INTO meta (key, value) SELECT 'compatible_since', '0002' "
        "WHERE NOT EXISTS (SELECT 1 FROM meta WHERE key = 'compatible_since')"
    )


def downgrade() -> None:
    """Remove them."""
    op.drop_index(op.f("ix_delivery_at"), table_name="delivery")
    op.drop_index("ix_delivery_subscription_id_state", table_name="delivery")
    op.drop_table("delivery")
    op.drop_table("subscription")
    op.drop_index(op.f("ix_look_at"), table_name="look")
    op.drop_table("look")
