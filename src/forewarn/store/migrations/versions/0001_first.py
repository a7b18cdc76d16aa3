"""The first schema.

Revision: 0001.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create every table."""
    op.create_table(
        "address",
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("vm", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("address", name=op.f("pk_address")),
        comment="Who calls from where; the key keeps an address from naming two VMs.",
    )
    op.create_index(op.f("ix_address_vm"), "address", ["vm"], unique=False)
    op.create_table(
        "audience",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("scope", sa.String(), nullable=True),
        sa.Column("enabled_at", sa.BigInteger(), nullable=True),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("incarnation", sa.BigInteger(), nullable=False),
        sa.Column("active_until", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_audience")),
    )
    op.create_index(op.f("ix_audience_active_until"), "audience", ["active_until"], unique=False)
    op.create_table(
        "claim",
        sa.Column("maintenance_id", sa.String(), nullable=False),
        sa.Column("vm", sa.String(), nullable=False),
        sa.Column("scope", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("maintenance_id", "vm", name=op.f("pk_claim")),
        comment="Which VMs and scopes the active maintenances hold; rows go when a maintenance ends.",
    )
    op.create_index("ix_claim_scope", "claim", ["scope"], unique=False)
    op.create_index("ix_claim_vm", "claim", ["vm"], unique=False)
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
        sa.Column("approved_at", sa.BigInteger(), nullable=True),
        sa.Column("approved_by", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_event")),
        sa.UniqueConstraint("sequence", name=op.f("uq_event_sequence")),
    )
    op.create_index(
        "ix_event_audience_listed",
        "event",
        ["audience"],
        unique=False,
        sqlite_where=sa.text("is_listed"),
        postgresql_where=sa.text("is_listed"),
    )
    op.create_index(op.f("ix_event_maintenance_id"), "event", ["maintenance_id"], unique=False)
    op.create_table(
        "host", sa.Column("name", sa.String(), nullable=False), sa.PrimaryKeyConstraint("name", name=op.f("pk_host"))
    )
    op.create_table(
        "idempotency",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("outcome", sa.JSON(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_idempotency")),
    )
    op.create_index(op.f("ix_idempotency_at"), "idempotency", ["at"], unique=False)
    op.create_table(
        "audit_log",
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("maintenance_id", sa.String(), nullable=True),
        sa.Column("event_id", sa.String(), nullable=True),
        sa.Column("audience", sa.String(), nullable=True),
        sa.Column("vm", sa.String(), nullable=True),
        sa.Column("source_address", sa.String(), nullable=True),
        sa.Column("api_version", sa.String(), nullable=True),
        sa.Column("reason", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_audit_log")),
    )
    op.create_index(op.f("ix_audit_log_at"), "audit_log", ["at"], unique=False)
    op.create_index(op.f("ix_audit_log_maintenance_id"), "audit_log", ["maintenance_id"], unique=False)
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
        sa.Column("requested_not_before", sa.BigInteger(), nullable=True),
        sa.Column("not_before", sa.BigInteger(), nullable=True),
        sa.Column("due_at", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("impacted_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("force_reason", sa.String(), nullable=True),
        sa.Column("hosts", sa.JSON(), nullable=False),
        sa.Column("claims", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_maintenance")),
        sa.UniqueConstraint("sequence", name=op.f("uq_maintenance_sequence")),
    )
    op.create_index(op.f("ix_maintenance_due_at"), "maintenance", ["due_at"], unique=False)
    op.create_index(op.f("ix_maintenance_ended_at"), "maintenance", ["ended_at"], unique=False)
    op.create_index("ix_maintenance_state_sequence", "maintenance", ["state", "sequence"], unique=False)
    op.create_table(
        "meta",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_meta")),
        comment="Counter for maintenances, events and audit log entries, and the fingerprint of the inventory.",
    )
    op.create_table(
        "scope",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("fault_domain_count", sa.Integer(), nullable=True),
        sa.Column("terminate_notification", sa.JSON(), nullable=False),
        sa.Column("os_image_notification", sa.JSON(), nullable=False),
        sa.Column("approves_user_operations", sa.Boolean(), nullable=False),
        sa.Column("couples_deletes", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_scope")),
    )
    op.create_table(
        "vm",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("scope", sa.String(), nullable=True),
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
        sa.PrimaryKeyConstraint("name", name=op.f("pk_vm")),
    )
    op.create_index(op.f("ix_vm_host"), "vm", ["host"], unique=False)
    op.create_index(op.f("ix_vm_scope"), "vm", ["scope"], unique=False)


def downgrade() -> None:
    """Drop every table."""
    op.drop_index(op.f("ix_vm_scope"), table_name="vm")
    op.drop_index(op.f("ix_vm_host"), table_name="vm")
    op.drop_table("vm")
    op.drop_table("scope")
    op.drop_table("meta")
    op.drop_index("ix_maintenance_state_sequence", table_name="maintenance")
    op.drop_index(op.f("ix_maintenance_ended_at"), table_name="maintenance")
    op.drop_index(op.f("ix_maintenance_due_at"), table_name="maintenance")
    op.drop_table("maintenance")
    op.drop_index(op.f("ix_audit_log_maintenance_id"), table_name="audit_log")
    op.drop_index(op.f("ix_audit_log_at"), table_name="audit_log")
    op.drop_table("audit_log")
    op.drop_index(op.f("ix_idempotency_at"), table_name="idempotency")
    op.drop_table("idempotency")
    op.drop_table("host")
    op.drop_index(op.f("ix_event_maintenance_id"), table_name="event")
    op.drop_index(
        "ix_event_audience_listed",
        table_name="event",
        sqlite_where=sa.text("is_listed"),
        postgresql_where=sa.text("is_listed"),
    )
    op.drop_table("event")
    op.drop_index("ix_claim_vm", table_name="claim")
    op.drop_index("ix_claim_scope", table_name="claim")
    op.drop_table("claim")
    op.drop_index(op.f("ix_audience_active_until"), table_name="audience")
    op.drop_table("audience")
    op.drop_index(op.f("ix_address_vm"), table_name="address")
    op.drop_table("address")
