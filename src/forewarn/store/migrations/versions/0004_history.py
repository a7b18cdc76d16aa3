"""Claims that stay after the end of a maintenance, and indexes for the questions of people about the history.

Older code deletes claims when a maintenance ends, and makes rows that are active by default and name no host.
`Transaction.restore_claims` then fills in the missing parts.

Revision: 0004.
"""

import json
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_PIECE = 500
_COMMENT = "Which VMs, scopes and hosts a maintenance touches or has touched; while it is active, it holds them."
_COMMENT_BEFORE = "Which VMs and scopes the active maintenances hold; rows go when a maintenance ends."
_INDEXES = {
    "claim": {"ix_claim_host": ["host"]},
    "audit_log": {
        "ix_audit_log_kind_sequence": ["kind", "sequence"],
        "ix_audit_log_actor_sequence": ["actor", "sequence"],
        "ix_audit_log_vm": ["vm"],
        "ix_audit_log_audience": ["audience"],
    },
}
_PARTIAL = {
    "ix_claim_vm_active": ("claim", "vm", "is_active"),
    "ix_claim_scope_active": ("claim", "scope", "is_active"),
}

_maintenance = sa.table(
    "maintenance", sa.column("id"), sa.column("sequence"), sa.column("ended_at"), sa.column("claims")
)
_claim = sa.table(
    "claim",
    sa.column("maintenance_id"),
    sa.column("vm"),
    sa.column("scope"),
    sa.column("host"),
    sa.column("is_active", sa.Boolean()),
)
_meta = sa.table("meta", sa.column("key"), sa.column("value"))


def upgrade() -> None:
    """Add columns that older code works without, fill them, and add indexes."""
    op.add_column("claim", sa.Column("host", sa.String(), nullable=True))
    op.add_column("claim", sa.Column("is_active", sa.Boolean(), server_default=sa.true(), nullable=False))
    _fill(op.get_bind())
    for table, indexes in _INDEXES.items():
        for name, columns in indexes.items():
            op.create_index(name, table, columns, unique=False)
    for name, (table, column, word) in _PARTIAL.items():
        _create_partial(name, table, column, word)
    if op.get_bind().dialect.name == "sqlite":  # SQLite used the old index for no query: see `tables`
        op.drop_index("ix_event_audience_listed", "event")
        _create_partial("ix_event_audience_listed", "event", "audience", "is_listed")
    else:
        op.create_table_comment("claim", _COMMENT, existing_comment=_COMMENT_BEFORE)
    _say_compatible(op.get_bind())


def _create_partial(name: str, table: str, column: str, word: str) -> None:
    sqlite, postgresql = sa.text(f"{word} = 1"), sa.text(word)
    op.create_index(name, table, [column], unique=False, sqlite_where=sqlite, postgresql_where=postgresql)


def _fill(connection: sa.Connection) -> None:
    """Rebuild the rows of every maintenance from its own record, one piece at a time."""
    if connection.dialect.name != "sqlite":  # a busy machine may pause between two of a thousand pieces
        connection.execute(sa.text("SET LOCAL idle_in_transaction_session_timeout = 0"))
    connection.execute(sa.delete(_claim))
    after = -1
    query = sa.select(_maintenance).order_by(_maintenance.c.sequence).limit(_PIECE)
    while found := connection.execute(query.where(_maintenance.c.sequence > after)).all():
        after = found[-1].sequence
        rows = [
            {"maintenance_id": m.id, "vm": vm, "scope": scope, "host": host, "is_active": m.ended_at is None}
            for m in found
            for vm, host, scope, _ in (json.loads(m.claims) if isinstance(m.claims, str) else m.claims)
        ]
        if rows:
            connection.execute(sa.insert(_claim), rows)
    last = connection.execute(sa.select(sa.func.max(_maintenance.c.ended_at))).scalar()
    if last is not None:  # maintenances that an older replica ends from here on are mended later
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=last)
        connection.execute(sa.insert(_meta).values(key="claims_whole_until", value=moment.isoformat()))


def _say_compatible(connection: sa.Connection) -> None:
    """Record that code of the previous revision may go on; an earlier record still holds."""
    key = "compatible_since"
    if connection.execute(sa.select(_meta.c.value).where(_meta.c.key == key)).first() is None:
        connection.execute(sa.insert(_meta).values(key=key, value=down_revision))


def downgrade() -> None:
    """Remove them, and the claims of ended maintenances."""
    for name, (table, _, _) in _PARTIAL.items():
        op.drop_index(name, table_name=table)
    for table, indexes in _INDEXES.items():
        for name in indexes:
            op.drop_index(name, table_name=table)
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        op.create_table_comment("claim", _COMMENT_BEFORE, existing_comment=_COMMENT)
    connection.execute(sa.delete(_claim).where(_claim.c.is_active.is_(sa.false())))
    with op.batch_alter_table("claim") as batch:
        batch.drop_column("is_active")
        batch.drop_column("host")
