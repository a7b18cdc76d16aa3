"""The JSON of the control API: requests and responses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, PlainSerializer, model_validator

from forewarn.core.causes import CAUSES, DEFAULT_CAUSE
from forewarn.core.fault import FAULTS, InjectedFault
from forewarn.core.inventory import InventoryChange
from forewarn.core.maintenance.lifecycle import get_event_status
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.maintenance.unwarned import find_unwarned_vms
from forewarn.core.model import (
    AuditEntry,
    EntryKind,
    Event,
    EventSource,
    EventStatus,
    EventType,
    Host,
    Maintenance,
    MaintenanceState,
    PowerState,
    Scope,
    VirtualMachine,
)
from forewarn.wire.advice import Advice
from forewarn.wire.exchange import Exchange

__all__ = [
    "ApprovalIn",
    "ApprovalResultOut",
    "ApprovalResultsOut",
    "AuditEntryOut",
    "ClearedFaultsOut",
    "ClientWarningOut",
    "ClockAdvanceIn",
    "ClockConfirmationIn",
    "ClockOut",
    "DeferralIn",
    "ErrorOut",
    "EventOut",
    "ExchangeOut",
    "ExtendIn",
    "FailurePredictionIn",
    "FaultIn",
    "FaultOut",
    "ForcedStartIn",
    "HostFailureIn",
    "HostOut",
    "ImpactIn",
    "InventoryChangeOut",
    "MaintenanceIn",
    "MaintenanceOut",
    "OperationIn",
    "PageOut",
    "PlannedEventOut",
    "PlannedMaintenanceOut",
    "ReasonIn",
    "RequestModel",
    "ResponseModel",
    "VmOut",
    "to_timedelta",
]

T = TypeVar("T")

_SPAN_MAX_S = 10 * 366 * 86400
NO_NUL = r"^[^\x00]*$"
"""Pattern without the character NUL, which PostgreSQL refuses in a text."""


def _convert_to_utc(moment: datetime) -> datetime:
    try:
        # The first and last hours of the calendar fall outside of it in UTC.
        return moment.astimezone(UTC)
    except OverflowError:
        msg = "out of range: expected a time between the years 1 and 9999 in UTC"
        raise ValueError(msg) from None


def _format_rfc3339(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


Moment = Annotated[AwareDatetime, AfterValidator(_convert_to_utc), PlainSerializer(_format_rfc3339)]
Reason = Annotated[
    str, Field(min_length=1, max_length=1000, pattern=NO_NUL, description="Reason, recorded in the audit log.")
]
Seconds = Annotated[float, Field(ge=0, le=_SPAN_MAX_S, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=128)]


class RequestModel(BaseModel):
    """Base of requests and of parts of files; unknown members are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ResponseModel(BaseModel):
    """Base of responses and of the data of notifications."""

    model_config = ConfigDict(frozen=True)


# Requests


class _ForceableIn(RequestModel):
    force: bool = Field(
        default=False, description="Undercut the minimum notice and ignore quiet hours. Requires `reason`."
    )
    reason: Reason | None = None

    @model_validator(mode="after")
    def _check_reason(self) -> _ForceableIn:
        if self.force and self.reason is None:
            msg = "force requires a reason"
            raise ValueError(msg)
        return self

    @property
    def force_reason(self) -> str | None:
        """Reason of a forced request; None if it is not forced."""
        return self.reason if self.force else None


