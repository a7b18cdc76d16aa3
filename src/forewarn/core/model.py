"""Domain model: hosts, VMs, scopes, audiences, maintenances, events, audit log entries.

All are frozen values; a change makes a new one with `dataclasses.replace`. Times are aware UTC datetimes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from forewarn.core.label import Labels
from forewarn.core.policy import NO_POLICY, Policy

__all__ = [
    "ACTIVE_STATES",
    "POLICY",
    "SERVICE",
    "Audience",
    "AuditEntry",
    "Claim",
    "EntryKind",
    "Event",
    "EventSource",
    "EventStatus",
    "EventType",
    "Host",
    "Maintenance",
    "MaintenanceState",
    "NotificationProfile",
    "PowerState",
    "Scope",
    "ScopeKind",
    "VirtualMachine",
    "audience_key",
    "may_separate_vms",
    "split_audience_keys",
]


class EventType(StrEnum):
    """Expected effect on the VM (R31). The values are those of the metadata protocol."""

    FREEZE = "Freeze"
    REBOOT = "Reboot"
    REDEPLOY = "Redeploy"
    PREEMPT = "Preempt"
    TERMINATE = "Terminate"


class EventStatus(StrEnum):
    """Status of an event. VMs see only Scheduled and Started; the control API and notifications show all (R35, X4)."""

    SCHEDULED = "Scheduled"
    STARTED = "Started"
    COMPLETED = "Completed"
    CANCELED = "Canceled"
    FAILED = "Failed"
    WITHDRAWN = "Withdrawn"
    """Removed from the document because its scope was disabled (R70); its maintenance continues."""


class MaintenanceState(StrEnum):
    """State of a maintenance."""

    # `core.maintenance.lifecycle` holds the transitions. Not in the docstring, which the API publishes.

    QUEUED = "queued"
    SCHEDULED = "scheduled"
    STARTED = "started"
    COMPLETED = "completed"
    CANCELED = "canceled"
    FAILED = "failed"


_SIZE = re.compile(r"(?:standard|basic)_([a-z]+)", re.IGNORECASE)

ACTIVE_STATES = frozenset({MaintenanceState.QUEUED, MaintenanceState.SCHEDULED, MaintenanceState.STARTED})
"""States from which a maintenance can still change."""


POLICY = "policy"
"""Actor recorded for an approval by policy."""

SERVICE = "forewarn"
"""Actor recorded for what the service does without a caller: when a time has come, or when another maintenance ends."""


class EventSource(StrEnum):
    """Originator of an event (R38)."""

    PLATFORM = "Platform"
    USER = "User"


class ScopeKind(StrEnum):
    """Kind of a group of VMs. They see each other's events (R58), except in a `standalone` scope."""

    STANDALONE = "standalone"
    CLOUD_SERVICE = "cloud-service"
    AVAILABILITY_SET = "availability-set"
    SCALE_SET = "scale-set"


class PowerState(StrEnum):
    """Power state of a VM. Only running VMs are impacted."""

    RUNNING = "running"
    DEALLOCATED = "deallocated"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationProfile:
    """Opt-in to events for deletes (R91) or for OS image changes (R93).

    Attributes:
        enable: True if such operations make events.
        not_before_timeout: Notice of these events: 5 to 15 minutes for deletes, exactly 15 for OS images.
    """

    enable: bool = False
    not_before_timeout: timedelta = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine that VMs run on.

    Attributes:
        failed_at: Time of the reported failure; None if it has not failed, or has recovered.
        failure_reason: Reported reason of the failure.
        labels: Labels given by the operator; its VMs have them too.
    """

    name: str
    failed_at: datetime | None = None
    failure_reason: str | None = None
    labels: Labels = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A group of VMs that see each other's events: cloud service, availability set, placement group.

    Attributes:
        fault_domain_count: Number of fault domains of the scope; None if not declared. With 1, GPU VMs of a scale set
            see only events that name them (R58).
        terminate_notification: Profile for deletes (R91), as of the latest model.
        os_image_notification: Profile for OS upgrade and reimage (R93).
        couples_deletes: An approved Terminate waits until all pending ones of the scope are approved or due (R92).
        policy: Policy of the owner.
        labels: Labels given by the operator; its VMs have them too, and they override those of the host.
    """

    name: str
    kind: ScopeKind
    fault_domain_count: int | None = None
    terminate_notification: NotificationProfile = NotificationProfile()
    os_image_notification: NotificationProfile = NotificationProfile(not_before_timeout=timedelta(minutes=15))
    couples_deletes: bool = False
    policy: Policy = NO_POLICY
    labels: Labels = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualMachine:
    """A virtual machine, with the properties reported by `/metadata/instance` (X3).

    Attributes:
        name: Name as in Resources; case is kept (W7).
        host: Name of the host it runs on.
        scope: Name of its scope; None for a standalone VM.
        addresses: Source addresses of its requests, in canonical text form.
        terminate_notification: Profile in effect for this VM (R91): it is kept when that of the scope changes.
        power_state: Only running VMs are impacted by maintenance.
        policy: Policy of the owner of a standalone VM; a VM in a scope uses that of the scope.
        labels: Labels given by the operator, which override those of scope and host. A VM never reads them (X7).
    """

    name: str
    host: str
    scope: str | None = None
    fault_domain: int = 0
    update_domain: int = 0
    addresses: tuple[str, ...] = ()
    vm_id: str = ""
    size: str = ""
    location: str = ""
    zone: str = ""
    resource_group: str = ""
    subscription_id: str = ""
    os_type: str = ""
    priority: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    mac_address: str = ""
    terminate_notification: NotificationProfile = NotificationProfile()
    power_state: PowerState = PowerState.RUNNING
    policy: Policy = NO_POLICY
    labels: Labels = ()

    @property
    def size_series(self) -> str:
        """Upper-case letters of the size's family: ``"NC"`` for ``Standard_NC6``; ``""`` if unknown."""
        match = _SIZE.match(self.size)
        return match[1].upper() if match is not None else ""

    @property
    def is_spot(self) -> bool:
        """True if the platform may evict it (R90)."""
        return self.priority.lower() == "spot"


