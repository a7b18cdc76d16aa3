"""The first schema.

Revision: 0001.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_TABLES = {
    "address": """
        address VARCHAR NOT NULL, vm VARCHAR NOT NULL,
        CONSTRAINT pk_address PRIMARY KEY (address)
    """,
    "alert_check": """
        maintenance_id VARCHAR NOT NULL, at BIGINT NOT NULL,
        CONSTRAINT pk_alert_check PRIMARY KEY (maintenance_id)
    """,
    "audience": """
        key VARCHAR NOT NULL, scope VARCHAR, enabled_at BIGINT, epoch BIGINT NOT NULL, incarnation BIGINT NOT NULL,
        active_until BIGINT,
        CONSTRAINT pk_audience PRIMARY KEY (key)
    """,
    "audit_log": """
        sequence BIGINT NOT NULL, at BIGINT NOT NULL, kind VARCHAR NOT NULL, actor VARCHAR NOT NULL,
        maintenance_id VARCHAR, event_id VARCHAR, audience VARCHAR, vm VARCHAR, source_address VARCHAR,
        api_version VARCHAR, reason VARCHAR, chain VARCHAR NOT NULL, hash BINARY NOT NULL,
        CONSTRAINT pk_audit_log PRIMARY KEY (sequence)
    """,
    "audit_log_forgotten": """
        chain VARCHAR NOT NULL, sequence BIGINT NOT NULL, hash BINARY NOT NULL,
        CONSTRAINT pk_audit_log_forgotten PRIMARY KEY (chain, sequence)
    """,
    "claim": """
        maintenance_id VARCHAR NOT NULL, vm VARCHAR NOT NULL, scope VARCHAR, host VARCHAR NOT NULL,
        is_active BOOLEAN NOT NULL,
        CONSTRAINT pk_claim PRIMARY KEY (maintenance_id, vm)
    """,
    "delivery": """
        subscription_id VARCHAR NOT NULL, sequence BIGINT NOT NULL, subject VARCHAR NOT NULL, kind VARCHAR NOT NULL,
        at BIGINT NOT NULL, attempts INTEGER NOT NULL, next_at BIGINT, state VARCHAR NOT NULL,
        last_error VARCHAR NOT NULL,
        CONSTRAINT pk_delivery PRIMARY KEY (subscription_id, sequence, subject)
    """,
    "event": """
        id VARCHAR NOT NULL, sequence BIGINT NOT NULL, maintenance_id VARCHAR NOT NULL, audience VARCHAR NOT NULL,
        update_domain INTEGER NOT NULL, resources JSON NOT NULL, is_iaas BOOLEAN NOT NULL, is_listed BOOLEAN NOT NULL,
        approved_at BIGINT, approved_by VARCHAR,
        CONSTRAINT pk_event PRIMARY KEY (id), CONSTRAINT uq_event_sequence UNIQUE (sequence)
    """,
    "feed": """
        audience VARCHAR NOT NULL, sequence BIGINT NOT NULL,
        CONSTRAINT pk_feed PRIMARY KEY (audience)
    """,
    "host": """
        name VARCHAR NOT NULL, failed_at BIGINT, failure_reason VARCHAR,
        CONSTRAINT pk_host PRIMARY KEY (name)
    """,
    "idempotency": """
        key VARCHAR NOT NULL, fingerprint VARCHAR NOT NULL, outcome JSON NOT NULL, at BIGINT NOT NULL,
        CONSTRAINT pk_idempotency PRIMARY KEY (key)
    """,
    "lease": """
        name VARCHAR NOT NULL, holder VARCHAR NOT NULL, term BIGINT NOT NULL, expires_at BIGINT NOT NULL,
        CONSTRAINT pk_lease PRIMARY KEY (name)
    """,
    "maintenance": """
        id VARCHAR NOT NULL, sequence BIGINT NOT NULL, request_id VARCHAR NOT NULL, cause VARCHAR NOT NULL,
        type VARCHAR NOT NULL, impact VARCHAR NOT NULL, source VARCHAR NOT NULL, description VARCHAR NOT NULL,
        duration_s INTEGER NOT NULL, state VARCHAR NOT NULL, created_at BIGINT NOT NULL, notice BIGINT NOT NULL,
        requested_not_before BIGINT, not_before BIGINT, due_at BIGINT, started_at BIGINT, begun_at BIGINT,
        impacted_at BIGINT, ended_at BIGINT, attempts INTEGER NOT NULL, force_reason VARCHAR, hosts JSON NOT NULL,
        claims JSON NOT NULL, latest_start BIGINT, deferrals INTEGER NOT NULL, extensions INTEGER NOT NULL,
        extended BIGINT NOT NULL, announced_at BIGINT, is_at_once_unwarned BOOLEAN NOT NULL, moved_from BIGINT,
        moved_by JSON NOT NULL, tenant_key VARCHAR,
        CONSTRAINT pk_maintenance PRIMARY KEY (id), CONSTRAINT uq_maintenance_sequence UNIQUE (sequence)
    """,
    "meta": """
        key VARCHAR NOT NULL, value VARCHAR NOT NULL,
        CONSTRAINT pk_meta PRIMARY KEY (key)
    """,
    "revocation": """
        nonce VARCHAR NOT NULL, actor VARCHAR NOT NULL, expires_at BIGINT NOT NULL,
        CONSTRAINT pk_revocation PRIMARY KEY (nonce)
    """,
    "rollout": """
        id VARCHAR NOT NULL, name VARCHAR NOT NULL, created_at BIGINT NOT NULL, is_ended BOOLEAN NOT NULL,
        content TEXT NOT NULL,
        CONSTRAINT pk_rollout PRIMARY KEY (id)
    """,
    "scope": """
        name VARCHAR NOT NULL, kind VARCHAR NOT NULL, fault_domain_count INTEGER,
        terminate_notification JSON NOT NULL, os_image_notification JSON NOT NULL, couples_deletes BOOLEAN NOT NULL,
        policy JSON,
        CONSTRAINT pk_scope PRIMARY KEY (name)
    """,
    "subscription": """
        id VARCHAR NOT NULL, name VARCHAR NOT NULL, url VARCHAR NOT NULL, secret VARCHAR NOT NULL,
        former_secret VARCHAR, former_until BIGINT, scopes JSON NOT NULL, vms JSON NOT NULL, kinds JSON NOT NULL,
        state VARCHAR NOT NULL, reason VARCHAR, is_given_up BOOLEAN NOT NULL, cursor BIGINT NOT NULL,
        created_at BIGINT NOT NULL, created_by VARCHAR NOT NULL, failing_since BIGINT,
        CONSTRAINT pk_subscription PRIMARY KEY (id), CONSTRAINT uq_subscription_name UNIQUE (name)
    """,
    "token": """
        id VARCHAR NOT NULL, name VARCHAR NOT NULL, role VARCHAR NOT NULL, scopes JSON NOT NULL, vms JSON NOT NULL,
        host VARCHAR, digest VARCHAR NOT NULL, created_at BIGINT NOT NULL, created_by VARCHAR NOT NULL,
        expires_at BIGINT, revoked_at BIGINT,
        CONSTRAINT pk_token PRIMARY KEY (id), CONSTRAINT uq_token_digest UNIQUE (digest)
    """,
    "vm": """
        name VARCHAR NOT NULL, host VARCHAR NOT NULL, scope VARCHAR, fault_domain INTEGER NOT NULL,
        update_domain INTEGER NOT NULL, addresses JSON NOT NULL, vm_id VARCHAR NOT NULL, size VARCHAR NOT NULL,
        location VARCHAR NOT NULL, zone VARCHAR NOT NULL, resource_group VARCHAR NOT NULL,
        subscription_id VARCHAR NOT NULL, os_type VARCHAR NOT NULL, priority VARCHAR NOT NULL, tags JSON NOT NULL,
        mac_address VARCHAR NOT NULL, terminate_notification JSON NOT NULL, power_state VARCHAR NOT NULL, policy JSON,
        CONSTRAINT pk_vm PRIMARY KEY (name)
    """,
}
"""Columns and constraints. BINARY is the database's type for bytes."""