class MaintenanceIn(_ForceableIn):
    """A maintenance to schedule, for hosts or for VMs. Omitted fields default to those of the cause."""

    hosts: list[Name] = Field(default_factory=list, description="Hosts of which every running VM is affected.")
    vms: list[Name] = Field(default_factory=list, description="VMs that are affected.")
    type: EventType | None = None
    source: EventSource | None = None
    cause: str | None = Field(None, max_length=64, description=f"One of {', '.join(CAUSES)}.")
    description: str | None = Field(None, max_length=1000, pattern=NO_NUL)
    duration_s: Annotated[int, Field(ge=-1, le=_SPAN_MAX_S)] | None = Field(
        None, description="Expected impact in seconds. 0: no interruption; -1: unknown."
    )
    impact: EventType | None = Field(None, description="Actual impact, if it differs from `type`: Freeze for a Reboot.")
    notice_s: Seconds | None = Field(None, description="Seconds from announcement to NotBefore.")
    not_before: Moment | None = None
    latest_start: Moment | None = Field(
        None, description="Latest NotBefore to which affected tenants may postpone it. Null: they may not."
    )
    now: bool = Field(
        default=False,
        description="Start immediately if no affected VM has asked for events. If one has, the request is refused "
        "unless it is forced: a VM that can be warned gets its notice.",
    )

    @model_validator(mode="after")
    def _check_type_and_time(self) -> MaintenanceIn:
        if self.type is None and self.cause is None:
            msg = "name a type or a cause"
            raise ValueError(msg)
        if self.now and (self.notice_s is not None or self.not_before is not None):
            msg = "now cannot be combined with notice_s or not_before"
            raise ValueError(msg)
        return self

    def to_request(self) -> MaintenanceRequest:
        """Convert to a request of the core."""
        cause = self.cause
        if cause is None and self.type is not None:
            cause = DEFAULT_CAUSE[self.type, self.source or EventSource.PLATFORM]
        return MaintenanceRequest(
            cause=cause or "",
            type=self.type,
            source=self.source,
            description=self.description,
            duration_s=self.duration_s,
            impact=self.impact,
            notice=to_timedelta(self.notice_s),
            not_before=self.not_before,
            hosts=tuple(dict.fromkeys(self.hosts)),
            vms=tuple(self.vms),
            force_reason=self.force_reason,
            latest_start=self.latest_start,
            is_now=self.now,
        )


class OperationIn(_ForceableIn):
    """A user's or the platform's operation on one VM."""

    notice_s: Seconds | None = Field(None, description="Seconds from announcement to NotBefore. Default: the minimum.")
    source: EventSource | None = None

    def to_request(self, cause: str, vm: str) -> MaintenanceRequest:
        """Convert to a request of the core."""
        return MaintenanceRequest(
            cause=cause,
            vms=(vm,),
            source=self.source,
            notice=to_timedelta(self.notice_s),
            force_reason=self.force_reason,
        )


class HostFailureIn(RequestModel):
    """A hardware failure of a host. It has already happened, so there is no notice (R73)."""

    reason: Reason | None = None


class FailurePredictionIn(_ForceableIn):
    """A predicted hardware failure of a host (R72)."""

    notice_s: Seconds | None = Field(None, description="Seconds until the VMs are moved. Default: 7 days.")
    type: EventType | None = Field(None, description="Redeploy; Freeze if the VMs are migrated live (A15).")


class ReasonIn(RequestModel):
    """An optional reason."""

    reason: Reason | None = None


class ForcedStartIn(RequestModel):
    """A start without waiting for approvals or NotBefore."""

    reason: Reason


class DeferralIn(RequestModel):
    """A later NotBefore."""

    not_before: Moment | None = Field(None, description="New NotBefore. Cannot be combined with `by_s`.")
    by_s: Annotated[float, Field(gt=0, le=_SPAN_MAX_S, allow_inf_nan=False)] | None = Field(
        None, description="Seconds by which to postpone NotBefore. Cannot be combined with `not_before`."
    )
    reason: Reason | None = None

    @model_validator(mode="after")
    def _check_one_given(self) -> DeferralIn:
        if (self.not_before is None) == (self.by_s is None):
            msg = "give either not_before or by_s"
            raise ValueError(msg)
        return self

    @property
    def by(self) -> timedelta | None:
        """Delay of NotBefore; None if a moment is given."""
        return to_timedelta(self.by_s)


class ExtendIn(RequestModel):
    """More time to prepare."""

    by_s: Annotated[float, Field(gt=0, le=_SPAN_MAX_S, allow_inf_nan=False)]
    scope: Name | None = Field(
        None,
        description="Scope or standalone VM that needs the time. Optional if there is only one. If a scope and a VM "
        "have the same name, `scope:NAME` or `vm:NAME`.",
    )
    reason: Reason | None = None

    @property
    def by(self) -> timedelta:
        """Amount of additional time."""
        return timedelta(seconds=self.by_s)


class ImpactIn(RequestModel):
    """A further impact of a started maintenance (R80)."""

    duration_s: Annotated[int, Field(ge=0, le=86400)]


