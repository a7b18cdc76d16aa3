"""Tokens of people, beside those of hosts.

The tokens of hosts are copied, and also stay in the old table: a replica of the version before knows only that one, and
may make and revoke some while the others are upgraded.

Revision: 0003.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_PIECE_ROWS = 500

_TOKEN = sa.table(
    "token",
    *(sa.column(name) for name in ("id", "name", "role", "host", "digest", "created_at", "created_by", "revoked_at")),
    sa.column("scopes", sa.JSON),
    sa.column("vms", sa.JSON),
)
_HOST_TOKEN = sa.table(
    "host_token", *(sa.column(name) for name in ("id", "host", "digest", "created_at", "revoked_at"))
)
_META = sa.table("meta", sa.column("key"), sa.column("value"))


def upgrade() -> None:
    """Add a table unknown to older code, and record that this code can work with the schema."""
    op.create_table(
        "token",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("vms", sa.JSON(), nullable=False),
        sa.Column("host", sa.String(), nullable=True),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_token")),
        sa.UniqueConstraint("digest", name=op.f("uq_token_digest")),
        comment="Bearer tokens. Those of hosts stand in host_token as well, as long as older replicas may serve.",
    )
    op.create_index(op.f("ix_token_host"), "token", ["host"], unique=False)
    connection = op.get_bind()
    rows = connection.execute(sa.select(_HOST_TOKEN)).mappings()
    for piece in rows.partitions(_PIECE_ROWS):
        also = {"role": "host", "scopes": [], "vms": [], "created_by": ""}
        connection.execute(sa.insert(_TOKEN), [{**row, **also, "name": row["host"]} for row in piece])
    connection.execute(sa.delete(_META).where(_META.c.key == "compatible_since"))
    connection.execute(sa.insert(_META), [{"key": "compatible_since", "value": "0002"}])


def downgrade() -> None:
    """Remove it."""
    op.get_bind().execute(sa.delete(_META).where(_META.c.key == "compatible_since"))
    op.drop_index(op.f("ix_token_host"), table_name="token")
    op.drop_table("token")
