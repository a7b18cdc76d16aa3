"""Hash chains over the audit log, with the entries of operators separate from those that tenants can cause.

Older code writes entries without a chain and a hash. The next change by newer code chains them; see `store.audit_chain`.

Revision: 0010.
"""

import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from alembic import op

from forewarn.core.audit_chain import Chain, ChainHead, choose_chain, hash_entry
from forewarn.core.model import AuditEntry, EntryKind

revision = "0010"
down_revision = "0009"

_PIECE = 5000
_TOLD_EVERY = 100_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COMMENT = "The last entry of each run of the audit log that retention has forgotten: there the chain goes on."
_IS_AUDIT = "chain = 'audit'"
_CONTENT = (
    "sequence", "at", "kind", "actor", "maintenance_id", "event_id", "audience", "vm", "source_address", "api_version",
    "reason",
)  # fmt: skip

_audit_log = sa.table("audit_log", *(sa.column(name) for name in _CONTENT), sa.column("chain"), sa.column("hash"))
_meta = sa.table("meta", sa.column("key"), sa.column("value"))
_log = logging.getLogger("forewarn.store.migrate")


def upgrade() -> None:
    """Add columns that older code works without, and fill them, a limited number of rows at a time."""
    op.add_column("audit_log", sa.Column("chain", sa.String(), nullable=True))
    op.add_column("audit_log", sa.Column("hash", sa.LargeBinary(32), nullable=True))
    op.create_table(
        "audit_log_forgotten",
        sa.Column("chain", sa.String(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
        sa.PrimaryKeyConstraint("chain", "sequence", name="pk_audit_log_forgotten"),
        comment=_COMMENT,
    )
    _fill(op.get_bind())
    where = sa.text(_IS_AUDIT)
    op.create_index(
        "ix_audit_log_audit", "audit_log", ["sequence"], unique=False, sqlite_where=where, postgresql_where=where
    )


def _fill(connection: sa.Connection) -> None:
    if connection.dialect.name != "sqlite":  # a busy machine may pause between two of a thousand pieces
        connection.execute(sa.text("SET LOCAL idle_in_transaction_session_timeout = 0"))
    heads = {chain: ChainHead() for chain in Chain}
    after, done, told = -1, 0, 0
    query = sa.select(*(_audit_log.c[name] for name in _CONTENT)).order_by(_audit_log.c.sequence).limit(_PIECE)
    while found := connection.execute(query.where(_audit_log.c.sequence > after)).mappings().all():
        after = found[-1]["sequence"]
        _write(connection, [_linked(heads, dict(row)) for row in found])
        done += len(found)
        if done - told >= _TOLD_EVERY:
            told = done
            _log.info("%d audit log entries are chained", done)
    if not done:
        return  # a new database stays without rows; no heads means that both chains are empty
    counter = connection.execute(sa.select(_meta.c.value).where(_meta.c.key == "sequence")).scalar()
    value = json.dumps({"counter": int(counter or 0)} | {chain.value: str(heads[chain]) for chain in Chain})
    connection.execute(sa.insert(_meta).values(key="audit_log_heads", value=value))


def _linked(heads: dict[Chain, ChainHead], row: dict[str, Any]) -> tuple[int, str, bytes]:
    kind, at = EntryKind(row.pop("kind")), _EPOCH + timedelta(microseconds=row.pop("at"))
    entry = AuditEntry(kind=kind, at=at, **row)
    chain = choose_chain(entry)
    digest = hash_entry(heads[chain].hash, chain, entry.sequence, entry)
    heads[chain] = ChainHead(sequence=entry.sequence, hash=digest)
    return entry.sequence, chain.value, digest


def _write(connection: sa.Connection, rows: list[tuple[int, str, bytes]]) -> None:
    if connection.dialect.name == "sqlite":
        update = "UPDATE audit_log SET chain = ?, hash = ? WHERE sequence = ?"
        connection.exec_driver_sql(update, [(chain, digest, sequence) for sequence, chain, digest in rows])
        return
    update = (
        "UPDATE audit_log SET chain = new.chain, hash = new.hash "
        "FROM unnest(%s::bigint[], %s::varchar[], %s::bytea[]) AS new (sequence, chain, hash) "
        "WHERE audit_log.sequence = new.sequence"
    )
    connection.exec_driver_sql(update, tuple(list(column) for column in zip(*rows, strict=True)))


def downgrade() -> None:
    """Remove them."""
    op.drop_index("ix_audit_log_audit", table_name="audit_log")
    connection = op.get_bind()
    connection.execute(sa.delete(_meta).where(_meta.c.key == "audit_log_heads"))
    op.drop_table("audit_log_forgotten")
    with op.batch_alter_table("audit_log") as batch:
        batch.drop_column("hash")
        batch.drop_column("chain")
