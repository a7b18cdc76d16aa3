"""The nouns: hosts, VMs, scopes, audiences, maintenances, events, ledger entries.

All are frozen values; a change makes a new one with `dataclasses.replace`. Times are aware UTC datetimes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from forewarn.core.policy import NO_POLICY, Policy

__all__ = [
    "ACTIVE_STATES",
    "POLICY",
    "Audience",
    "Claim",
    "Entry",
    "EntryKind",
    "Event",
    "EventStatus",
    "EventType",
    "Host",
    "Maintenance",
    "MaintenanceState",
    "NotificationProfile",
    "PowerState",
    "Scope",
    "ScopeKind",
    "Source",
    "VirtualMachine",
    "audience_key",
    "names_of",
]


class EventType(StrEnum):
    """The impact to expect (R31). The values are the wire words."""

    FREEZE = "Freeze"
    REBOOT = "Reboot"
    REDEPLOY = "Redeploy"
    PREEMPT = "Preempt"
    TERMINATE = "Terminate"


class EventStatus(StrEnum):
    """What became of an event. The first two are on the wire (R35); the others live in the control API (X4)."""

    SCHEDULED = "Scheduled"
    STARTED = "Started"
    COMPLETED = "Completed"
    CANCELED = "Canceled"
    FAILED = "Failed"
    WITHDRAWN = "Withdrawn"
    """Dropped from the document because its scope was disabled (R70); its maintenance goes on."""


class MaintenanceState(StrEnum):
    """Where a maintenance stands. `core.lifecycle` holds the arrows."""

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
"""Who approves where a policy does."""


class Source(StrEnum):
    """Who caused it (R38)."""

    PLATFORM = "Platform"
    USER = "User"


class ScopeKind(StrEnum):
    """What groups VMs so that they see each other's events (R58)."""

    STANDALONE = "standalone"
    CLOUD_SERVICE = "cloud-service"
    AVAILABILITY_SET = "availability-set"
    SCALE_SET = "scale-set"


class PowerState(StrEnum):
    """Whether a VM is there to be impacted."""

    RUNNING = "running"
    DEALLOCATED = "deallocated"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationProfile:
    """Opt-in to events for deletes (R91) or for OS image changes (R93).

    Attributes:
        enable: Whether such operations make events.
        not_before_timeout: Their notice: 5 to 15 minutes for deletes, exactly 15 for OS images.
    """

    enable: bool = False
    not_before_timeout: timedelta = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine that VMs run on.

    Attributes:
        failed_at: When it was reported as failed; None: it was not, or it has recovered since.
        failure_reason: What was said of the failure.
    """

    name: str
    failed_at: datetime | None = None
    failure_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A group of VMs that see each other's events: cloud service, availability set, placement group.

    Attributes:
        fault_domain_count: How many fault domains the scope spans; None means not said. With 1, GPU VMs of a scale set
            see only events that name them (R58).
        terminate_notification: Profile for deletes (R91), as of the latest model.
        os_image_notification: Profile for OS upgrade and reimage (R93).
        approves_user_operations: The same as in `policy`, as the version before this keeps it (X5).
        couples_deletes: An approved Terminate waits until all pending ones of the scope are approved or due (R92).
        policy: What its owner wants.
    """

    name: str
    kind: ScopeKind
    fault_domain_count: int | None = None
    terminate_notification: NotificationProfile = NotificationProfile()
    os_image_notification: NotificationProfile = NotificationProfile(not_before_timeout=timedelta(minutes=15))
    approves_user_operations: bool = False
    couples_deletes: bool = False
    policy: Policy = NO_POLICY


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualMachine:
    """A virtual machine, and what `/metadata/instance` says of it (X3).

    Attributes:
        name: As it appears in Resources; case is kept (W7).
        host: Name of the host it runs on.
        scope: Name of its scope; None for a standalone VM.
        addresses: Source addresses that its requests come from, in canonical text form.
        terminate_notification: The profile it was last brought to (R91): a VM keeps it when the scope's changes.
        power_state: Only running VMs are impacted by maintenance.
        policy: What the owner of a standalone VM wants; that of a scope's VM is its scope's.
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

    @property
    def size_series(self) -> str:
        """Upper-case letters that name the size's family: ``"NC"`` for ``Standard_NC6``; ``""`` when unknown."""
        match = _SIZE.match(self.size)
        return match[1].upper() if match is not None else ""

    @property
    def is_spot(self) -> bool:
        """Whether the platform may evict it (R90)."""
        return self.priority.lower() == "spot"


def audience_key(vm: VirtualMachine, scope: Scope | None) -> str:
    """The key of the audience that `vm` belongs to.

    VMs with the same key see the same document. That is the scope, or the VM alone when it is standalone or falls
    under the GPU exception.

    Spec: R58, R59
    """
    if scope is None or scope.kind is ScopeKind.STANDALONE:
        return f"vm:{vm.name}"
    is_gpu = vm.size_series.startswith("N")
    if scope.kind is ScopeKind.SCALE_SET and scope.fault_domain_count == 1 and is_gpu:
        return f"vm:{vm.name}"
    return f"scope:{scope.name}"


