"""The tables. A column has the name of the model's field that it stores, so a row is a value and a value a row."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from forewarn.core.access import Role
from forewarn.core.audit_chain import Chain
from forewarn.core.model import EntryKind, EventSource, EventType, MaintenanceState, PowerState, ScopeKind
from forewarn.core.subscription import DeliveryState, NotificationKind, SubscriptionState
from forewarn.store.column_types import (
    ClaimsType,
    CommonStringType,
    DurationType,
    LabelsType,
    MomentType,
    NotificationProfileType,
    OutcomeType,
    PolicyType,
    StrEnumType,
    StringPairsType,
    StringTupleType,
)

__all__ = [
    "ENTRY_COLUMNS",
    "IS_AUDIT",
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
    "metadata",
    "revocation",
    "rollout",
    "scope",
    "subscription",
    "token",
    "vm",
]

# PostgreSQL stores the comments of tables too: a changed comment needs a migration.
metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)


def _define_required_column(name: str, kind: Any, **options: Any) -> sa.Column[Any]:  # noqa: ANN401 - whatever a column takes
    return sa.Column(name, kind, nullable=False, **options)


def _define_partial_index(name: str, *columns: str, where: str, sqlite: str | None = None) -> sa.Index:
    """Return an index of the rows that match. SQLite uses it only for a query in exactly the same words."""
    return sa.Index(name, *columns, sqlite_where=sa.text(sqlite or where), postgresql_where=sa.text(where))


meta = sa.Table(
    "meta",
    metadata,
    sa.Column("key", sa.String, primary_key=True),
    _define_required_column("value", sa.String),
    comment="Counter for maintenances, events and audit log entries, and the fingerprint of the inventory.",
)

host = sa.Table(
    "host",
    metadata,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("failed_at", MomentType),
    sa.Column("failure_reason", sa.String),
    sa.Column("labels", LabelsType),
)

scope = sa.Table(
    "scope",
    metadata,
    sa.Column("name", sa.String, primary_key=True),
    _define_required_column("kind", StrEnumType(ScopeKind)),
    sa.Column("fault_domain_count", sa.Integer),
    _define_required_column("terminate_notification", NotificationProfileType),
    _define_required_column("os_image_notification", NotificationProfileType),
    _define_required_column("couples_deletes", sa.Boolean),
    sa.Column("policy", PolicyType),
    sa.Column("labels", LabelsType),
)

vm = sa.Table(
    "vm",
    metadata,
    sa.Column("name", sa.String, primary_key=True),
    _define_required_column("host", CommonStringType, index=True),
    sa.Column("scope", CommonStringType, index=True),
    _define_required_column("fault_domain", sa.Integer),
    _define_required_column("update_domain", sa.Integer),
    _define_required_column("addresses", StringTupleType),
    _define_required_column("vm_id", sa.String),
    _define_required_column("size", CommonStringType),
    _define_required_column("location", CommonStringType),
    _define_required_column("zone", CommonStringType),
    _define_required_column("resource_group", CommonStringType),
    _define_required_column("subscription_id", CommonStringType),
    _define_required_column("os_type", CommonStringType),
    _define_required_column("priority", CommonStringType),
    _define_required_column("tags", StringPairsType),
    _define_required_column("mac_address", sa.String),
    _define_required_column("terminate_notification", NotificationProfileType),
    _define_required_column("power_state", StrEnumType(PowerState)),
    sa.Column("policy", PolicyType),
    sa.Column("labels", LabelsType),
)

audience = sa.Table(
    "audience",
    metadata,
    sa.Column("key", sa.String, primary_key=True),
    sa.Column("scope", CommonStringType),
    sa.Column("enabled_at", MomentType),
    _define_required_column("epoch", sa.BigInteger),
    _define_required_column("incarnation", sa.BigInteger),
    sa.Column("active_until", MomentType, index=True),
)

maintenance = sa.Table(
    "maintenance",
    metadata,
    sa.Column("id", sa.String, primary_key=True),
    _define_required_column("sequence", sa.BigInteger, unique=True),
    _define_required_column("request_id", sa.String),
    _define_required_column("cause", sa.String),
    _define_required_column("type", StrEnumType(EventType)),
    _define_required_column("impact", StrEnumType(EventType)),
    _define_required_column("source", StrEnumType(EventSource)),
    _define_required_column("description", sa.String),
    _define_required_column("duration_s", sa.Integer),
    _define_required_column("state", StrEnumType(MaintenanceState)),
    _define_required_column("created_at", MomentType),
    _define_required_column("notice", DurationType),
    sa.Column("requested_not_before", MomentType),
    sa.Column("not_before", MomentType),
    sa.Column("due_at", MomentType, index=True),
    sa.Column("started_at", MomentType),
    sa.Column("begun_at", MomentType),
    sa.Column("impacted_at", MomentType),
    sa.Column("ended_at", MomentType, index=True),
    _define_required_column("attempts", sa.Integer),
    sa.Column("force_reason", sa.String),
    _define_required_column("hosts", StringTupleType),
    _define_required_column("claims", ClaimsType),
    sa.Column("latest_start", MomentType),
    _define_required_column("deferrals", sa.Integer),
    _define_required_column("extensions", sa.Integer),
    _define_required_column("extended", DurationType),
    sa.Column("announced_at", MomentType),
    _define_required_column("is_at_once_unwarned", sa.Boolean),
    sa.Column("moved_from", MomentType),
    _define_required_column("moved_by", StringTupleType),
    sa.Column("tenant_key", sa.String),
    sa.Index("ix_maintenance_state_sequence", "state", "sequence"),
    _define_partial_index("ix_maintenance_tenant", "tenant_key", "created_at", where="tenant_key IS NOT NULL"),
)

claim = sa.Table(
    "claim",
    metadata,
    sa.Column("maintenance_id", sa.String, primary_key=True),
    sa.Column("vm", sa.String, primary_key=True),
    sa.Column("scope", sa.String),
    _define_required_column("host", sa.String),
    _define_required_column("is_active", sa.Boolean),
    sa.Index("ix_claim_vm", "vm"),
    sa.Index("ix_claim_scope", "scope"),
    sa.Index("ix_claim_host", "host"),
    _define_partial_index("ix_claim_vm_active", "vm", where="is_active", sqlite="is_active = 1"),
    _define_partial_index("ix_claim_scope_active", "scope", where="is_active", sqlite="is_active = 1"),
    comment="Which VMs, scopes and hosts a maintenance touches or has touched; while it is active, it holds them.",
)

event = sa.Table(
    "event",
    metadata,
    sa.Column("id", sa.String, primary_key=True),
    _define_required_column("sequence", sa.BigInteger, unique=True),
    _define_required_column("maintenance_id", sa.String, index=True),
    _define_required_column("audience", sa.String),
    _define_required_column("update_domain", sa.Integer),
    _define_required_column("resources", StringTupleType),
    _define_required_column("is_iaas", sa.Boolean),
    _define_required_column("is_listed", sa.Boolean),
    sa.Column("approved_at", MomentType),
    sa.Column("approved_by", sa.String),
    _define_partial_index("ix_event_audience_listed", "audience", where="is_listed", sqlite="is_listed = 1"),
)

audit_log = sa.Table(
    "audit_log",
    metadata,
    # From the store's counter, so that numbers follow the order of commits; a sequence of the database would not.
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    _define_required_column("at", MomentType, index=True),
    _define_required_column("kind", StrEnumType(EntryKind)),
    _define_required_column("actor", sa.String),
    sa.Column("maintenance_id", sa.String, index=True),
    sa.Column("event_id", sa.String),
    sa.Column("audience", sa.String),
    sa.Column("vm", sa.String),
    sa.Column("source_address", sa.String),
    sa.Column("api_version", sa.String),
    sa.Column("reason", sa.String),
    _define_required_column("chain", StrEnumType(Chain)),
    _define_required_column("hash", sa.LargeBinary(32)),
    sa.Index("ix_audit_log_kind_sequence", "kind", "sequence"),
    sa.Index("ix_audit_log_actor_sequence", "actor", "sequence"),
    sa.Index("ix_audit_log_vm", "vm"),
    sa.Index("ix_audit_log_audience", "audience"),
    _define_partial_index("ix_audit_log_audit", "sequence", where="chain = 'audit'"),
)

ENTRY_COLUMNS = [column for column in audit_log.columns if column.name not in {"chain", "hash"}]
"""Columns of an `AuditEntry`."""

IS_AUDIT = audit_log.c.chain == sa.literal_column("'audit'")
"""Condition in the words of the partial index; with other words SQLite does not use it."""

audit_log_forgotten = sa.Table(
    "audit_log_forgotten",
    metadata,
    sa.Column("chain", StrEnumType(Chain), primary_key=True),
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    _define_required_column("hash", sa.LargeBinary(32)),
    comment="The last entry of each run of the audit log that retention has forgotten: there the chain goes on.",
)

feed = sa.Table(
    "feed",
    metadata,
    sa.Column("audience", sa.String, primary_key=True),
    _define_required_column("sequence", sa.BigInteger, index=True),
    comment="When each document changed last, by the counter; the inventory has the empty name.",
)

token = sa.Table(
    "token",
    metadata,
    sa.Column("id", sa.String, primary_key=True),
    _define_required_column("name", sa.String),
    _define_required_column("role", StrEnumType(Role)),
    _define_required_column("scopes", StringTupleType),
    _define_required_column("vms", StringTupleType),
    sa.Column("host", sa.String, index=True),
    _define_required_column("digest", sa.String, unique=True),
    _define_required_column("created_at", MomentType),
    _define_required_column("created_by", sa.String),
    sa.Column("expires_at", MomentType),
    sa.Column("revoked_at", MomentType),
)

revocation = sa.Table(
    "revocation",
    metadata,
    sa.Column("nonce", sa.String, primary_key=True),
    _define_required_column("actor", sa.String),
    _define_required_column("expires_at", MomentType, index=True),
    sa.Index("ix_revocation_actor_expires_at", "actor", "expires_at"),
    comment="Login links that were used and sessions that were logged out of, until they expire.",
)

rollout = sa.Table(
    "rollout",
    metadata,
    sa.Column("id", sa.String, primary_key=True),
    _define_required_column("name", sa.String),
    _define_required_column("created_at", MomentType),
    _define_required_column("is_ended", sa.Boolean),
    _define_required_column("content", sa.Text),
    sa.Index("ix_rollout_is_ended_created_at", "is_ended", "created_at"),
)

lease = sa.Table(
    "lease",
    metadata,
    sa.Column("name", sa.String, primary_key=True),
    _define_required_column("holder", sa.String),
    _define_required_column("term", sa.BigInteger),
    _define_required_column("expires_at", MomentType),
    comment="Which replica carries out what is due, for how long by the database's clock, and how often that changed.",
)

alert_check = sa.Table(
    "alert_check",
    metadata,
    sa.Column("maintenance_id", sa.String, primary_key=True),
    _define_required_column("at", MomentType, index=True),
    comment="When to see whether a maintenance was seen by its VMs, and is not late.",
)

subscription = sa.Table(
    "subscription",
    metadata,
    sa.Column("id", sa.String, primary_key=True),
    _define_required_column("name", sa.String, unique=True),
    _define_required_column("url", sa.String),
    # In clear text: an HMAC needs the key, whereas a digest suffices to recognize a token (ADR 18).
    _define_required_column("secret", sa.String),
    sa.Column("former_secret", sa.String),
    sa.Column("former_until", MomentType),
    _define_required_column("scopes", StringTupleType),
    _define_required_column("vms", StringTupleType),
    _define_required_column("kinds", StringTupleType),
    _define_required_column("state", StrEnumType(SubscriptionState)),
    sa.Column("reason", sa.String),
    _define_required_column("is_given_up", sa.Boolean),
    _define_required_column("cursor", sa.BigInteger),
    _define_required_column("created_at", MomentType),
    _define_required_column("created_by", sa.String),
    sa.Column("failing_since", MomentType),
    comment="Subscriptions to notifications; the cursor is the number of the last audit log entry handled.",
)

delivery = sa.Table(
    "delivery",
    metadata,
    sa.Column("subscription_id", sa.String, primary_key=True),
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("subject", sa.String, primary_key=True),
    _define_required_column("kind", StrEnumType(NotificationKind)),
    _define_required_column("at", MomentType, index=True),
    _define_required_column("attempts", sa.Integer),
    sa.Column("next_at", MomentType),
    _define_required_column("state", StrEnumType(DeliveryState)),
    _define_required_column("last_error", sa.String),
    sa.Index("ix_delivery_subscription_id_state", "subscription_id", "state"),
    comment="What is being tried again for a subscription, and what was given up.",
)

idempotency = sa.Table(
    "idempotency",
    metadata,
    sa.Column("key", sa.String, primary_key=True),
    _define_required_column("fingerprint", sa.String),
    _define_required_column("outcome", OutcomeType),
    _define_required_column("at", MomentType, index=True),
)

address = sa.Table(
    "address",
    metadata,
    sa.Column("address", sa.String, primary_key=True),
    _define_required_column("vm", sa.String, index=True),
    comment="Who calls from where; the key keeps an address from naming two VMs.",
)