class ApprovalIn(RequestModel):
    """Events to approve for the VMs (X6)."""

    event_ids: Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(min_length=1, max_length=1000)]


class FaultIn(RequestModel):
    """A fault to inject."""

    kind: str = Field(max_length=64, description=f"One of {', '.join(FAULTS)}.")
    vms: list[Name] = Field(
        default_factory=list, max_length=1000, description="VMs whose requests are affected. Empty: all."
    )
    method: Literal["GET", "POST"] | None = Field(None, description="Affect only requests with this method.")
    count: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = Field(
        None, description="Number of requests to affect."
    )
    rate: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = Field(
        1.0, description="Fraction of the requests to affect."
    )
    lasts_s: Annotated[float, Field(gt=0, le=_SPAN_MAX_S, allow_inf_nan=False)] | None = Field(
        None, description="Seconds until the fault ends."
    )
    delay_s: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] | None = Field(
        None, description="Delay in seconds, for kinds that delay."
    )


class ClockAdvanceIn(RequestModel):
    """Amount by which to move a virtual clock forward."""

    by_s: Seconds


# Responses


class ErrorBody(ResponseModel):
    """Description of an error."""

    code: str
    message: str
    details: dict[str, Any] = {}


class ErrorOut(ResponseModel):
    """Body of every error response."""

    error: ErrorBody


class EventOut(ResponseModel):
    """An event, as one audience sees it."""

    id: str
    maintenance_id: str
    scope: str
    resources: list[str]
    update_domain: int
    status: EventStatus
    type: EventType
    not_before: Moment | None
    approved_at: Moment | None
    approved_by: str | None

    @classmethod
    def from_model(cls, event: Event, maintenance: Maintenance) -> EventOut:
        """Build from the model."""
        return cls(
            id=event.id,
            maintenance_id=maintenance.id,
            scope=event.audience.partition(":")[2],
            resources=list(event.resources),
            update_domain=event.update_domain,
            status=get_event_status(event, maintenance),
            type=maintenance.type,
            not_before=maintenance.not_before,
            approved_at=event.approved_at,
            approved_by=event.approved_by,
        )


_MOVED_FROM = "NotBefore without quiet hours. Null: quiet hours did not move it."
_MOVED_BY = "Scopes or standalone VMs whose quiet hours moved NotBefore."
_UNWARNED = (
    "Affected VMs that no event warns: they have not asked for events, or their scope has not opted in. "
    "For a queued maintenance, as far as known now."
)


class MaintenanceOut(ResponseModel):
    """A maintenance with its events."""

    id: str
    request_id: str
    state: MaintenanceState
    cause: str
    type: EventType
    impact: EventType
    source: EventSource
    description: str
    duration_s: int
    notice_s: float
    not_before: Moment | None
    moved_from: Moment | None = Field(description=_MOVED_FROM)
    moved_by: list[str] = Field(description=_MOVED_BY)
    created_at: Moment
    started_at: Moment | None
    impacted_at: Moment | None
    ended_at: Moment | None
    force_reason: str | None
    latest_start: Moment | None
    deferrals: int
    extensions: int
    extended_s: float
    hosts: list[str]
    vms: list[str]
    unwarned_vms: list[str] = Field(description=_UNWARNED)
    events: list[EventOut]

    @classmethod
    def from_model(
        cls, maintenance: Maintenance, events: list[Event], would_warn: Callable[[str], bool] | None = None
    ) -> MaintenanceOut:
        """Build from the model; for `would_warn` see `core.maintenance.unwarned.find_unwarned_vms`."""
        m = maintenance
        return cls(
            id=m.id,
            request_id=m.request_id,
            state=m.state,
            cause=m.cause,
            type=m.type,
            impact=m.impact,
            source=m.source,
            description=m.description,
            duration_s=m.duration_s,
            notice_s=m.notice.total_seconds(),
            not_before=m.not_before,
            moved_from=m.moved_from,
            moved_by=list(m.moved_by),
            created_at=m.created_at,
            started_at=m.started_at,
            impacted_at=m.impacted_at,
            ended_at=m.ended_at,
            force_reason=m.force_reason,
            latest_start=m.latest_start,
            deferrals=m.deferrals,
            extensions=m.extensions,
            extended_s=m.extended.total_seconds(),
            hosts=list(m.hosts),
            vms=list(m.vms),
            unwarned_vms=list(find_unwarned_vms(m, events, would_warn)),
            events=[EventOut.from_model(event, m) for event in events],
        )


