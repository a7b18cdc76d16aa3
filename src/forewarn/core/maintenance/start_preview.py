"""The earliest start that a policy allows, found by planning a maintenance of one VM that nothing else affects.

The plan is made by the functions that make the real one, so this file decides nothing about times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count

from forewarn.core.causes import CAUSES, DEFAULT_CAUSE
from forewarn.core.fast_replace import replace
from forewarn.core.maintenance.decision import DecisionRules, Draft, WorkingSet
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.maintenance.notice import get_minimum_notice
from forewarn.core.maintenance.planning import plan_maintenance
from forewarn.core.maintenance.settlement import get_ready_time
from forewarn.core.maintenance.tenancy import describe_move, policy_of, respects_quiet_hours
from forewarn.core.model import (
    Audience,
    EventSource,
    EventType,
    Maintenance,
    PowerState,
    Scope,
    VirtualMachine,
    audience_key,
)
from forewarn.core.policy import Policy
from forewarn.errors import ForewarnError
from forewarn.util.duration import format_duration

__all__ = ["StartPreview", "preview_start"]

_LONG_AGO = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPreview:
    """When a maintenance that is announced now could start.

    Attributes:
        notice: Notice that the VM would get; None if the maintenance would be refused.
        not_before: NotBefore; None if it would be refused.
        starts_at: Start without an approval by a caller: NotBefore, or earlier if the policy approves it.
        approved_starts_at: Start if all callers that have to approve do so now.
        reasons: Sentences for people, without full stops.
        is_refused: True if the maintenance would be refused; the last of `reasons` says why.
    """

    notice: timedelta | None = None
    not_before: datetime | None = None
    starts_at: datetime | None = None
    approved_starts_at: datetime | None = None
    reasons: tuple[str, ...]
    is_refused: bool = False


def preview_start(  # noqa: PLR0913 - the VM, the maintenance, and the context of a decision
    vm: VirtualMachine,
    scope: Scope | None,
    event_type: EventType,
    *,
    now: datetime,
    rules: DecisionRules,
    notice: timedelta | None = None,
    duration_s: int | None = None,
) -> StartPreview:
    """Return when a maintenance by the platform that is announced to this VM now could start.

    Other maintenance is left out of account, and events count as enabled for the VM.

    Args:
        vm: VM that is affected; counts as running.
        scope: Its scope; None if it has none.
        event_type: Type of the maintenance.
        now: The current time.
        rules: Settings of the service.
        notice: Requested notice; None for the default.
        duration_s: Expected duration in seconds, -1 if unknown; None for the default.
    """
    request = MaintenanceRequest(
        cause=DEFAULT_CAUSE[event_type, EventSource.PLATFORM],
        type=event_type,
        notice=notice,
        duration_s=duration_s,
        vms=(vm.name,),
    )
    draft = _make_draft(replace(vm, power_state=PowerState.RUNNING), scope, now, rules)
    least = get_minimum_notice(CAUSES[request.cause], event_type, [vm])
    asked = "no notice is given" if notice is None else f"a notice of {format_duration(notice)} is given"
    first = f"{asked}; a {event_type} needs at least {format_duration(least)}"
    try:
        [planned] = plan_maintenance(draft, request)
    except ForewarnError as error:
        return StartPreview(reasons=(first, f"it would be refused: {error.message}"), is_refused=True)
    starts_at = get_ready_time(draft, planned)
    reasons = (first, *_list_reasons(draft, planned, policy_of(vm, scope), starts_at))
    for event in draft.get_events(planned.id):
        draft.put(replace(event, approved_at=now, approved_by=f"vm:{vm.name}"))
    return StartPreview(
        notice=planned.notice,
        not_before=planned.not_before,
        starts_at=starts_at,
        approved_starts_at=get_ready_time(draft, planned),
        reasons=reasons,
    )


def _make_draft(vm: VirtualMachine, scope: Scope | None, now: datetime, rules: DecisionRules) -> Draft:
    key = audience_key(vm, scope)
    # Enabled for so long that the delay after enabling is over.
    audience = Audience(key=key, enabled_at=now - _LONG_AGO, active_until=now)
    state = WorkingSet(
        vms={vm.name: vm}, scopes={} if scope is None else {scope.name: scope}, audiences={key: audience}
    )
    numbers = count(1)
    return Draft(
        state,
        now=now,
        rules=rules,
        new_id=lambda kind: f"{kind}-{next(numbers)}",
        new_sequence=lambda: next(numbers),
        actor="",
    )


def _list_reasons(draft: Draft, planned: Maintenance, policy: Policy, starts_at: datetime) -> Iterator[str]:
    if planned.moved_from is not None:
        yield describe_move(planned.moved_from, planned.moved_by)
    elif policy.quiet_hours and respects_quiet_hours(planned):
        yield "no quiet hours are in the way"
    elif policy.quiet_hours:
        yield f"quiet hours do not hold back a {planned.type} of this kind"
    events = draft.get_events(planned.id)
    if not events:
        yield f"a {planned.type} makes no event for this VM, so it can be approved by no one"
    elif any(event.is_approved for event in events):
        yield "the policy approves it when it is announced"
        if planned.not_before is not None and starts_at == planned.not_before:
            yield "the policy's own quiet hours hold it back until NotBefore"
    else:
        yield "without approval it starts at NotBefore"
