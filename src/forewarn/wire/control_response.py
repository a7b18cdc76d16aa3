"""The JSON of responses of the control API."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field

from forewarn.core.fault import InjectedFault
from forewarn.core.inventory import InventoryChange
from forewarn.core.maintenance.lifecycle import get_event_status
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
from forewarn.wire.json_types import Moment, ResponseModel

__all__ = [
    "ApprovalResultOut",
    "ApprovalResultsOut",
    "AuditEntryOut",
    "ClearedFaultsOut",
    "ClientWarningOut",
    "ClockOut",
    "ErrorBody",
    "ErrorOut",
    "EventOut",
    "ExchangeOut",
    "FaultOut",
    "HostOut",
    "IdsOut",
    "InventoryChangeOut",
    "MaintenanceOut",
    "PageOut",
    "PlannedEventOut",
    "PlannedMaintenanceOut",
    "VmOut",
]

T = TypeVar("T")


class ErrorBody(ResponseModel):
    """Description of an error."""

    code: str
    message: str
    details: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it for each object


class ErrorOut(ResponseModel):
    """Body of every error response."""

    error: ErrorBody


class EventOut(ResponseModel):
    """An event, as one audience (a group of VMs with the same events) sees it."""

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
        return cls.copy_from(
            event,
            scope=event.audience.partition(":")[2],
            status=get_event_status(event, maintenance),
            type=maintenance.type,
            not_before=maintenance.not_before,
        )


_MOVED_FROM = "NotBefore as it would be without quiet hours. Null: quiet hours did not move NotBefore."

_MOVED_BY = "Scopes or standalone VMs whose quiet hours moved NotBefore."

_UNWARNED = (
    "Affected VMs that no event warns, because they have not requested events or their scope has not opted in. "
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
        return cls.copy_from(
            maintenance,
            notice_s=maintenance.notice.total_seconds(),
            extended_s=maintenance.extended.total_seconds(),
            unwarned_vms=find_unwarned_vms(maintenance, events, would_warn),
            events=[EventOut.from_model(event, maintenance) for event in events],
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
        shown = [PlannedEventOut.copy_from(event, scope=event.audience.partition(":")[2]) for event in events]
        return cls.copy_from(
            maintenance,
            would_be=maintenance.state,
            notice_s=maintenance.notice.total_seconds(),
            unwarned_vms=list(unwarned),
            events=shown,
        )


class PageOut(ResponseModel, Generic[T]):
    """One part of a list.

    Pass ``next`` as ``after`` to get the next part; null at the end.
    """

    items: list[T]
    next: str | None = None


class IdsOut(ResponseModel):
    """Ids that begin with a prefix."""

    ids: list[str]


class ApprovalResultOut(ResponseModel):
    """Result of the approval of one event."""

    event_id: str
    status: int = Field(
        description="200: the event is approved (by this request or earlier), has started, or has ended; "
        "404: unknown event; 409: a policy reserves the approval for others."
    )
    outcome: str = Field(description="`approved`, `unchanged`, `refused` or `unknown`.")


class ApprovalResultsOut(ResponseModel):
    """Result of each approval. The HTTP status is 207 if the results differ (X6)."""

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
    enabled: bool = Field(description="True if events are enabled for the VM's audience (R67, R69).")
    incarnation: int | None = Field(description="Incarnation of the VM's present document. Null if `enabled` is false.")
    labels: dict[str, str] = Field(description="The VM's own labels, without those of its scope and host.")

    @classmethod
    def from_model(
        cls, vm: VirtualMachine, scope: Scope | None, incarnation: int | None, *, has_host: bool = True
    ) -> VmOut:
        """Build from the model."""
        return cls.copy_from(
            vm,
            host=vm.host if has_host else None,
            scope_kind=scope.kind.value if scope is not None else "standalone",
            enabled=incarnation is not None,
            incarnation=incarnation,
            labels=dict(vm.labels),
        )


class HostOut(ResponseModel):
    """A host and its VMs."""

    name: str
    vms: list[str]
    failed_at: Moment | None = Field(
        description="Time at which the host was reported as failed. Null: no failure is reported."
    )
    failure_reason: str | None
    labels: dict[str, str]

    @classmethod
    def from_model(cls, host: Host, vms: list[str]) -> HostOut:
        """Build from the model."""
        return cls.copy_from(host, vms=vms, labels=dict(host.labels))


class InventoryChangeOut(ResponseModel):
    """Numbers of VMs that an inventory added, changed, removed, and left unchanged."""

    added: int
    changed: int
    removed: int
    unchanged: int

    @classmethod
    def from_model(cls, change: InventoryChange) -> InventoryChangeOut:
        """Build from the model."""
        return cls.copy_from(change)


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
        scope = entry.audience.partition(":")[2] if entry.audience is not None else None
        return cls.copy_from(entry, scope=scope)


class ClockOut(ResponseModel):
    """The service's clock."""

    clock: str
    now: Moment
    jump_s: float | None = Field(
        None,
        description="Size in seconds of a clock jump that no operator has confirmed; negative if the clock jumped back."
        " Null: no such jump.",
    )


class FaultOut(ResponseModel):
    """An active fault."""

    id: int
    kind: str
    vms: tuple[str, ...]
    method: str | None
    count: int | None = Field(description="Number of requests that the fault can still affect. Null: no limit.")
    rate: float
    until: Moment | None
    delay_s: float
    struck: int = Field(description="Number of requests affected so far.")

    @classmethod
    def from_model(cls, fault: InjectedFault) -> FaultOut:
        """Build from the model."""
        return cls.copy_from(
            fault, kind=fault.kind.name, method=fault.method or None, delay_s=fault.delay.total_seconds()
        )


class ClearedFaultsOut(ResponseModel):
    """Number of faults that were cleared."""

    count: int


class ClientWarningOut(ResponseModel):
    """Client behavior that other endpoints refuse, or do not promise to support."""

    code: str
    text: str
    spec: str
    is_wrong: bool = Field(description="True if the behavior fails on other endpoints; false if it is only unwise.")


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
    is_client_gone: bool = Field(
        description="True if the client had closed the connection, or its sending side, before the answer."
    )
    warnings: list[ClientWarningOut]

    @classmethod
    def from_exchange(cls, exchange: Exchange, warnings: Iterable[Advice]) -> ExchangeOut:
        """Build from the journal."""
        return cls.copy_from(
            exchange,
            vm=exchange.vm or None,
            body=exchange.body.decode("utf-8", "replace"),
            answer=exchange.answer.decode("utf-8", "replace"),
            took_s=round(exchange.took_s, 6),
            fault=exchange.fault or None,
            warnings=[ClientWarningOut.copy_from(advice) for advice in warnings],
        )
