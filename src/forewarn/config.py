"""Every setting, with its unit, its default and its limits.

A value is taken from the first of: command-line flag, environment variable ``FOREWARN_…``, TOML file (``--config``),
default. Spans of time are given as ``90s``, ``15m``, ``24h``, ``7d`` or a number of seconds.
"""

from __future__ import annotations

import json
import tomllib
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from forewarn.core.access import Role
from forewarn.core.budget import Budget
from forewarn.core.decision import Rules
from forewarn.core.difference import RemovalLimit
from forewarn.core.look import AlertThresholds
from forewarn.errors import ConfigError
from forewarn.net.listen import is_loopback_name, parse_host_names
from forewarn.net.pool import parse_networks
from forewarn.util.duration import format_span, parse_span
from forewarn.util.secrets import default_state_dir
from forewarn.wire.imds import Dialect

__all__ = ["Budgets", "Grant", "Oidc", "Settings", "Span", "load_settings", "said_settings"]

_Word = Annotated[str, Field(min_length=1, max_length=200)]
_Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519"]
Span = Annotated[timedelta, BeforeValidator(parse_span), PlainSerializer(format_span)]


def _seconds(most: int) -> Any:  # noqa: ANN401 - pydantic's FieldInfo
    return {"ge": timedelta(0), "le": timedelta(seconds=most)}


def _number(value: object) -> object:
    """An int where variables and flags give its digits: pydantic compares literals without converting them."""
    return int(value) if isinstance(value, str) and value.strip().isdecimal() else value


def _table(value: object) -> object:
    """JSON where a flag gives the text of it."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        msg = f'{value[:100]!r} is expected to be JSON, such as {{"tenant": {{"watches_max": 20}}}}'
        raise ValueError(msg) from None


class Grant(BaseModel):
    """What a claim of a signed token is worth; one row of `Oidc.grants`.

    Attributes:
        claim: Its name, or a path with dots, such as ``realm_access.roles``.
        value: What it has to be, or has to contain.
        role: ``operator``, ``tenant`` or ``read-only``.
        scopes: Of a tenant.
        vms: Of a tenant: VMs that stand alone.
        scopes_claim: A claim that names further scopes of a tenant; empty: none does.
        vms_claim: As `scopes_claim`, for VMs.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    claim: _Word
    value: _Word
    role: Literal[Role.OPERATOR, Role.TENANT, Role.READ_ONLY]
    scopes: tuple[_Word, ...] = ()
    vms: tuple[_Word, ...] = ()
    scopes_claim: str = ""
    vms_claim: str = ""

    @model_validator(mode="after")
    def _names_what_a_tenant_owns(self) -> Grant:
        has_names = bool(self.scopes or self.vms or self.scopes_claim or self.vms_claim)
        if has_names is not (self.role is Role.TENANT):
            msg = f"role {self.role}: " + ("only a tenant has scopes and VMs" if has_names else "name scopes or VMs")
            raise ValueError(msg)
        return self