class PlannedEventOut(ResponseModel):
    """An event that would be announced."""

    scope: str
    resources: list[str]
    update_domain: int
    is_approved: bool = Field(description="True if a policy would approve it immediately.")


class PlannedMaintenanceOut(ResponseModel):
    """A maintenance that would be created. Nothing was changed, so it has no id."""

    dry_run: Literal[True] = True
    state: Literal["planned"] = "planned"
    would_be: MaintenanceState = Field(description="State that the maintenance would have.")
    cause: str
    type: EventType
    impact: EventType
    source: EventSource
    description: str
    duration_s: int
    notice_s: float
    not_before: Moment | None = Field(description="Null: the maintenance would be queued and announced later.")
    moved_from: Moment | None = Field(description=_MOVED_FROM)
    moved_by: list[str] = Field(description=_MOVED_BY)
    force_reason: str | None
    latest_start: Moment | None
    hosts: list[str]
    vms: list[str]
    unwarned_vms: list[str] = Field(description=_UNWARNED)
    events: list[PlannedEventOut]

    @classmethod
    def from_model(
        cls, maintenance: Maintenance, events: Iterable[Event], unwarned: Iterable[str]
    ) -> PlannedMaintenanceOut:
        """Build from the model."""
        m = maintenance
        return cls(
            would_be=m.state,
            cause=m.cause,
            type=m.type,
            impact=m.impact,
            source=m.source,
            description=m.description,
            duration_s=m.duration_s,
            notice_s=m.notice.total_seconds(),
            not_before=m.not_before,
            moved_from=m.moved_from,
            moved_by=list(m.moved_by),
            force_reason=m.force_reason,
            latest_start=m.latest_start,
            hosts=list(m.hosts),
            vms=list(m.vms),
            unwarned_vms=list(unwarned),
            events=[
                PlannedEventOut(
                    scope=event.audience.partition(":")[2],
                    resources=list(event.resources),
                    update_domain=event.update_domain,
                    is_approved=event.is_approved,
                )
                for event in events
            ],
        )


class PageOut(ResponseModel, Generic[T]):
    """One part of a list.

    Pass ``next`` as ``after`` to get the next part; null at the end.
    """

    items: list[T]
    next: str | None = None


class ApprovalResultOut(ResponseModel):
    """Result of the approval of one event."""

    event_id: str
    status: int = Field(
        description="200: approved, or past approval; 404: unknown event; 409: reserved for others by policy."
    )
    outcome: str = Field(description="`approved`, `unchanged`, `refused` or `unknown`.")


class ApprovalResultsOut(ResponseModel):
    """Result of each approval; the status is 207 if they differ (X6)."""

    items: list[ApprovalResultOut]


class VmOut(ResponseModel):
    """A VM."""

    name: str
    host: str | None = Field(description="Null for tenants, who cannot see hosts.")
    scope: str | None
    scope_kind: str
    fault_domain: int
    update_domain: int
    addresses: list[str]
    power_state: PowerState
    priority: str
    size: str
    enabled: bool = Field(description="True if its scope asks for scheduled events (R67, R69).")
    incarnation: int | None = Field(description="Incarnation of its present document. Null if `enabled` is false.")

    @classmethod
    def from_model(
        cls, vm: VirtualMachine, scope: Scope | None, incarnation: int | None, *, has_host: bool = True
    ) -> VmOut:
        """Build from the model."""
        return cls(
            name=vm.name,
            host=vm.host if has_host else None,
            scope=vm.scope,
            scope_kind=scope.kind.value if scope is not None else "standalone",
            fault_domain=vm.fault_domain,
            update_domain=vm.update_domain,
            addresses=list(vm.addresses),
            power_state=vm.power_state,
            priority=vm.priority,
            size=vm.size,
            enabled=incarnation is not None,
            incarnation=incarnation,
        )