_COMMENTS = {
    "address": "Who calls from where; the key keeps an address from naming two VMs.",
    "alert_check": "When to see whether a maintenance was seen by its VMs, and is not late.",
    "audit_log_forgotten": "The last entry of each run of the audit log that retention has forgotten: there the chain goes on.",
    "claim": "Which VMs, scopes and hosts a maintenance touches or has touched; while it is active, it holds them.",
    "delivery": "What is being tried again for a subscription, and what was given up.",
    "feed": "When each document changed last, by the counter; the inventory has the empty name.",
    "lease": "Which replica carries out what is due, for how long by the database's clock, and how often that changed.",
    "meta": "Counter for maintenances, events and audit log entries, and the fingerprint of the inventory.",
    "revocation": "Login links that were used and sessions that were logged out of, until they expire.",
    "subscription": "Subscriptions to notifications; the cursor is the number of the last audit log entry handled.",
}

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
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for name, content in _TABLES.items():
        op.execute(f"CREATE TABLE {name} ({content.replace('BINARY', 'BLOB' if is_sqlite else 'BYTEA')})")
    for name, comment in () if is_sqlite else _COMMENTS.items():
        op.create_table_comment(name, comment)
    for name, (table, *columns) in _INDEXES.items():
        op.create_index(name, table, columns)
    for name, (table, columns, sqlite, postgresql) in _PARTIAL_INDEXES.items():
        op.create_index(name, table, columns, sqlite_where=sa.text(sqlite), postgresql_where=sa.text(postgresql))


def downgrade() -> None:
    """Drop every table."""
    for name in _TABLES:
        op.drop_table(name)
