"""All settings, with their units, defaults and limits.

Sources in order of precedence: command-line flag, environment variable ``FOREWARN_…``, TOML file (``--config``),
default. Durations are written as ``90s``, ``15m``, ``24h``, ``7d`` or a number of seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, PrivateAttr, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from forewarn.config.oidc_settings import Oidc
from forewarn.config.role_budgets import RoleBudgets
from forewarn.config.span import Span, limit_seconds
from forewarn.core.inventory_difference import RemovalLimit
from forewarn.core.maintenance.alert_schedule import AlertThresholds
from forewarn.core.maintenance.decision import DecisionRules
from forewarn.net.listen_address import parse_host_names
from forewarn.net.pool import parse_networks
from forewarn.util.secrets import default_state_dir
from forewarn.wire.imds import Dialect

__all__ = ["SettingSource", "Settings"]


class SettingSource(StrEnum):
    """Where the value of a setting comes from."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"
    OPEN_FILES_LIMIT = "limit of open files"
    """The service has lowered the value, because it may not open more files."""


def _parse_number(value: object) -> object:
    """Convert digits from variables and flags to int: pydantic compares literals without converting them."""
    return int(value) if isinstance(value, str) and value.strip().isdecimal() else value


def _parse_table(value: object) -> object:
    """Parse the JSON text that a flag gives."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        msg = f'{value[:100]!r} is expected to be JSON, such as {{"tenant": {{"watches_max": 20}}}}'
        raise ValueError(msg) from None


class Settings(BaseSettings):
    """Settings of `forewarn serve`."""

    model_config = SettingsConfigDict(env_prefix="FOREWARN_", extra="forbid", frozen=True)

    _sources: Mapping[str, SettingSource] = PrivateAttr(default_factory=dict)

    # Locations
    database_url: str = Field("sqlite:///forewarn.db", description="URL of the database, SQLite or PostgreSQL.")
    database_size_bytes_max: int = Field(
        8 << 30, ge=1 << 20, description="Maximum size of a SQLite file; beyond it, changes are refused with 503."
    )
    database_check_every: Span = Field(
        timedelta(hours=1),
        ge=timedelta(seconds=1),
        description="Interval between checks of a SQLite file for damaged pages; the first check runs at startup.",
    )
    state_dir: Path = Field(
        default_factory=default_state_dir,
        description="Folder for the operator's token, and for the records of the exec actuator.",
    )
    inventory: Path | None = Field(None, description="Inventory file (YAML or JSON) to apply at startup.")
    inventory_removals_max: int = Field(
        10,
        ge=0,
        description="Maximum number of VMs that an inventory may remove without confirmation. The same maximum applies "
        "to hosts, and to scopes.",
    )
    inventory_removals_share_max: float = Field(
        0.1,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Maximum share of the hosts, scopes or VMs that an inventory may remove without confirmation. The "
        "resulting number is rounded up. inventory_removals_max applies as well. Removing all hosts, all scopes or all "
        "VMs always needs confirmation, unless the share is 1.",
    )
    hosts_may_join_scopes: bool = Field(
        default=True,
        description="Allow a host's token to add VMs to a declared scope of which the host runs no VM yet. Caution: a "
        "VM that is added can see and approve all events of the scope.",
    )
    metadata_listen: str = Field("127.0.0.1:8169", description="Addresses of the metadata endpoint, comma-separated.")
    metadata_host_names: str = Field(
        "",
        max_length=10_000,
        description="Host names by which VMs may call the metadata endpoint, comma-separated. In the Host "
        "header, addresses and localhost are always accepted; names not listed are refused.",
    )
    metadata_process: Literal["own", "shared"] = Field(
        "own",
        description="Process that answers VMs: own (a separate process), or shared (the process of the control API). "
        "With a virtual clock or fault injection, the value is always shared.",
    )
    workers: int = Field(
        1,
        ge=1,
        le=64,
        description="Number of processes that answer VMs. All connections from one address reach the same process. "
        "More than one needs metadata_process=own, a real clock, and no fault injection.",
    )
    metadata_silence_max: Span = Field(
        timedelta(minutes=1),
        ge=timedelta(seconds=3),
        le=timedelta(days=1),
        description="Time without a message from the process that answers VMs, after which the service kills and "
        "replaces this process.",
    )
    any_caller_is: str = Field(
        "",
        max_length=128,
        description="VM to which requests from unknown addresses are attributed; for tests behind a forwarded port.",
    )
    control_listen: str = Field("127.0.0.1:8170", description="Address of the control API.")
    tls_certificate: Path | None = Field(None, description="Certificate of the control API, PEM.")
    tls_key: Path | None = Field(None, description="Private key of tls_certificate, PEM.")
    insecure: bool = Field(
        default=False, description="Allow the control API without TLS on an address other than loopback."
    )

    # Access
    oidc: Oidc | None = Field(
        None, description="OpenID Connect issuer whose tokens are accepted; see docs/how-to/give-access.md."
    )
    token_lifetime: Span = Field(timedelta(days=90), ge=timedelta(minutes=1), description="Default token lifetime.")
    token_lifetime_max: Span = Field(
        timedelta(days=366), ge=timedelta(minutes=1), description="Maximum token lifetime."
    )
    session_lifetime: Span = Field(
        timedelta(hours=12),
        ge=timedelta(minutes=1),
        le=timedelta(days=30),
        description="Lifetime of a dashboard session.",
    )
    tokens_max: int = Field(
        1000, ge=1, le=100_000, description="Maximum number of valid tokens of people and programs."
    )
    token_names_max: int = Field(
        1000, ge=1, le=10_000, description="Maximum number of scopes and VMs in a tenant's token."
    )
    unknown_requests_per_address_minute_max: int = Field(
        600,
        ge=1,
        description="Maximum number of requests per minute from one address to the control API that have no token or "
        "session, or one that the service has not yet found valid. The burst limit is a sixth of this number, by "
        "default 100. Requests over the limit get 429, and their tokens are not checked. Addresses in control_proxies "
        "are exempt.",
    )
    unknown_requests_per_minute_max: int = Field(
        3000,
        ge=1,
        description="Rate limit of the control API for all unknown callers together: requests per minute. The burst "
        "limit is a fifteenth of this number, by default 200.",
    )
    auth_failures_max: int = Field(
        20,
        ge=1,
        description="Maximum number of calls without a valid token per minute and address; further such calls get 429.",
    )
    refused_entries_max: int = Field(
        10,
        ge=1,
        description="Maximum number of audit log entries for refused calls per minute and address; one "
        "further entry counts the remaining calls.",
    )
    refused_entries_total_max: int = Field(
        600, ge=1, description="Maximum number of audit log entries for refused calls per minute, for all addresses."
    )
    refused_addresses_max: int = Field(
        10_000, ge=1, le=1_000_000, description="Maximum number of addresses whose refused calls are counted."
    )

    # Time
    clock: Literal["real", "virtual"] = Field(
        "real", description="Clock of the service: real or virtual. A virtual clock moves only when it is advanced."
    )
    clock_start: datetime | None = Field(None, description="Start of a virtual clock; default 2030-01-01.")

    # Rules
    initial_incarnation: int = Field(1, ge=0, le=1 << 31, description="First DocumentIncarnation (R45, A6).")
    first_answer_delay: Span = Field(
        timedelta(0),
        **limit_seconds(120),
        description="Delay of the answer to a scope's first GET, which enables events for the scope (R67).",
    )
    announce_delay: Span = Field(
        timedelta(0),
        **limit_seconds(300),
        description="Delay from enabling events for a scope to the scope's first event (R68).",
    )
    start_delay: Span = Field(
        timedelta(0),
        **limit_seconds(3600),
        description="Delay from the last approval to the start of the maintenance (A24).",
    )
    disable_after: Span = Field(
        timedelta(hours=24),
        ge=timedelta(seconds=1),
        description="Time without requests from a scope's VMs after which events for the scope are disabled (R69).",
    )
    restart_grace: Span = Field(
        timedelta(minutes=10),
        ge=timedelta(0),
        description="Time after a start of the service during which events are not disabled for any scope, because VMs "
        "cannot poll while the service is down.",
    )
    notice_max: Span = Field(
        timedelta(days=90),
        ge=timedelta(minutes=15),
        description="Maximum notice (time from announcement to NotBefore).",
    )
    user_operations_max: int | None = Field(
        None,
        ge=1,
        description="Maximum number of pending user operations, such as restarts, per scope; Azure's preview allowed "
        "10 (R88).",
    )
    policy_delay: Span = Field(
        timedelta(seconds=5),
        **limit_seconds(3600),
        description="Minimum time for which a Freeze stays Scheduled after a tenant's policy has approved it.",
    )
    deferrals_max: int = Field(20, ge=0, le=1000, description="Maximum number of deferrals of one maintenance.")

    # Variants of the metadata protocol
    notbefore_2017_03_01: Literal["iso", "rfc1123"] = Field(
        "iso", description="Format of NotBefore in api-version 2017-03-01: iso or rfc1123 (A1)."
    )
    require_metadata_2017_03_01: Literal["none", "get", "all"] = Field(
        "none", description="Requests that need the Metadata header in api-version 2017-03-01: none, get or all (A3)."
    )
    cloud: Literal["public", "china"] = Field(
        "public",
        description="Azure cloud to imitate: public or china; china has no api-version 2017-11-01 and no Preempt (A2).",
    )
    legacy_latest: bool = Field(default=False, description="Serve /metadata/latest/scheduledevents (A4).")
    unknown_event: Annotated[Literal[400, 404, 200], BeforeValidator(_parse_number)] = Field(
        400, description="HTTP status of the answer to an approval of an unknown EventId (A11)."
    )
    post_body: Literal["empty", "document"] = Field(
        "empty", description="Body of the answer to an approval: empty or document (A13)."
    )
    rate_limit_per_s: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Maximum number of requests per second and VM; Azure's limit is 5 (R9).",
    )

    # Rollouts
    health_commands: bool = Field(
        default=False,
        description="Let rollouts run a health command between batches, on the service's machine and as the "
        "service's user.",
    )

    # Testing
    fault_injection: bool = Field(default=False, description="Let operators inject faults.")
    faults_max: int = Field(100, ge=1, le=10_000, description="Maximum number of active faults.")
    journal_requests_max: int = Field(
        1000, ge=0, le=1_000_000, description="Number of recent VM requests kept for inspection; 0 for none."
    )

    # Traces
    tracing_endpoint: str | None = Field(
        None,
        max_length=2000,
        description="OTLP/HTTP address of the trace collector, such as http://127.0.0.1:4318. none: no "
        "tracing. Needs the extra `tracing`.",
    )
    tracing_sample_ratio: float | None = Field(
        None,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Share of the traces that are sent, 0 to 1. none: OTEL_TRACES_SAMPLER decides; if it "
        "is not set, all traces are sent.",
    )
    tracing_service_name: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="Service name in traces. If not set: the value of OTEL_SERVICE_NAME, or 'forewarn' if that "
        "variable is not set either.",
    )
    tracing_moments_max: int = Field(
        1000,
        ge=1,
        le=100_000,
        description="Maximum number of maintenance steps traced for one database transaction, such as a batch of "
        "starts; further steps are not traced.",
    )
    tracing_sights_max: int = Field(
        10_000,
        ge=0,
        le=10_000_000,
        description="To add the span `seen` to a trace, tracing waits until a VM has seen the event. This is the "
        "maximum number of events for which it waits at the same time; further events get no such span.",
    )

    # Limits of the control address
    control_connections_max: int = Field(
        24_000, ge=1, description="Maximum number of connections to the control address."
    )
    control_unknown_connections_max: int = Field(
        8192,
        ge=1,
        description="Maximum number of connections to the control address that have not sent a valid "
        "token yet; beyond it, the oldest of them is closed.",
    )
    control_unknown_connections_per_address_max: int = Field(
        1024, ge=1, description="Maximum number of connections from one address that have not sent a valid token yet."
    )
    control_unknown_size_bytes_max: int = Field(
        16 << 20,
        ge=1 << 10,
        description="Maximum number of bytes in memory for all requests without a valid token; beyond it, the "
        "oldest connection without a valid token is closed.",
    )
    control_proxies: str = Field(
        "127.0.0.1, ::1",
        max_length=4000,
        description="Addresses or networks that many callers share, such as a reverse proxy's, comma-separated. "
        "control_unknown_connections_per_address_max and unknown_requests_per_address_minute_max do not apply to "
        "them.",
    )
    control_idle_timeout: Span = Field(
        timedelta(seconds=75),
        ge=timedelta(seconds=1),
        description="Time without requests after which a connection to the control address is closed. For "
        "connections without a valid token, request_timeout applies.",
    )
    budgets: Annotated[RoleBudgets, BeforeValidator(_parse_table)] = Field(
        RoleBudgets(),
        description="Limits on each caller's use of the control API, separate for each role; see "
        "docs/how-to/operate.md.",
    )
    budgets_max: int = Field(
        10_000, ge=1, le=1_000_000, description="Maximum number of callers whose use of the control API is counted."
    )

    # Limits of the metadata endpoint
    body_size_bytes_max: int = Field(
        1 << 20,
        ge=256,
        le=1 << 28,
        description="Maximum size of the body of any request.",
    )
    metadata_body_size_bytes_max: int = Field(
        256 << 10,
        ge=256,
        le=1 << 28,
        description="Maximum size of an approval by a VM; body_size_bytes_max applies as well.",
    )
    header_size_bytes_max: int = Field(
        16 << 10, ge=1024, le=1 << 20, description="Maximum size of request line and headers."
    )
    start_requests_max: int = Field(1000, ge=1, le=100_000, description="Maximum number of StartRequests in one POST.")
    request_timeout: Span = Field(
        timedelta(seconds=10),
        ge=timedelta(milliseconds=100),
        description="Time limit for receiving a whole request. At the control address, a body has a second more for "
        "each 16 KiB.",
    )
    idle_timeout: Span = Field(
        timedelta(minutes=5),
        ge=timedelta(seconds=1),
        description="Time without requests after which a connection to the metadata endpoint is closed.",
    )
    connections_max: int = Field(16384, ge=1, description="Maximum number of connections to the metadata endpoint.")
    connections_per_vm_max: int = Field(
        256,
        ge=1,
        description="Maximum number of connections of one VM. All unknown callers together count as one VM. If 1/32 of "
        "the free connections is less than this maximum, 1/32 is the limit, but at least 16. With several workers, the "
        "connections of one of them count.",
    )
    connections_per_unknown_address_max: int = Field(
        16, ge=1, description="Maximum number of connections from one unknown address (one that belongs to no VM)."
    )
    approvals_at_work_per_vm_max: int = Field(
        32,
        ge=1,
        description="Maximum number of unanswered approvals of one VM; further approvals are refused with 429.",
    )
    approval_bytes_per_vm_minute_max: int = Field(
        4 << 20,
        ge=1024,
        description="Maximum number of bytes in the approvals of one VM per minute; each approval counts as at least "
        "256 bytes. Beyond it, the VM's approvals are refused with 429 until the minute ends.",
    )
    body_bytes_per_vm_max: int = Field(
        1 << 20,
        ge=256,
        description="Maximum total size in bytes of one VM's request bodies that wait to be decoded; further bodies "
        "are refused with 429.",
    )
    body_bytes_max: int = Field(
        64 << 20,
        ge=256,
        description="Maximum total size in bytes of all VMs' request bodies that wait to be decoded; further bodies "
        "are refused with 503.",
    )
    watches_max: int = Field(20_000, ge=1, description="Maximum number of host endpoints that watch one replica.")
    wait_max: Span = Field(
        timedelta(seconds=300), **limit_seconds(3600), description="Maximum duration of a long poll (X1)."
    )

    # Choice of the actuator
    actuator: Literal["simulate", "exec", "webhook", "libvirt"] = Field(
        "simulate", description="Actuator that carries out maintenances; see docs/how-to/actuators.md."
    )
    actuator_look_every: Span = Field(
        timedelta(seconds=1),
        ge=timedelta(milliseconds=10),
        description="Interval between status checks of a running maintenance.",
    )
    exec_command: str = Field(
        "", description="Command run for each maintenance: program and arguments, without a shell."
    )
    exec_observe_command: str = Field(
        "", description="Command that reports the progress of a maintenance; empty for none."
    )
    exec_abort_command: str = Field(
        "",
        description="Command run after a started maintenance has failed, or after an operator has completed it; empty "
        "for none.",
    )
    exec_deadline: Span = Field(timedelta(hours=1), ge=timedelta(seconds=1), description="Time limit for exec_command.")
    exec_observe_deadline: Span = Field(
        timedelta(seconds=30), ge=timedelta(milliseconds=100), description="Time limit for exec_observe_command."
    )
    exec_output_size_bytes_max: int = Field(
        64 << 10, ge=1024, le=16 << 20, description="Maximum size of the stored output of one command."
    )
    exec_runs_max: int = Field(1000, ge=10, description="Maximum number of command runs whose results are kept.")
    exec_on_lost: Literal["fail", "repeat"] = Field(
        "fail",
        description="What happens if the result of a started command is lost. fail: the maintenance "
        "fails. repeat: the command runs again.",
    )
    webhook_url: str = Field("", description="URL that maintenances are posted to.")
    webhook_secret_file: Path | None = Field(
        None, description="File with the secret for signing requests to webhook_url."
    )
    webhook_deadline: Span = Field(
        timedelta(seconds=20),
        ge=timedelta(milliseconds=100),
        description="Time limit for one whole request to webhook_url.",
    )
    webhook_answer_size_bytes_max: int = Field(
        64 << 10, ge=256, le=16 << 20, description="Maximum size of an answer from webhook_url."
    )
    libvirt_uri: str = Field(
        "qemu:///system", description="URI of the hypervisor; {host} is replaced by the host's name."
    )
    libvirt_destination: str = Field(
        "",
        description="Destinations for migrated and redeployed VMs, separated by spaces: HOST=URI for the VMs of one "
        "host, or a URI alone for the VMs of all hosts without their own entry. `|ADDRESS` after a URI: address to "
        "which memory is copied.",
    )
    libvirt_freeze: Span = Field(
        timedelta(seconds=5),
        ge=timedelta(0),
        description="Time for which a Freeze of unknown duration suspends a VM.",
    )
    libvirt_shutdown_timeout: Span = Field(
        timedelta(minutes=2),
        ge=timedelta(seconds=1),
        description="Time limit for a guest to shut down before it is powered off.",
    )
    libvirt_migration_timeout: Span = Field(
        timedelta(minutes=30), ge=timedelta(seconds=1), description="Time limit for a live migration."
    )
    libvirt_call_timeout: Span = Field(
        timedelta(seconds=30), ge=timedelta(milliseconds=100), description="Time limit for one libvirt call."
    )

    # The simulate actuator
    simulate_impact_after: Span = Field(
        timedelta(seconds=7), ge=timedelta(0), description="Delay from the start of a maintenance to its impact (R98)."
    )
    simulate_complete_after: Span | None = Field(
        timedelta(minutes=10),
        ge=timedelta(0),
        description="Delay from the start of a maintenance to its completion (R98). none: an operator "
        "completes the maintenance.",
    )

    # Actuators
    actuator_timeout: Span = Field(
        timedelta(minutes=1), ge=timedelta(milliseconds=100), description="Time limit for one call of the actuator."
    )
    actuator_attempts_max: int = Field(
        10,
        ge=1,
        le=1000,
        description="Number of consecutive failed calls of the actuator after which a maintenance fails.",
    )
    actuator_retry: Span = Field(
        timedelta(seconds=5),
        ge=timedelta(milliseconds=100),
        description="Pause after a failed call of the actuator; doubles after each further failure, up to 5 min.",
    )
    actuator_calls_max: int = Field(
        64, ge=1, le=10_000, description="Maximum number of concurrent calls of the actuator."
    )

    # Notifications
    notify_source: str = Field(
        "/forewarn", min_length=1, max_length=300, description="Source named in notifications: a URI."
    )
    notify_deadline: Span = Field(
        timedelta(seconds=10),
        ge=timedelta(milliseconds=100),
        le=timedelta(minutes=5),
        description="Time limit for one whole request to a receiver of notifications.",
    )
    notify_answer_size_bytes_max: int = Field(
        16 << 10, ge=0, le=1 << 20, description="Maximum number of bytes read from a receiver's answer."
    )
    notify_private_addresses: bool = Field(
        default=True, description="Allow receivers in private networks and on this machine."
    )
    notify_proxy: str = Field("", description="URL of the proxy for requests to receivers; empty for none.")
    notify_ca_file: Path | None = Field(
        None, description="CA certificates, PEM, for verifying receivers in addition to the system's."
    )
    notify_retry: Span = Field(
        timedelta(seconds=5),
        ge=timedelta(milliseconds=100),
        description="Pause after the first failed delivery of a notification; doubles after each further failure. The "
        "first delivery includes two quick retries.",
    )
    notify_retry_max: Span = Field(
        timedelta(hours=1),
        ge=timedelta(seconds=1),
        le=timedelta(days=1),
        description="Maximum pause before retrying a notification.",
    )
    notify_age_max: Span = Field(
        timedelta(hours=24),
        ge=timedelta(minutes=1),
        le=timedelta(days=30),
        description="Age after which a failing notification is dropped.",
    )
    notify_requests_max: int = Field(
        4, ge=1, le=32, description="Maximum number of concurrent requests to one receiver."
    )
    notify_waiting_max: int = Field(
        100, ge=1, le=10_000, description="Maximum number of notifications of one subscription that wait for a retry."
    )
    notify_dead_max: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Number of dead (dropped) notifications at which a subscription is paused.",
    )
    notify_secret_overlap: Span = Field(
        timedelta(hours=24),
        ge=timedelta(0),
        le=timedelta(days=30),
        description="Time for which notifications are also signed with the previous secret after a change.",
    )
    subscriptions_max: int = Field(100, ge=1, le=1000, description="Maximum number of subscriptions to notifications.")
    unseen_before: Span | None = Field(
        timedelta(minutes=5),
        ge=timedelta(0),
        description="Time before NotBefore at which an event is reported as unseen if no VM of its audience has polled "
        "since the announcement; limited to half of the notice. Approved events, and events with a notice of 90 s or "
        "less, are never reported. none: never.",
    )
    late_start_after: Span | None = Field(
        timedelta(minutes=1),
        ge=timedelta(seconds=1),
        description="Time after NotBefore at which a maintenance that has not started is reported as late. "
        "none: never.",
    )
    late_end_after: Span | None = Field(
        timedelta(minutes=15),
        ge=timedelta(seconds=1),
        description="Time after the end of the announced duration at which an unfinished maintenance is reported as "
        "late. none: never.",
    )

    # Queues, retention and size limits
    clock_jump_max: Span = Field(
        timedelta(seconds=30),
        ge=timedelta(seconds=1),
        le=timedelta(hours=1),
        description="Largest change of the clock that does not count as a jump. After a jump, nothing that is due "
        "starts until an operator runs 'forewarn clock confirm'.",
    )
    commands_max: int = Field(
        10_000,
        ge=1,
        description="Maximum number of changes that wait for the database; further changes are refused with 503.",
    )
    approvals_waiting_per_caller_max: int = Field(
        1000,
        ge=1,
        description="Maximum number of approvals of one VM or operator that wait for the database; further approvals "
        "get 429.",
    )
    approval_ids_waiting_max: int = Field(
        100_000, ge=1, description="Maximum number of event ids in all approvals that wait for the database."
    )
    approval_ids_waiting_per_caller_max: int = Field(
        10_000,
        ge=1,
        description="Maximum number of event ids in the approvals of one VM or operator that wait for the database.",
    )
    due_batch_max: int = Field(
        500, ge=1, le=100_000, description="Maximum number of maintenances started in one transaction."
    )
    history_retention: Span = Field(
        timedelta(days=90),
        ge=timedelta(hours=1),
        description="Time for which Forewarn keeps ended maintenances, and the audit log entries that audit_retention "
        "does not cover.",
    )
    history_entries_max: int = Field(
        10_000_000,
        ge=1000,
        description="Maximum number of audit log entries that audit_retention does not cover; beyond it, the oldest "
        "are deleted.",
    )
    audit_retention: Span = Field(
        timedelta(days=366),
        ge=timedelta(hours=1),
        description="Time for which audit log entries about operators, tokens, refused calls and the like are kept, "
        "regardless of their number; see docs/reference/audit-log.md. If history_retention is longer, it applies.",
    )
    audit_log_entries_per_tenant_per_day: int = Field(
        1000,
        ge=1,
        le=10_000_000,
        description="Maximum number of audit log entries in 24 hours for one tenant's user operations, shared by all "
        "tokens of the tenant; further user operations get 429. Approvals are always accepted.",
    )
    idempotency_retention: Span = Field(
        timedelta(hours=24), ge=timedelta(minutes=1), description="Time for which an Idempotency-Key is kept."
    )
    page_size_max: int = Field(
        1000, ge=1, le=10_000, description="Maximum number of items in one page of the control API."
    )
    request_vms_max: int = Field(
        10_000, ge=1, le=1_000_000, description="Maximum number of hosts or VMs named in one request."
    )

    @field_validator(
        "clock_start",
        "user_operations_max",
        "rate_limit_per_s",
        "simulate_complete_after",
        "tracing_endpoint",
        "tracing_sample_ratio",
        "tracing_service_name",
        "unseen_before",
        "late_start_after",
        "late_end_after",
        mode="before",
    )
    @classmethod
    def _read_none(cls, value: object) -> object:
        """Read ``none`` as None for settings that may be unset: flags, variables and TOML have no null."""
        return None if value == "none" else value

    @field_validator("metadata_host_names")
    @classmethod
    def _check_host_names(cls, value: str) -> str:
        return ",".join(sorted(parse_host_names(value)))

    @field_validator("control_proxies")
    @classmethod
    def _check_networks(cls, value: str) -> str:
        parse_networks(value)
        return value

    @field_validator("tracing_endpoint")
    @classmethod
    def _check_endpoint(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            parts = urlsplit(value)
            is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:  # such as a port that is not a number
            is_address = False
        if not is_address or any(c.isspace() for c in value):
            raise ValueError(f"{value!r} is expected to be a URL such as http://127.0.0.1:4318")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic's
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources in order of precedence: flags, environment, file."""
        return (init_settings, env_settings, TomlConfigSettingsSource(settings_cls))

    def find_source(self, name: str) -> SettingSource:
        """Return where the value of a setting comes from."""
        # Arguments of a program that runs the service count as the command line.
        given = SettingSource.COMMAND_LINE if name in self.model_fields_set else SettingSource.DEFAULT
        return self._sources.get(name, given)

    def note_sources(self, sources: Mapping[str, SettingSource]) -> None:
        """Note where the values of these settings come from."""
        self._sources = {**self._sources, **sources}

    def note_lowered(self, names: Iterable[str]) -> None:
        """Note that the service has lowered these settings, because it may not open more files."""
        self.note_sources(dict.fromkeys(names, SettingSource.OPEN_FILES_LIMIT))

    @property
    def rules(self) -> DecisionRules:
        """Settings that the core's decisions depend on."""
        return DecisionRules(
            initial_incarnation=self.initial_incarnation,
            announce_delay=self.announce_delay,
            start_delay=self.start_delay,
            disable_after=self.disable_after,
            restart_grace=self.restart_grace,
            notice_max=self.notice_max,
            user_operations_max=self.user_operations_max,
            policy_delay=self.policy_delay,
            deferrals_max=self.deferrals_max,
            tenant_entries_max=self.audit_log_entries_per_tenant_per_day,
            hosts_may_join_scopes=self.hosts_may_join_scopes,
            alert_thresholds=AlertThresholds(
                unseen_before=self.unseen_before,
                late_start_after=self.late_start_after,
                late_end_after=self.late_end_after,
            ),
        )

    @property
    def removals(self) -> RemovalLimit:
        """Limit on removals by an inventory without confirmation."""
        return RemovalLimit(count_max=self.inventory_removals_max, share_max=self.inventory_removals_share_max)

    @property
    def dialect(self) -> Dialect:
        """Variant of the metadata protocol to serve."""
        return Dialect(**self.model_dump(include={each.name for each in fields(Dialect)}))
