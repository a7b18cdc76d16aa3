"""A world in memory around the pure core: what the store and the engine are to it, without I/O.

Everything that exists is loaded for each decision, and every maintenance is in focus. Time stands still until `now` is
moved; ids and sequence numbers are counted. `documents` holds what came out as changed documents, as an endpoint would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from forewarn.core.maintenance import actuator_result, postponement
from forewarn.core.maintenance.actuator_result import ActuatorFailure, Progress, RetryPolicy
from forewarn.core.maintenance.approval import ApprovalResult, Approver, approve_events
from forewarn.core.maintenance.decision import AudienceDocument, ChangeSet, DecisionRules, Draft, WorkingSet
from forewarn.core.maintenance.enablement import disable_audience, enable_audience
from forewarn.core.maintenance.ending import complete_maintenance, record_extra_impact, record_impact
from forewarn.core.maintenance.lifecycle import Trigger, get_event_status
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.maintenance.planning import plan_maintenance
from forewarn.core.maintenance.settlement import force_start, settle_maintenances
from forewarn.core.model import (
    Audience,
    AuditEntry,
    Event,
    EventStatus,
    Host,
    Maintenance,
    MaintenanceState,
    Scope,
    VirtualMachine,
    audience_key,
)
from forewarn.errors import Conflict, ForewarnError

__all__ = ["NOW", "Line", "World", "minutes"]

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


@dataclass(frozen=True, slots=True)
class Line:
    """What one audience can see of one event, and what must stay the same behind it."""

    event_id: str
    status: EventStatus
    not_before: datetime | None
    resources: tuple[str, ...]
    type: str
    source: str
    description: str
    duration_s: int

    @classmethod
    def of(cls, event: Event, maintenance: Maintenance) -> Line:
        status = get_event_status(event, maintenance)
        return cls(
            event.id,
            status,
            maintenance.not_before if status is EventStatus.SCHEDULED else None,
            event.resources,
            maintenance.type.value,
            maintenance.source.value,
            maintenance.description,
            maintenance.duration_s,
        )


class World:
    """Holds what exists; each command is one decision, settled and committed."""

    def __init__(
        self,
        *vms: VirtualMachine,
        scopes: tuple[Scope, ...] = (),
        hosts: tuple[str, ...] = (),
        rules: DecisionRules | None = None,
        is_enabled: bool = True,
    ) -> None:
        self.now = NOW
        self.rules = rules or DecisionRules(assumes_spot=True)
        self.hosts = {*hosts, *(vm.host for vm in vms)}
        self.scopes = {scope.name: scope for scope in scopes}
        self.vms = {vm.name: vm for vm in vms}
        self.maintenances: dict[str, Maintenance] = {}
        self.events: dict[str, Event] = {}
        self.entries: list[AuditEntry] = []
        self.documents: dict[str, AudienceDocument] = {}
        self.audiences: dict[str, Audience] = {}
        self.changes = ChangeSet()
        self._count = 0
        for vm in vms:
            self.audiences.setdefault(self.key_of(vm.name), Audience(key=self.key_of(vm.name), scope=vm.scope))
        if is_enabled:
            for key in self.audiences:
                self.enable(key)

    # Decisions

    def state(self) -> WorkingSet:
        return WorkingSet(
            hosts={name: Host(name=name) for name in self.hosts},
            vms=dict(self.vms),
            scopes=dict(self.scopes),
            audiences=dict(self.audiences),
            maintenances=dict(self.maintenances),
            events=dict(self.events),
            focus=set(self.maintenances),
        )

    def draft(self, actor: str = "operator:ann", *, settles: bool = True) -> Draft:
        draft = Draft(
            self.state(),
            now=self.now,
            rules=self.rules,
            new_id=self._new_id,
            new_sequence=self._new_sequence,
            actor=actor,
        )
        # The first settlement checks everything in focus. After it, what a command changes must be enough for the next.
        if settles:
            settle_maintenances(draft)
        return draft

    def commit(self, draft: Draft) -> ChangeSet:
        """Settle the draft and take over what it changed."""
        settle_maintenances(draft)
        changes = draft.finish()
        self.vms.update(changes.vms)
        self.audiences.update(changes.audiences)
        self.maintenances.update(changes.maintenances)
        self.events.update(changes.events)
        self.entries.extend(changes.entries)
        self.documents.update((document.audience.key, document) for document in changes.documents)
        self.changes = changes
        return changes

    def _new_id(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._count}" if kind == "maintenance" else f"00000000-0000-4000-8000-{self._count:012X}"

    def _new_sequence(self) -> int:
        self._count += 1
        return self._count

    # Commands

    def plan(self, request: MaintenanceRequest) -> list[Maintenance]:
        """What became of the request, as it stands after settling."""
        draft = self.draft()
        made = plan_maintenance(draft, request)
        self.commit(draft)
        return [self.maintenances[maintenance.id] for maintenance in made]

    def plan_one(self, request: MaintenanceRequest) -> Maintenance:
        (maintenance,) = self.plan(request)
        return maintenance

    def enable(self, key: str) -> Audience:
        draft = self.draft("forewarn")
        enable_audience(draft, self.audiences[key])
        self.commit(draft)
        return self.audiences[key]

    def disable(self, key: str) -> Audience:
        draft = self.draft("forewarn")
        disable_audience(draft, self.audiences[key])
        self.commit(draft)
        return self.audiences[key]

    def approve(self, vm: str, *event_ids: str) -> ApprovalResult:
        """What a VM's POST does."""
        approver = Approver(
            actor=f"vm:{vm}", audience=self.key_of(vm), vm=vm, source_address="10.0.0.1", api_version="2020-07-01"
        )
        return self.approve_as(approver, *event_ids)

    def approve_as(self, approver: Approver, *event_ids: str) -> ApprovalResult:
        draft = self.draft(approver.actor)
        approval = approve_events(draft, event_ids, approver)
        self.commit(draft)
        return approval

    def cancel(self, maintenance: Maintenance) -> Maintenance:
        return self._change(maintenance, lambda draft, it: draft.apply_trigger(it, Trigger.CANCEL, reason="not needed"))

    def force_start(self, maintenance: Maintenance) -> Maintenance:
        return self._change(maintenance, lambda draft, it: force_start(draft, it, reason="now or never"))

    def defer(
        self, maintenance: Maintenance, *, not_before: datetime | None = None, by: timedelta | None = None
    ) -> Maintenance:
        return self._change(
            maintenance,
            lambda draft, it: postponement.defer_maintenance(draft, it, not_before=not_before, by=by, reason="not now"),
        )

    def extend(self, maintenance: Maintenance, by: timedelta, tenant: str | None = None) -> Maintenance:
        return self._change(
            maintenance, lambda draft, it: postponement.extend_maintenance(draft, it, by=by, tenant=tenant)
        )

    def complete(self, maintenance: Maintenance) -> Maintenance:
        return self._change(maintenance, complete_maintenance)

    def fail(self, maintenance: Maintenance) -> Maintenance:
        reason = "the actuator gave up"
        return self._change(maintenance, lambda draft, it: draft.apply_trigger(it, Trigger.FAIL, reason=reason))

    def impact(self, maintenance: Maintenance) -> Maintenance:
        return self._change(maintenance, record_impact)

    def extra_impact(self, maintenance: Maintenance, duration_s: int) -> Maintenance:
        return self._change(maintenance, lambda draft, it: record_extra_impact(draft, it, duration_s=duration_s))

    def hear(self, maintenance: Maintenance, result: Progress | ActuatorFailure, retry: RetryPolicy) -> Maintenance:
        """Take over what the actuator answered."""
        return self._change(maintenance, lambda draft, it: actuator_result.apply_result(draft, it, result, retry))

    def _change(self, maintenance: Maintenance, command: Callable[[Draft, Maintenance], Maintenance]) -> Maintenance:
        draft = self.draft()
        try:
            command(draft, self.maintenances[maintenance.id])
        except ForewarnError as error:
            named = error.details.get("id", None if type(error) is Conflict else maintenance.id)
            if named != maintenance.id:
                raise AssertionError(f"the error names {named} to a program") from error
            raise
        self.commit(draft)
        return self.maintenances[maintenance.id]

    def advance(self, by: timedelta) -> None:
        """Let time pass, and settle once at the end."""
        self.now += by
        self.commit(self.draft("forewarn"))

    # Looking

    def key_of(self, vm: str) -> str:
        return audience_key(self.vms[vm], self.scopes.get(self.vms[vm].scope or ""))

    def get(self, maintenance: Maintenance) -> Maintenance:
        """The same maintenance as it is now."""
        return self.maintenances[maintenance.id]

    def state_of(self, maintenance: Maintenance) -> MaintenanceState:
        return self.maintenances[maintenance.id].state

    def events_of(self, maintenance: Maintenance) -> list[Event]:
        events = [event for event in self.events.values() if event.maintenance_id == maintenance.id]
        return sorted(events, key=lambda event: event.sequence)

    def event_of(self, maintenance: Maintenance) -> Event:
        (event,) = self.events_of(maintenance)
        return event

    def lines(self, key: str) -> tuple[Line, ...]:
        """What the audience was last told."""
        document = self.documents.get(key)
        return tuple(Line.of(event, maintenance) for event, maintenance in document.items) if document else ()

    def line(self, key: str) -> Line:
        (line,) = self.lines(key)
        return line

    def incarnation(self, key: str) -> int:
        return self.documents[key].audience.incarnation