class HostOut(ResponseModel):
    """A host and its VMs."""

    name: str
    vms: list[str]
    failed_at: Moment | None = Field(description="Time at which it was reported as failed. Null: it works.")
    failure_reason: str | None

    @classmethod
    def from_model(cls, host: Host, vms: list[str]) -> HostOut:
        """Build from the model."""
        return cls(name=host.name, vms=vms, failed_at=host.failed_at, failure_reason=host.failure_reason)


class InventoryChangeOut(ResponseModel):
    """Number of changes made by applying an inventory."""

    added: int
    changed: int
    removed: int
    unchanged: int

    @classmethod
    def from_model(cls, change: InventoryChange) -> InventoryChangeOut:
        """Build from the model."""
        return cls(added=change.added, changed=change.changed, removed=change.removed, unchanged=change.unchanged)


class AuditEntryOut(ResponseModel):
    """One entry of the audit log."""

    sequence: int
    at: Moment
    kind: EntryKind
    actor: str
    maintenance_id: str | None
    event_id: str | None
    scope: str | None
    vm: str | None
    source_address: str | None
    api_version: str | None
    reason: str | None

    @classmethod
    def from_model(cls, entry: AuditEntry) -> AuditEntryOut:
        """Build from the model."""
        return cls(
            sequence=entry.sequence,
            at=entry.at,
            kind=entry.kind,
            actor=entry.actor,
            maintenance_id=entry.maintenance_id,
            event_id=entry.event_id,
            scope=entry.audience.partition(":")[2] if entry.audience is not None else None,
            vm=entry.vm,
            source_address=entry.source_address,
            api_version=entry.api_version,
            reason=entry.reason,
        )


class ClockOut(ResponseModel):
    """The service's clock."""

    clock: str
    now: Moment
    jump_s: float | None = Field(
        None, description="Seconds of a clock jump that no operator has confirmed, negative if backwards. Null: none."
    )


class ClockConfirmationIn(RequestModel):
    """Confirmation of a clock that has jumped."""

    reason: str | None = Field(None, max_length=1000, description="Reason, recorded in the audit log.")


class FaultOut(ResponseModel):
    """An active fault."""

    id: int
    kind: str
    vms: tuple[str, ...]
    method: str | None
    count: int | None = Field(description="Number of requests that it will still affect. Null: no limit.")
    rate: float
    until: Moment | None
    delay_s: float
    struck: int = Field(description="Number of requests affected so far.")

    @classmethod
    def from_model(cls, fault: InjectedFault) -> FaultOut:
        """Build from the model."""
        return cls(
            id=fault.id,
            kind=fault.kind.name,
            vms=fault.vms,
            method=fault.method or None,
            count=fault.count,
            rate=fault.rate,
            until=fault.until,
            delay_s=fault.delay.total_seconds(),
            struck=fault.struck,
        )


class ClearedFaultsOut(ResponseModel):
    """Number of faults that ended."""

    count: int


class ClientWarningOut(ResponseModel):
    """Client behavior that real endpoints refuse or do not promise."""

    code: str
    text: str
    spec: str
    is_wrong: bool = Field(description="True if it fails on other endpoints; false if it is only unwise.")


class ExchangeOut(ResponseModel):
    """A request of a VM and its answer."""

    number: int
    at: Moment
    vm: str | None
    source_address: str
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: str
    status: int = Field(description="HTTP status. 0: no answer was sent.")
    answer: str
    took_s: float
    fault: str | None
    warnings: list[ClientWarningOut]

    @classmethod
    def from_exchange(cls, exchange: Exchange, warnings: Iterable[Advice]) -> ExchangeOut:
        """Build from the journal."""
        return cls(
            number=exchange.number,
            at=exchange.at,
            vm=exchange.vm or None,
            source_address=exchange.source_address,
            method=exchange.method,
            target=exchange.target,
            headers=list(exchange.headers),
            body=exchange.body.decode("utf-8", "replace"),
            status=exchange.status,
            answer=exchange.answer.decode("utf-8", "replace"),
            took_s=round(exchange.took_s, 6),
            fault=exchange.fault or None,
            warnings=[ClientWarningOut(code=a.code, text=a.text, spec=a.spec, is_wrong=a.is_wrong) for a in warnings],
        )


def to_timedelta(seconds: float | None) -> timedelta | None:
    """Convert a number of seconds to a timedelta; None stays None."""
    return None if seconds is None else timedelta(seconds=seconds)
