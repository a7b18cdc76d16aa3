"""The first schema.

Revision: 0001.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_TABLES = (
    "address",
    "alert_check",
    "audience",
    "audit_log",
    "audit_log_forgotten",
    "claim",
    "delivery",
    "event",
    "feed",
    "host",
    "idempotency",
    "lease",
    "maintenance",
    "meta",
    "revocation",
    "rollout",
    "scope",
    "subscription",
    "token",
    "vm",
)

_INDEXES = {
    "ix_address_vm": ("address", "vm"),
    "ix_alert_check_at": ("alert_check", "at"),
    "ix_audience_active_until": ("audience", "active_until"),
    "ix_audit_log_actor_sequence": ("audit_log", "actor", "sequence"),
    "ix_audit_log_at": ("audit_log", "at"),
    "ix_audit_log_audience": ("audit_log", "audience"),
    "ix_audit_log_kind_sequence": ("audit_log", "kind", "sequence"),
    "ix_audit_log_maintenance_id": ("audit_log", "maintenance_id"),
    "ix_audit_log_vm": ("audit_log", "vm"),
    "ix_claim_host": ("claim", "host"),
    "ix_claim_scope": ("claim", "scope"),
    "ix_claim_vm": ("claim", "vm"),
    "ix_delivery_at": ("delivery", "at"),
    "ix_delivery_subscription_id_state": ("delivery", "subscription_id", "state"),
    "ix_event_maintenance_id": ("event", "maintenance_id"),
    "ix_feed_sequence": ("feed", "sequence"),
    "ix_idempotency_at": ("idempotency", "at"),
    "ix_maintenance_due_at": ("maintenance", "due_at"),
    "ix_maintenance_ended_at": ("maintenance", "ended_at"),
    "ix_maintenance_state_sequence": ("maintenance", "state", "sequence"),
    "ix_revocation_actor_expires_at": ("revocation", "actor", "expires_at"),
    "ix_revocation_expires_at": ("revocation", "expires_at"),
    "ix_rollout_is_ended_created_at": ("rollout", "is_ended", "created_at"),
    "ix_token_host": ("token", "host"),
    "ix_vm_host": ("vm", "host"),
    "ix_vm_scope": ("vm", "scope"),
}

_PARTIAL_INDEXES = {
    "ix_audit_log_audit": ("audit_log", ["sequence"], "chain = 'audit'", "chain = 'audit'"),
    "ix_claim_scope_active": ("claim", ["scope"], "is_active = 1", "is_active"),
    "ix_claim_vm_active": ("claim", ["vm"], "is_active = 1", "is_active"),
    "ix_event_audience_listed": ("event", ["audience"], "is_listed = 1", "is_listed"),
    "ix_maintenance_tenant": (
        "maintenance",
        ["tenant_key", "created_at"],
        "tenant_key IS NOT NULL",
        "tenant_key IS NOT NULL",
    ),
}
"""Each with its condition for SQLite and for PostgreSQL."""


def upgrade() -> None:
    """Create every table and index."""
    # Written out: `metadata.create_all` would change with the tables, and later migrations would not fit (ADR 32).
    op.create_table(
        "address",
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("vm", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("address", name="pk_address"),
        comment="Who calls from where; the key keeps an address from naming two VMs.",
    )
    op.create_table(
        "audience",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("scope", sa.String()),
        sa.Column("enabled_at", sa.BigInteger()),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("incarnation", sa.BigInteger(), nullable=False),
        sa.Column("active_until", sa.BigInteger()),
        sa.PrimaryKeyConstraint("key", name="pk_audience"),
    )
    op.create_table(
        "audit_log",
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("maintenance_id", sa.String()),
        sa.Column("event_id", sa.String()),
        sa.Column("audience", sa.String()),
        sa.Column("vm", sa.String()),
        sa.Column("source_address", sa.String()),
        sa.Column("api_version", sa.String()),
        sa.Column("reason", sa.String()),
        sa.Column("chain", sa.String(), nullable=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name="pk_audit_log"),
    )
    op.create_table(
        "audit_log_forgotten",
        sa.Column("chain", sa.String(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
        sa.PrimaryKeyConstraint("chain", "sequence", name="pk_audit_log_forgotten"),
        comment="The last entry of each run of the audit log that retention has forgotten: there the chain goes on.",
    )
    op.create_table(
        "claim",
        sa.Column("maintenance_id", sa.String(), nullable=False),
        sa.Column("vm", sa.String(), nullable=False),
        sa.Column("scope", sa.String()),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("maintenance_id", "vm", name="pk_claim"),
        comment="Which VMs, scopes and hosts a maintenance touches or has touched; while it is active, it holds them.",
    )
    op.create_table(
        "delivery",
        sa.Column("subscription_id", sa.String(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.BigInteger()),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("last_error", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("subscription_id", "sequence", "subject", name="pk_delivery"),
        comment="What is being tried again for a subscription, and what was given up.",
    )
    op.create_table(
        "event",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("maintenance_id", sa.String(), nullable=False),
        sa.Column("audience", sa.String(), nullable=False),
        sa.Column("update_domain", sa.Integer(), nullable=False),
        sa.Column("resources", sa.JSON(), nullable=False),
        sa.Column("is_iaas", sa.Boolean(), nullable=False),
        sa.Column("is_listed", sa.Boolean(), nullable=False),
        sa.Column("approved_at", sa.BigInteger()),
        sa.Column("approved_by", sa.String()),
        sa.PrimaryKeyConstraint("id", name="pk_event"),
        sa.UniqueConstraint("sequence", name="uq_event_sequence"),
    )
    op.create_table(
        "feed",
        sa.Column("audience", sa.String(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("audience", name="pk_feed"),
        comment="When each document changed last, by the counter; the inventory has the empty name.",
    )
    op.create_table(
        "host",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("failed_at", sa.BigInteger()),
        sa.Column("failure_reason", sa.String()),
        sa.PrimaryKeyConstraint("name", name="pk_host"),
    )
    op.create_table(
        "idempotency",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("outcome", sa.JSON(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_idempotency"),
    )
    op.create_table(
        "lease",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_lease"),
        comment="Which replica carries out what is due, for how long by the database's clock, and how often that changed.",
    )
    op.create_table(
        "alert_check",
        sa.Column("maintenance_id", sa.String(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("maintenance_id", name="pk_alert_check"),
        comment="When to see whether a maintenance was seen by its VMs, and is not late.",
    )
    op.create_table(
        "maintenance",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("cause", sa.String(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("impact", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("description", sa.String(), nullable=False),
        sa.Column("duration_s", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("notice", sa.BigInteger(), nullable=False),
        sa.Column("requested_not_before", sa.BigInteger()),
        sa.Column("not_before", sa.BigInteger()),
        sa.Column("due_at", sa.BigInteger()),
        sa.Column("started_at", sa.BigInteger()),
        sa.Column("begun_at", sa.BigInteger()),
        sa.Column("impacted_at", sa.BigInteger()),
        sa.Column("ended_at", sa.BigInteger()),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("force_reason", sa.String()),
        sa.Column("hosts", sa.JSON(), nullable=False),
        sa.Column("claims", sa.JSON(), nullable=False),
        sa.Column("latest_start", sa.BigInteger()),
        sa.Column("deferrals", sa.Integer(), nullable=False),
        sa.Column("extensions", sa.Integer(), nullable=False),
        sa.Column("extended", sa.BigInteger(), nullable=False),
        sa.Column("announced_at", sa.BigInteger()),
        sa.Column("is_at_once_unwarned", sa.Boolean(), nullable=False),
        sa.Column("moved_from", sa.BigInteger()),
        sa.Column("moved_by", sa.JSON(), nullable=False),
        sa.Column("tenant_key", sa.String()),
        sa.PrimaryKeyConstraint("id", name="pk_maintenance"),
        sa.UniqueConstraint("sequence", name="uq_maintenance_sequence"),
    )
    op.create_table(
        "meta",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_meta"),
        comment="Counter for maintenances, events and audit log entries, and the fingerprint of the inventory.",
    )
    op.create_table(
        "revocation",
        sa.Column("nonce", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("nonce", name="pk_revocation"),
        comment="Login links that were used and sessions that were logged out of, until they expire.",
    )
    op.create_table(
        "rollout",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("is_ended", sa.Boolean(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_rollout"),
    )
    op.create_table(
        "scope",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("fault_domain_count", sa.Integer()),
        sa.Column("terminate_notification", sa.JSON(), nullable=False),
        sa.Column("os_image_notification", sa.JSON(), nullable=False),
        sa.Column("couples_deletes", sa.Boolean(), nullable=False),
        sa.Column("policy", sa.JSON()),
        sa.PrimaryKeyConstraint("name", name="pk_scope"),
    )
    op.create_table(
        "subscription",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("secret", sa.String(), nullable=False),
        sa.Column("former_secret", sa.String()),
        sa.Column("former_until", sa.BigInteger()),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("vms", sa.JSON(), nullable=False),
        sa.Column("kinds", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String()),
        sa.Column("is_given_up", sa.Boolean(), nullable=False),
        sa.Column("cursor", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("failing_since", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_subscription"),
        sa.UniqueConstraint("name", name="uq_subscription_name"),
        comment="Subscriptions to notifications; the cursor is the number of the last audit log entry handled.",
    )
    op.create_table(
        "token",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("vms", sa.JSON(), nullable=False),
        sa.Column("host", sa.String()),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("expires_at", sa.BigInteger()),
        sa.Column("revoked_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_token"),
        sa.UniqueConstraint("digest", name="uq_token_digest"),
    )
    op.create_table(
        "vm",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("scope", sa.String()),
        sa.Column("fault_domain", sa.Integer(), nullable=False),
        sa.Column("update_domain", sa.Integer(), nullable=False),
        sa.Column("addresses", sa.JSON(), nullable=False),
        sa.Column("vm_id", sa.String(), nullable=False),
        sa.Column("size", sa.String(), nullable=False),
        sa.Column("location", sa.String(), nullable=False),
        sa.Column("zone", sa.String(), nullable=False),
        sa.Column("resource_group", sa.String(), nullable=False),
        sa.Column("subscription_id", sa.String(), nullable=False),
        sa.Column("os_type", sa.String(), nullable=False),
        sa.Column("priority", sa.String(), nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("mac_address", sa.String(), nullable=False),
        sa.Column("terminate_notification", sa.JSON(), nullable=False),
        sa.Column("power_state", sa.String(), nullable=False),
        sa.Column("policy", sa.JSON()),
        sa.PrimaryKeyConstraint("name", name="pk_vm"),
    )
    for name, (table, *columns) in _INDEXES.items():
        op.create_index(name, table, columns)
    for name, (table, columns, sqlite, postgresql) in _PARTIAL_INDEXES.items():
        op.create_index(name, table, columns, sqlite_where=sa.text(sqlite), postgresql_where=sa.text(postgresql))


def downgrade() -> None:
    """Drop every table."""
    for name in _TABLES:
        op.drop_table(name)