class Oidc(BaseModel):
    """An OpenID Connect issuer whose tokens are taken.

    Attributes:
        issuer: Its URL, as it writes it itself; https, but on loopback.
        audience: What its tokens for us say in ``aud``.
        algorithms: Those that are taken. None of them has a key that is shared.
        name_claim: The claim that names a person; it must never be given to another one.
        grants: What claims are worth; the first that matches says the role.
        leeway: How far the clocks may be apart.
        keys_max_age: After this the keys are fetched anew.
        keys_pause: Least time between two tries to fetch them.
        timeout: For one try.
        ca_certificate: Who vouches for the issuer's certificate, PEM; None: whom this system trusts.
        client_id: As which the issuer knows the dashboard; empty: nobody can log in there with a browser.
        client_secret_file: File with the secret of that client; None: it is public, and has none.
        scope: What the dashboard asks the issuer for.
        dashboard_url: Where browsers find the dashboard; empty: at the address that they ask for.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    issuer: Annotated[str, Field(max_length=1000)]
    audience: _Word
    algorithms: Annotated[tuple[_Algorithm, ...], Field(min_length=1)] = ("RS256", "ES256")
    name_claim: _Word = "sub"
    grants: Annotated[tuple[Grant, ...], Field(min_length=1, max_length=1000)]
    leeway: Span = Field(timedelta(seconds=30), **_seconds(300))
    keys_max_age: Span = Field(timedelta(hours=1), ge=timedelta(minutes=1), le=timedelta(days=7))
    keys_pause: Span = Field(timedelta(seconds=30), **_seconds(3600))
    timeout: Span = Field(timedelta(seconds=5), ge=timedelta(milliseconds=100), le=timedelta(minutes=1))
    ca_certificate: Path | None = None
    client_id: Annotated[str, Field(max_length=200)] = ""
    client_secret_file: Path | None = None
    scope: Annotated[str, Field(max_length=1000)] = "openid profile"
    dashboard_url: Annotated[str, Field(max_length=1000)] = ""

    def client_secret(self) -> str | None:
        """The secret of the client, read anew each time: it may be replaced while the service runs.

        Raises:
            ConfigError: The file cannot be read.
        """
        if self.client_secret_file is None:
            return None
        try:
            return self.client_secret_file.read_text().strip()
        except (OSError, UnicodeError) as error:
            msg = f"cannot read {self.client_secret_file} (oidc.client_secret_file): {error}"
            raise ConfigError(msg) from error

    @field_validator("dashboard_url")
    @classmethod
    def _is_ours(cls, url: str) -> str:
        """A code that is sent in the clear can be read on its way."""
        parts = urlsplit(url)
        if url and not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback_name(parts.hostname or ""))):
            msg = f"{url!r} is expected to be like https://forewarn.example.com"
            raise ValueError(msg)
        return url

    @field_validator("issuer")
    @classmethod
    def _is_safe(cls, url: str) -> str:
        """Whoever could answer in its place could make operators."""
        parts = urlsplit(url)
        if not parts.hostname or parts.scheme not in {"https", "http"} or parts.query or parts.fragment:
            msg = f"{url!r} is expected to be like https://login.example.com"
            raise ValueError(msg)
        if parts.scheme == "http" and not is_loopback_name(parts.hostname):
            msg = f"{url!r} is expected to begin with https: in the clear anybody could answer in its place"
            raise ValueError(msg)
        return url


class _RoleBudget(BaseModel):
    """What one principal of a role may use at a time.

    Attributes:
        connections_max: Connections to the control address.
        requests_max: Requests being worked on, without streams.
        watches_max: Streams of the API. A host's oldest watch makes room for a new one.
        live_pages_max: Streams of the dashboard.
        body_size_bytes_max: Bytes of request bodies held in memory.
        changes_per_minute_max: Requests that change something.
        watch_starts_per_minute_max: Streams of the API that begin.
        refusals_per_minute_max: Requests over one of the other limits; beyond that they are refused unread.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    connections_max: int = Field(ge=1)
    requests_max: int = Field(ge=1)
    watches_max: int = Field(ge=1)
    live_pages_max: int = Field(ge=1)
    body_size_bytes_max: int = Field(ge=256)
    changes_per_minute_max: int = Field(ge=1)
    watch_starts_per_minute_max: int = Field(ge=1)
    refusals_per_minute_max: int = Field(ge=1)


class _OperatorBudget(_RoleBudget):
    connections_max: int = Field(8192, ge=1)
    requests_max: int = Field(256, ge=1)
    watches_max: int = Field(1000, ge=1)
    live_pages_max: int = Field(2000, ge=1)
    body_size_bytes_max: int = Field(256 << 20, ge=256)
    changes_per_minute_max: int = Field(12_000, ge=1)
    watch_starts_per_minute_max: int = Field(6000, ge=1)
    refusals_per_minute_max: int = Field(3000, ge=1)


class _ReaderBudget(_OperatorBudget):
    body_size_bytes_max: int = Field(8 << 20, ge=256)
    changes_per_minute_max: int = Field(600, ge=1)


class _TenantBudget(_RoleBudget):
    connections_max: int = Field(512, ge=1)
    requests_max: int = Field(32, ge=1)
    watches_max: int = Field(20, ge=1)
    live_pages_max: int = Field(100, ge=1)
    body_size_bytes_max: int = Field(8 << 20, ge=256)
    changes_per_minute_max: int = Field(300, ge=1)
    watch_starts_per_minute_max: int = Field(120, ge=1)
    refusals_per_minute_max: int = Field(300, ge=1)