def audience_key(vm: VirtualMachine, scope: Scope | None) -> str:
    """Return the key of the audience that `vm` belongs to.

    VMs with the same key see the same document. The audience is the scope, or the VM alone if it is standalone or falls
    under the GPU exception.

    Spec: R58, R59
    """
    if scope is None or scope.kind is ScopeKind.STANDALONE:
        return f"vm:{vm.name}"
    # Azure's GPU sizes are those of family N.
    is_gpu = vm.size_series.startswith("N")
    return f"vm:{vm.name}" if is_gpu and may_separate_vms(scope) else f"scope:{scope.name}"


def may_separate_vms(scope: Scope) -> bool:
    """Return True if VMs of the scope may each be an audience alone, as `audience_key` decides for each.

    Spec: R58
    """
    if scope.kind is ScopeKind.STANDALONE:
        return True
    return scope.kind is ScopeKind.SCALE_SET and scope.fault_domain_count == 1


def split_audience_keys(keys: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the names of the VMs and the names of the scopes in these audience keys; see `audience_key`."""
    parts = [key.partition(":") for key in keys]
    return [name for kind, _, name in parts if kind == "vm"], [name for kind, _, name in parts if kind == "scope"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audience:
    """The VMs that see one document, and the state of the service for them.

    Attributes:
        key: See `audience_key`.
        scope: Name of the scope; None for a VM alone.
        enabled_at: Time at which the first request enabled the service (R67); None while disabled.
        epoch: Number of times it was enabled; incarnations are unique within an epoch (R46).
        incarnation: The current DocumentIncarnation (R42). Meaningless while disabled.
        active_until: Latest time at or before which a request is known to have come; 24 h later the service is disabled
            (R69).
    """

    key: str
    scope: str | None = None
    enabled_at: datetime | None = None
    epoch: int = 0
    incarnation: int = 0
    active_until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One VM that a maintenance holds, with the fields that decide which maintenances must wait for it."""

    vm: str
    host: str
    scope: str | None
    fault_domain: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """One operation on one or several VMs, which starts for all of them together (R84).

    Attributes:
        sequence: Order of creation; smaller is older.
        cause: Name of a row of `core.causes.CAUSES`.
        type: Announced impact.
        impact: Actual impact; differs from `type` only if a Reboot only freezes its VMs (R81).
        duration_s: Expected duration in seconds; 0 for no interruption, -1 if unknown (R39).
        notice: Notice from the announcement, which for a queued maintenance is later than its creation.
        requested_not_before: NotBefore requested by the operator; None if none was.
        not_before: NotBefore; None while queued.
        due_at: Time at which the scheduler must check it again; None if only something else can move it.
        begun_at: Time at which an actuator that cannot be observed was asked to execute it; None if it was not.
        impacted_at: Time at which the actuator reported the first impact; None until then.
        attempts: Consecutive failed calls of the actuator.
        force_reason: Reason for overruling the minimum notice or missing approvals; None if they were not.
        hosts: Hosts named in the request; empty if it named VMs.
        request_id: Id shared by the maintenances that one request was split into (R61).
        latest_start: Time up to which affected tenants may postpone NotBefore; None if they may not.
        deferrals: Number of deferrals.
        extensions: Number of extensions of the preparation time.
        extended: Total time of the extensions.
        announced_at: Start of the notice; None while queued.
        is_at_once_unwarned: True if it starts at once when none of its VMs can be warned (R70a).
        moved_from: NotBefore before it was moved by quiet hours; None if they did not move it.
        moved_by: Names of the scopes and standalone VMs whose quiet hours moved it.
        tenant_key: Tenant that requested it, as `Ownership.key`; None if no tenant did.
    """

    id: str
    sequence: int
    request_id: str
    cause: str
    type: EventType
    impact: EventType
    source: EventSource
    description: str
    duration_s: int
    state: MaintenanceState
    created_at: datetime
    notice: timedelta
    requested_not_before: datetime | None = None
    not_before: datetime | None = None
    due_at: datetime | None = None
    started_at: datetime | None = None
    begun_at: datetime | None = None
    impacted_at: datetime | None = None
    ended_at: datetime | None = None
    attempts: int = 0
    force_reason: str | None = None
    hosts: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    latest_start: datetime | None = None
    deferrals: int = 0
    extensions: int = 0
    extended: timedelta = timedelta(0)
    announced_at: datetime | None = None
    is_at_once_unwarned: bool = False
    moved_from: datetime | None = None
    moved_by: tuple[str, ...] = ()
    tenant_key: str | None = None

    @property
    def vms(self) -> tuple[str, ...]:
        """Names of the VMs it impacts."""
        return tuple(claim.vm for claim in self.claims)

    @property
    def claim_keys(self) -> set[tuple[str, str]]:
        """Kind and name of all that it claims: ``("vm", NAME)`` and ``("scope", NAME)``."""
        vms = {("vm", claim.vm) for claim in self.claims}
        return vms | {("scope", claim.scope) for claim in self.claims if claim.scope is not None}

    @property
    def known_duration(self) -> timedelta:
        """Announced duration of the impact; 0 if it is unknown."""
        return timedelta(seconds=max(self.duration_s, 0))

    @property
    def duration_text(self) -> str:
        """Announced duration in words."""
        return "unknown" if self.duration_s < 0 else f"{self.duration_s} s"

    @property
    def is_active(self) -> bool:
        """True if it can still change."""
        return self.state in ACTIVE_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One audience's view of a maintenance.

    Its status follows from the maintenance's state (`core.maintenance.lifecycle`).

    Attributes:
        id: Upper-case GUID, the same for the whole life (R30).
        sequence: Order of creation, which is the order in the document (R29).
        is_iaas: True if 2017-03-01 prefixes the names with ``_`` (R20).
        is_listed: True if it is in the audience's document now. False once ended, or withdrawn (R70).
    """

    id: str
    sequence: int
    maintenance_id: str
    audience: str
    update_domain: int
    resources: tuple[str, ...]
    is_iaas: bool = True
    is_listed: bool = True
    approved_at: datetime | None = None
    approved_by: str | None = None

    @property
    def is_approved(self) -> bool:
        """True if it was approved."""
        return self.approved_at is not None

    @property
    def is_settled(self) -> bool:
        """True if another approval would change nothing. An approval by policy yields to that of a VM or a person."""
        return self.approved_at is not None and self.approved_by != POLICY


class EntryKind(StrEnum):
    """Kind of an audit log entry."""

    QUEUED = "queued"
    SCHEDULED = "scheduled"
    APPROVED = "approved"
    STARTED = "started"
    DEFERRED = "deferred"
    EXTENDED = "extended"
    IMPACTED = "impacted"
    IMPACT_MEASURED = "impact-measured"
    COMPLETED = "completed"
    CANCELED = "canceled"
    FAILED = "failed"
    ATTEMPT_FAILED = "attempt-failed"
    ENABLED = "enabled"
    DISABLED = "disabled"
    WITHDRAWN = "withdrawn"
    ANNOUNCED = "announced"
    """The event of a waiting maintenance was given to a scope that was just enabled (R70b)."""
    VM_CHANGED = "vm-changed"
    INVENTORY_APPLIED = "inventory-applied"
    HOST_FAILED = "host-failed"
    HOST_RECOVERED = "host-recovered"
    TOKEN_CREATED = "token-created"  # noqa: S105 - a kind of audit log entry
    TOKEN_REVOKED = "token-revoked"  # noqa: S105 - as above
    REFUSED = "refused"
    CLOCK_ADVANCED = "clock-advanced"
    CLOCK_JUMPED = "clock-jumped"
    CLOCK_CONFIRMED = "clock-confirmed"
    ROLLOUT = "rollout"
    FAULT_INJECTED = "fault-injected"
    FAULT_CLEARED = "fault-cleared"
    PRUNED = "pruned"
    UNSEEN = "unseen"
    """No VM of the audience has polled since the announcement, and the notice period is nearly over."""
    LATE = "late"
    """Due and not started, or longer in progress than announced."""
    SUBSCRIPTION = "subscription"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One line of the audit log: append-only, never changed.

    Attributes:
        actor: ``operator:NAME``, ``tenant:NAME``, ``vm:NAME``, ``rollout:ID``, ``actuator``, `POLICY` or `SERVICE`;
            ``unknown`` for a refused call from an unknown caller. What one maintenance causes in another one is by
            `SERVICE`, whatever changed the first.
        source_address: Source address of a VM's approval or of a refused call.
        api_version: API version of a VM's approval.
        reason: Reason given by a person, or the detail of a failure.
    """

    kind: EntryKind
    at: datetime
    actor: str
    maintenance_id: str | None = None
    event_id: str | None = None
    audience: str | None = None
    vm: str | None = None
    source_address: str | None = None
    api_version: str | None = None
    reason: str | None = None
    # Assigned by the store, so an entry equals its stored copy.
    sequence: int = field(default=0, compare=False)