def names_of(keys: Iterable[str]) -> tuple[list[str], list[str]]:
    """The names of the VMs and of the scopes that those keys of audiences stand for; see `audience_key`."""
    parts = [key.partition(":") for key in keys]
    return [name for kind, _, name in parts if kind == "vm"], [name for kind, _, name in parts if kind == "scope"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audience:
    """Who sees one document, and whether they asked for it yet.

    Attributes:
        key: See `audience_key`.
        scope: Name of the scope, or None for a VM alone.
        enabled_at: When the first request enabled the service (R67); None while disabled.
        epoch: How often it was enabled; incarnations are unique within an epoch (R46).
        incarnation: The current DocumentIncarnation (R42). Meaningless while disabled.
        active_until: A request is known to have come at or before this moment; 24 h later the service is disabled
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
    """One VM that a maintenance holds, with what decides who must wait for it."""

    vm: str
    host: str
    scope: str | None
    fault_domain: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """One operation on one or several VMs, that starts for all of them together (R84).

    Attributes:
        sequence: Order of creation; smaller is older.
        cause: Name of a row of `core.causes.CAUSES`.
        type: The impact announced.
        impact: The impact that happens; differs from `type` only where a Reboot turns out as a Freeze (R81).
        duration_s: Expected seconds; 0 no interruption, -1 unknown (R39).
        notice: Notice counted from the moment it is announced, which for a queued maintenance is later than its
            creation.
        requested_not_before: What the operator asked for, if a moment was named.
        not_before: None while queued.
        due_at: When the scheduler must look again; None when only something else can move it.
        begun_at: When an actuator that cannot be observed was told to execute it; None: it was not.
        impacted_at: When the actuator reported the first impact; None until then.
        attempts: Failed calls of the actuator in a row.
        force_reason: Why the minimum notice or missing approvals were overruled; None if they were not.
        hosts: Hosts it was asked for; empty when asked for VMs.
        request_id: Shared by the maintenances that one request was split into (R61).
        latest_start: Up to when NotBefore may be put off by whoever it hits; None: it may not.
        deferrals: How often it was put off.
        extensions: How often more time to prepare was given.
        extended: How much of that, in sum.
        announced_at: When its notice began; None while queued, and of what an earlier version has announced.
        is_at_once_unwarned: Whether it starts without waiting when none of its VMs can be warned (R70a).
        moved_from: What NotBefore would be without quiet hours; None: they did not move it.
        moved_by: Names of the scopes, or VMs that stand alone, whose quiet hours moved it.
        tenant_key: Tenant that asked for it, as `Owned.key`; None if no tenant did.
    """

    id: str
    sequence: int
    request_id: str
    cause: str
    type: EventType
    impact: EventType
    source: Source
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
    def is_active(self) -> bool:
        """Whether it can still change."""
        return self.state in ACTIVE_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What one audience sees of a maintenance. Its status follows from the maintenance's state (`core.lifecycle`).

    Attributes:
        id: Upper-case GUID, the same for the whole life (R30).
        sequence: Order of creation, which is the order in the document (R29).
        is_iaas: Whether 2017-03-01 prefixes the names with ``_`` (R20).
        is_listed: In the audience's document now. False once ended, or withdrawn (R70).
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
        """Whether anybody approved it."""
        return self.approved_at is not None

    @property
    def is_settled(self) -> bool:
        """Whether another approval would change nothing. One by a policy gives way to that of a VM or a person."""
        return self.approved_at is not None and self.approved_by != POLICY


class EntryKind(StrEnum):
    """What a ledger entry tells."""

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
    """A scope that was enabled while a maintenance waits is shown its event (R70b)."""
    VM_CHANGED = "vm-changed"
    INVENTORY_APPLIED = "inventory-applied"
    HOST_FAILED = "host-failed"
    HOST_RECOVERED = "host-recovered"
    TOKEN_CREATED = "token-created"  # noqa: S105 - a word of the ledger
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
    """A VM has not asked since the event was announced, and the notice runs out."""
    LATE = "late"
    """Due and not started, or longer in progress than announced."""
    SUBSCRIPTION = "subscription"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the ledger: append-only, never changed.

    Attributes:
        actor: ``operator:NAME``, ``tenant:NAME``, ``vm:NAME``, ``policy`` or ``forewarn``; ``unknown`` of a call that
            was refused because nobody knows who called.
        source_address: Where a VM's approval, or a call that was refused, came from.
        api_version: Which version a VM's approval named.
        reason: A person's words, or the detail of a failure.
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
    sequence: int = field(default=0, compare=False)