class _HostBudget(_RoleBudget):
    connections_max: int = Field(128, ge=1)
    requests_max: int = Field(128, ge=1)
    watches_max: int = Field(4, ge=1)
    live_pages_max: int = Field(1, ge=1)
    body_size_bytes_max: int = Field(8 << 20, ge=256)
    changes_per_minute_max: int = Field(6000, ge=1)
    watch_starts_per_minute_max: int = Field(120, ge=1)
    refusals_per_minute_max: int = Field(120, ge=1)


class Budgets(BaseModel):
    """What one principal may use of the control API at a time, by role.

    Attributes:
        operator: Each operator.
        read_only: Each reader.
        tenant: Each tenant; tokens that own the same scopes and VMs share one budget.
        host: The endpoint on each host.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    operator: _OperatorBudget = _OperatorBudget()
    read_only: _ReaderBudget = _ReaderBudget()
    tenant: _TenantBudget = _TenantBudget()
    host: _HostBudget = _HostBudget()

    def by_role(self) -> dict[Role, Budget]:
        """As they are kept count of."""
        rows = {
            Role.OPERATOR: self.operator,
            Role.READ_ONLY: self.read_only,
            Role.TENANT: self.tenant,
            Role.HOST: self.host,
        }
        return {role: Budget(**row.model_dump()) for role, row in rows.items()}


class Settings(BaseSettings):
    """Settings of `forewarn serve`."""

    model_config = SettingsConfigDict(env_prefix="FOREWARN_", extra="forbid", frozen=True)

    # Where things are
    database_url: str = Field("sqlite:///forewarn.db", description="SQLite file, or a PostgreSQL URL.")
    database_size_bytes_max: int = Field(
        8 << 30, ge=1 << 20, description="Most that a SQLite file may grow to; beyond it changes are refused with 503."
    )
    database_check_every: Span = Field(
        timedelta(hours=1),
        ge=timedelta(seconds=1),
        description="Interval between checks of a SQLite file for damaged pages; the first one is at the start.",
    )
    state_dir: Path = Field(default_factory=default_state_dir, description="Folder for the operator token.")
    inventory: Path | None = Field(None, description="Inventory file to apply at the start, YAML or JSON.")
    inventory_removals_max: int = Field(
        10,
        ge=0,
        description="Hosts, scopes or VMs, each counted apart, that an inventory may remove without confirmation.",
    )
    inventory_removals_share_max: float = Field(
        0.1,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Share of the hosts, scopes or VMs that an inventory may remove without confirmation, rounded up; "
        "both limits apply. Below 1, the last one is never removed without confirmation.",
    )
    hosts_may_join_scopes: bool = Field(
        default=True,
        description="Whether a host, with its own token, may add a VM to a declared scope of which it runs no VM yet. "
        "VMs of a scope see and approve its events.",
    )
    metadata_listen: str = Field("127.0.0.1:8169", description="Address of the metadata endpoint; several with commas.")
    metadata_host_names: str = Field(
        "",
        max_length=10_000,
        description="Names by which VMs call the metadata endpoint, separated by commas. Addresses and localhost are "
        "always accepted in the Host header, other names are refused.",
    )
    metadata_process: Literal["own", "shared"] = Field(
        "own",
        description="Process that answers VMs: own, or shared with the control API. A virtual clock and fault "
        "injection imply shared.",
    )
    metadata_silence_max: Span = Field(
        timedelta(minutes=1),
        ge=timedelta(seconds=3),
        le=timedelta(days=1),
        description="A process that answers VMs and has sent nothing for this long is killed and replaced.",
    )
    any_caller_is: str = Field(
        "",
        max_length=128,
        description="For tests behind a port that is forwarded: the VM that everybody is whom no address tells.",
    )
    control_listen: str = Field("127.0.0.1:8170", description="Address of the control API.")
    tls_certificate: Path | None = Field(None, description="Certificate for the control API, PEM.")
    tls_key: Path | None = Field(None, description="Its private key, PEM.")
    insecure: bool = Field(
        default=False, description="Serve the control API without TLS on an address that is not loopback."
    )

    # Access
    oidc: Oidc | None = Field(
        None, description="An OpenID Connect issuer whose tokens are taken; see docs/how-to/give-access.md."
    )
    token_lifetime: Span = Field(
        timedelta(days=90), ge=timedelta(minutes=1), description="Of a token that is made without a time of its own."
    )
    token_lifetime_max: Span = Field(timedelta(days=366), ge=timedelta(minutes=1), description="Longest of a token.")
    session_lifetime: Span = Field(
        timedelta(hours=12), ge=timedelta(minutes=1), le=timedelta(days=30), description="Of a log-in to the dashboard."
    )
    tokens_max: int = Field(1000, ge=1, le=100_000, description="Tokens of people and programs at a time.")
    token_names_max: int = Field(1000, ge=1, le=10_000, description="Scopes and VMs of one tenant's token.")
    unknown_requests_per_address_minute_max: int = Field(
        600,
        ge=1,
        description="Requests per minute and address from callers who are not known, a sixth of it at once; beyond it, "
        "callers who were not known before are refused unread. Addresses in control_proxies are exempt.",
    )
    unknown_requests_per_minute_max: int = Field(
        3000, ge=1, description="The same, of all addresses together; a fifteenth of it at once."
    )
    auth_failures_max: int = Field(
        20, ge=1, description="Calls without a valid token per minute and address; then such get 429."
    )
    refused_entries_max: int = Field(
        10, ge=1, description="Ledger entries of refused calls per minute and address; the rest is summed up in one."
    )
    refused_entries_total_max: int = Field(600, ge=1, description="The same, of all addresses together.")
    refused_addresses_max: int = Field(
        10_000, ge=1, le=1_000_000, description="Addresses of refused calls that are counted at a time."
    )

    # Time
    clock: Literal["real", "virtual"] = Field("real", description="virtual: time stands still until it is advanced.")
    clock_start: datetime | None = Field(None, description="Where a virtual clock begins; default 2030-01-01.")

    # Rules
    initial_incarnation: int = Field(1, ge=0, le=1 << 31, description="First DocumentIncarnation (R45, A6).")
    first_answer_delay: Span = Field(
        timedelta(0), **_seconds(120), description="How long the enabling GET is held (R67)."
    )
    announce_delay: Span = Field(timedelta(0), **_seconds(300), description="From enabling to the first event (R68).")
    start_delay: Span = Field(timedelta(0), **_seconds(3600), description="From the last approval to the start (A24).")
    disable_after: Span = Field(
        timedelta(hours=24), ge=timedelta(seconds=1), description="Silence that disables a scope (R69)."
    )
    restart_grace: Span = Field(
        timedelta(minutes=10),
        ge=timedelta(0),
        description="Least time after a start before silence counts: nobody can ask a service that is down.",
    )
    notice_max: Span = Field(timedelta(days=90), ge=timedelta(minutes=15), description="Longest notice.")
    user_operations_max: int | None = Field(
        None, ge=1, description="User operations pending per scope; 10 in the preview (R88)."
    )
    policy_delay: Span = Field(
        timedelta(seconds=5),
        **_seconds(3600),
        description="How long a Freeze that a policy has approved is shown as Scheduled at least.",
    )
    deferrals_max: int = Field(20, ge=0, le=1000, description="How often one maintenance may be put off.")

    # The metadata protocol's switches
    notbefore_2017_03_01: Literal["iso", "rfc1123"] = Field("iso", description="NotBefore in 2017-03-01 (A1).")
    require_metadata_2017_03_01: Literal["none", "get", "all"] = Field(
        "none", description="Metadata header in 2017-03-01 (A3)."
    )
    cloud: Literal["public", "china"] = Field("public", description="china: without 2017-11-01 and Preempt (A2).")
    legacy_latest: bool = Field(default=False, description="Serve /metadata/latest/scheduledevents (A4).")
    unknown_event: Annotated[Literal[400, 404, 200], BeforeValidator(_number)] = Field(
        400, description="Status for the approval of an unknown id (A11)."
    )
    post_body: Literal["empty", "document"] = Field("empty", description="Body of the answer to an approval (A13).")
    rate_limit_per_s: int | None = Field(
        None, ge=1, le=1_000_000, description="Requests per second and VM; 5 on Azure (R9)."
    )

    # Rollouts
    health_commands: bool = Field(
        default=False,
        description="Let rollouts name a command that is run here between batches, as this service's user.",
    )

    # Testing
    fault_injection: bool = Field(default=False, description="Let operators have things go wrong on purpose.")
    faults_max: int = Field(100, ge=1, le=10_000, description="Faults in force at the same time.")
    journal_requests_max: int = Field(
        1000, ge=0, le=1_000_000, description="Requests of VMs that are kept for a look at them; 0 none."
    )

    # Traces
    tracing_endpoint: str | None = Field(
        None,
        max_length=2000,
        description="OTLP/HTTP address of a collector that traces are sent to, such as http://127.0.0.1:4318; "
        "none: nothing is traced. Wants the extra `tracing`.",
    )
    tracing_sample_ratio: float | None = Field(
        None,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Share of the traces that are sent, 0 to 1; none: what OTEL_TRACES_SAMPLER says, or all.",
    )
    tracing_service_name: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="Name that traces stand under; none: what OTEL_SERVICE_NAME says, or forewarn.",
    )
    tracing_moments_max: int = Field(
        1000, ge=1, le=100_000, description="Steps of maintenances that are told of one change; more are left out."
    )
    tracing_sights_max: int = Field(
        10_000, ge=0, le=10_000_000, description="Events whose first sight is waited for at the same time."
    )

    # Limits of the control address
    control_connections_max: int = Field(24_000, ge=1, description="Connections to the control address.")
    control_unknown_connections_max: int = Field(
        8192,
        ge=1,
        description="Connections to the control address that have not shown a valid token yet; "
        "one more ends the one that has waited longest.",
    )
    control_unknown_connections_per_address_max: int = Field(
        1024, ge=1, description="Connections of one address that have not shown a valid token yet."
    )
    control_unknown_size_bytes_max: int = Field(
        16 << 20,
        ge=1 << 10,
        description="Bytes held of all requests without a valid token; more end the one that has waited longest.",
    )
    control_proxies: str = Field(
        "127.0.0.1, ::1",
        max_length=4000,
        description="Addresses or networks that speak for many callers, such as a reverse proxy, with commas between "
        "them: control_unknown_connections_per_address_max does not apply to them.",
    )
    control_idle_timeout: Span = Field(
        timedelta(seconds=75),
        ge=timedelta(seconds=1),
        description="Silence after which a connection to the control address is closed; without a valid token it is "
        "request_timeout.",
    )
    budgets: Annotated[Budgets, BeforeValidator(_table)] = Field(
        Budgets(),
        description="Budgets of each operator, reader, tenant and host at the control API; see docs/how-to/operate.md.",
    )
    budgets_max: int = Field(
        10_000, ge=1, le=1_000_000, description="Principals whose use of the control API is remembered at a time."
    )

    # Limits of the metadata endpoint
    body_size_bytes_max: int = Field(
        1 << 20, ge=256, le=1 << 28, description="Largest request body, on either listener."
    )
    metadata_body_size_bytes_max: int = Field(
        256 << 10,
        ge=256,
        le=1 << 28,
        description="Largest body of an approval by a VM; body_size_bytes_max applies, too.",
    )
    header_size_bytes_max: int = Field(16 << 10, ge=1024, le=1 << 20, description="Largest request line with headers.")
    start_requests_max: int = Field(1000, ge=1, le=100_000, description="StartRequests in one POST.")
    request_timeout: Span = Field(
        timedelta(seconds=10), ge=timedelta(milliseconds=100), description="For a request to arrive whole."
    )
    idle_timeout: Span = Field(
        timedelta(minutes=5), ge=timedelta(seconds=1), description="For a connection without requests."
    )
    connections_max: int = Field(16384, ge=1, description="Connections to the metadata endpoint.")
    connections_per_vm_max: int = Field(
        256,
        ge=1,
        description="Connections of one VM, and of all unknown callers together. While connections run short, a VM may "
        "have a 32nd part of those that are free, or 16.",
    )
    connections_per_unknown_address_max: int = Field(
        16, ge=1, description="Connections from one address that is no VM's."
    )
    approvals_at_work_per_vm_max: int = Field(
        32, ge=1, description="Approvals of one VM that have begun and are not answered; more are refused with 429."
    )
    approval_bytes_per_vm_minute_max: int = Field(
        4 << 20,
        ge=1024,
        description="Bytes of approvals that one VM may send per minute, each counted as 256 at least. Then its "
        "approvals are refused with 429 until the minute ends.",
    )
    body_bytes_per_vm_max: int = Field(
        1 << 20, ge=256, description="Bytes of one VM's bodies that are not decoded yet; more are refused with 429."
    )
    body_bytes_max: int = Field(
        64 << 20, ge=256, description="Bytes of all VMs' bodies that are not decoded yet; more are refused with 503."
    )
    watches_max: int = Field(20_000, ge=1, description="Endpoints on hosts that may watch this process.")
    wait_max: Span = Field(timedelta(seconds=300), **_seconds(3600), description="Longest long poll (X1).")

    # What carries maintenances out
    actuator: Literal["simulate", "exec", "webhook", "libvirt"] = Field(
        "simulate", description="What carries maintenances out; see docs/how-to/actuators.md."
    )
    actuator_look_every: Span = Field(
        timedelta(seconds=1), ge=timedelta(milliseconds=10), description="From one look at what was begun to the next."
    )
    exec_command: str = Field("", description="Program and arguments, without a shell; run for each maintenance.")
    exec_observe_command: str = Field("", description="Tells how far a maintenance is; none: nobody can.")
    exec_abort_command: str = Field("", description="Run when a maintenance is given up; none: nothing is.")
    exec_deadline: Span = Field(timedelta(hours=1), ge=timedelta(seconds=1), description="For the command.")
    exec_observe_deadline: Span = Field(
        timedelta(seconds=30), ge=timedelta(milliseconds=100), description="For the observe command."
    )
    exec_output_size_bytes_max: int = Field(64 << 10, ge=1024, le=16 << 20, description="Output that is kept.")
    exec_runs_max: int = Field(1000, ge=10, description="Runs that are remembered.")
    exec_on_lost: Literal["fail", "repeat"] = Field(
        "fail", description="What to do about a maintenance that was begun, of which nothing is known any more."
    )
    webhook_url: str = Field("", description="Where maintenances are posted to.")
    webhook_secret_file: Path | None = Field(None, description="File with the secret that requests are signed with.")
    webhook_deadline: Span = Field(
        timedelta(seconds=20), ge=timedelta(milliseconds=100), description="For one whole request."
    )
    webhook_answer_size_bytes_max: int = Field(64 << 10, ge=256, le=16 << 20, description="Largest answer.")
    libvirt_uri: str = Field("qemu:///system", description="Of the hypervisor; {host} stands for the host's name.")
    libvirt_destination: str = Field("", description="Where VMs of a host go: HOST=URI, with spaces between.")
    libvirt_freeze: Span = Field(
        timedelta(seconds=5), ge=timedelta(0), description="Of a Freeze whose duration is unknown."
    )
    libvirt_shutdown_timeout: Span = Field(
        timedelta(minutes=2), ge=timedelta(seconds=1), description="For a guest to shut down before it loses its power."
    )
    libvirt_migration_timeout: Span = Field(
        timedelta(minutes=30), ge=timedelta(seconds=1), description="For a live migration before it is given up."
    )
    libvirt_call_timeout: Span = Field(
        timedelta(seconds=30), ge=timedelta(milliseconds=100), description="For one call of libvirt."
    )

    # The simulate actuator
    simulate_impact_after: Span = Field(
        timedelta(seconds=7), ge=timedelta(0), description="From start to impact (R98)."
    )
    simulate_complete_after: Span | None = Field(
        timedelta(minutes=10), ge=timedelta(0), description="From start to completion (R98); none: by hand."
    )

    # Actuators
    actuator_timeout: Span = Field(timedelta(minutes=1), ge=timedelta(milliseconds=100), description="For one call.")
    actuator_attempts_max: int = Field(
        10, ge=1, le=1000, description="Failed calls in a row until a maintenance has failed."
    )
    actuator_retry: Span = Field(
        timedelta(seconds=5),
        ge=timedelta(milliseconds=100),
        description="Pause after a failed call; doubles each time, up to 5 min.",
    )
    actuator_calls_max: int = Field(64, ge=1, le=10_000, description="Calls at the same time.")

    # Notifications
    notify_source: str = Field(
        "/forewarn", min_length=1, max_length=300, description="What notifications name as their source: a URI."
    )
    notify_deadline: Span = Field(
        timedelta(seconds=10),
        ge=timedelta(milliseconds=100),
        le=timedelta(minutes=5),
        description="For one whole request to a receiver of notifications.",
    )
    notify_answer_size_bytes_max: int = Field(
        16 << 10, ge=0, le=1 << 20, description="So much of a receiver's answer is read."
    )
    notify_private_addresses: bool = Field(
        default=True, description="Notify receivers in private networks and on this machine, too."
    )
    notify_proxy: str = Field("", description="URL of a proxy that receivers are reached by; empty: none.")
    notify_ca_file: Path | None = Field(
        None, description="Certificates, PEM, that receivers' are verified with beside the machine's own."
    )
    notify_retry: Span = Field(
        timedelta(seconds=5),
        ge=timedelta(milliseconds=100),
        description="Pause after a notification failed some times in a row; doubles each time.",
    )
    notify_retry_max: Span = Field(
        timedelta(hours=1), ge=timedelta(seconds=1), le=timedelta(days=1), description="Longest pause between tries."
    )
    notify_age_max: Span = Field(
        timedelta(hours=24),
        ge=timedelta(minutes=1),
        le=timedelta(days=30),
        description="Of what happened, until a notification of it that fails is given up.",
    )
    notify_requests_max: int = Field(4, ge=1, le=32, description="Requests to one receiver at the same time.")
    notify_waiting_max: int = Field(
        100, ge=1, le=10_000, description="Notifications of one subscription that wait for another try."
    )
    notify_dead_max: int = Field(
        10_000, ge=1, le=1_000_000, description="Notifications given up until a subscription is paused."
    )
    notify_secret_overlap: Span = Field(
        timedelta(hours=24), ge=timedelta(0), le=timedelta(days=30), description="How long a former secret signs too."
    )
    subscriptions_max: int = Field(100, ge=1, le=1000, description="Subscriptions to notifications.")
    unseen_before: Span | None = Field(
        timedelta(minutes=5),
        ge=timedelta(0),
        description="So long before NotBefore, or at half of the notice, a VM ought to have asked; none: never mind.",
    )
    late_start_after: Span | None = Field(
        timedelta(minutes=1),
        ge=timedelta(seconds=1),
        description="So long after NotBefore a maintenance that has not started is late; none: never.",
    )
    late_end_after: Span | None = Field(
        timedelta(minutes=15),
        ge=timedelta(seconds=1),
        description="So long after its announced duration a maintenance that is not over is late; none: never.",
    )

    # What grows
    clock_jump_max: Span = Field(
        timedelta(seconds=30),
        ge=timedelta(seconds=1),
        le=timedelta(hours=1),
        description="Largest step of the clock that is taken as it is. After a larger one, nothing that is due starts "
        "until an operator runs 'forewarn clock confirm'.",
    )
    commands_max: int = Field(
        10_000, ge=1, description="Changes waiting for the database; one more is refused with 503."
    )
    approvals_waiting_per_caller_max: int = Field(
        1000,
        ge=1,
        description="Approvals of one VM or operator waiting for the database; one more is refused with 429.",
    )
    approval_ids_waiting_max: int = Field(
        100_000, ge=1, description="Event ids in all approvals that wait for the database."
    )
    approval_ids_waiting_per_caller_max: int = Field(
        10_000, ge=1, description="Event ids in the approvals of one VM or operator that wait for the database."
    )
    due_batch_max: int = Field(500, ge=1, le=100_000, description="Maintenances started in one transaction.")
    history_retention: Span = Field(
        timedelta(days=90),
        ge=timedelta(hours=1),
        description="How long ended maintenances are kept, and ledger entries caused by tenants, VMs and time.",
    )
    history_entries_max: int = Field(
        10_000_000,
        ge=1000,
        description="Maximum number of ledger entries caused by tenants, VMs and time; the oldest are removed.",
    )
    audit_retention: Span = Field(
        timedelta(days=366),
        ge=timedelta(hours=1),
        description="How long ledger entries about operators, tokens and refused calls are kept, whatever their "
        "number; never shorter than history_retention.",
    )
    ledger_entries_per_tenant_a_day: int = Field(
        1000,
        ge=1,
        le=10_000_000,
        description="Maximum number of ledger entries in 24 hours for the user operations of one tenant, whichever of "
        "its tokens it uses; further user operations get 429. Approvals are always accepted.",
    )
    idempotency_retention: Span = Field(
        timedelta(hours=24), ge=timedelta(minutes=1), description="How long an Idempotency-Key is remembered."
    )
    page_size_max: int = Field(1000, ge=1, le=10_000, description="Items in one page of the control API.")
    request_vms_max: int = Field(10_000, ge=1, le=1_000_000, description="Hosts or VMs named in one request.")

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
        """Flags, variables and TOML have no null; the word is for settings that may be unset."""
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
        except ValueError:  # the port is no number, for one
            is_address = False
        if not is_address or any(c.isspace() for c in value):
            msg = f"{value!r} is expected to be a URL such as http://127.0.0.1:4318"
            raise ValueError(msg)
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
        """Flag, environment, file; in that order."""
        return (init_settings, env_settings, TomlConfigSettingsSource(settings_cls))

    @property
    def rules(self) -> Rules:
        """The settings that decisions depend on."""
        return Rules(
            initial_incarnation=self.initial_incarnation,
            announce_delay=self.announce_delay,
            start_delay=self.start_delay,
            disable_after=self.disable_after,
            restart_grace=self.restart_grace,
            notice_max=self.notice_max,
            user_operations_max=self.user_operations_max,
            policy_delay=self.policy_delay,
            deferrals_max=self.deferrals_max,
            tenant_entries_max=self.ledger_entries_per_tenant_a_day,
            hosts_may_join_scopes=self.hosts_may_join_scopes,
            alert_thresholds=AlertThresholds(
                unseen_before=self.unseen_before,
                late_start_after=self.late_start_after,
                late_end_after=self.late_end_after,
            ),
        )

    @property
    def removals(self) -> RemovalLimit:
        """How much an inventory may remove without confirmation."""
        return RemovalLimit(count_max=self.inventory_removals_max, share_max=self.inventory_removals_share_max)

    @property
    def dialect(self) -> Dialect:
        """The switches of the metadata protocol."""
        return Dialect(
            notbefore_2017_03_01=self.notbefore_2017_03_01,
            require_metadata_2017_03_01=self.require_metadata_2017_03_01,
            cloud=self.cloud,
            legacy_latest=self.legacy_latest,
            unknown_event=self.unknown_event,
            post_body=self.post_body,
        )


class _Said(Settings):
    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is pydantic's
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What was said, and nothing else."""
        return (init_settings,)


def said_settings(**said: object) -> Settings:
    """Settings from what is said here: neither the environment nor a file changes them.

    Raises:
        ConfigError: One line that names the setting and what was expected.
    """
    values: dict[str, Any] = dict(said)
    try:
        return _Said(**values)
    except ValidationError as error:
        raise _refused(error) from error


def load_settings(config: Path | None = None, **flags: object) -> Settings:
    """Settings from flags, environment and file.

    Args:
        config: TOML file; None for none.
        flags: What the command line said; None values count as not said.

    Raises:
        ConfigError: One line that names the setting and what was expected.
    """
    if config is not None and not config.is_file():
        msg = f"cannot read {config}: {'not a file' if config.exists() else 'no such file'}"
        raise ConfigError(msg)

    class _WithFile(Settings):
        model_config = SettingsConfigDict(toml_file=config)

    try:
        said: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
        return _WithFile(**said)
    except ValidationError as error:
        raise _refused(error) from error
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else error
        msg = f"cannot read {config}: {words}"
        raise ConfigError(msg) from error


def _refused(error: ValidationError) -> ConfigError:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    msg = f"setting {name}: {first['msg'].removeprefix('Value error, ')}"
    return ConfigError(msg, setting=name)
