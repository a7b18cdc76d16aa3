"""`/v1/vms/{name}/policy`, `/v1/scopes/{name}/policy`: the policy that applies, and the starts that it allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from forewarn.control.context import Caller, Context, ContextOf, not_found_error
from forewarn.control.scope import find_scope
from forewarn.core.access import Principal
from forewarn.core.fast_replace import replace
from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.policy_in_force import PolicyInForce, find_policy_in_force, get_scope_policy
from forewarn.core.maintenance.start_preview import preview_start
from forewarn.core.model import EventType, MaintenanceState, Scope, VirtualMachine
from forewarn.core.quiet_hours import list_next_quiet_periods
from forewarn.errors import InvalidRequest
from forewarn.store.contract import Reader
from forewarn.wire.json_types import SPAN_MAX_S, Seconds, to_timedelta
from forewarn.wire.policy import to_policy_in
from forewarn.wire.policy_in_force import (
    ExtensionLeftOut,
    PolicyInForceOut,
    QuietPeriodOut,
    StartPreviewOut,
    to_rules_out,
)

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["policy"])

_PERIODS_MAX = 5
_EXTENSIONS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _StartQuestion:
    """The maintenance whose earliest start is requested."""

    type: EventType
    notice_s: float | None
    duration_s: int | None


async def _parse_start_question(
    type_: Annotated[
        EventType | None,
        Query(alias="type", description="Type of a maintenance whose earliest start to compute. Null: none."),
    ] = None,
    notice_s: Annotated[Seconds | None, Query(description="Its notice in seconds. Default: the minimum.")] = None,
    duration_s: Annotated[
        int | None,
        Query(ge=-1, le=SPAN_MAX_S, description="Its duration in seconds; -1: unknown. Default: that of its cause."),
    ] = None,
) -> _StartQuestion | None:
    if type_ is not None:
        return _StartQuestion(type=type_, notice_s=notice_s, duration_s=duration_s)
    if notice_s is not None or duration_s is not None:
        raise InvalidRequest("notice_s and duration_s need a type")
    return None


_StartQuestionOf = Annotated[_StartQuestion | None, Depends(_parse_start_question)]


@router.get("/vms/{name}/policy")
async def show_vm_policy(context: ContextOf, caller: Caller, name: str, question: _StartQuestionOf) -> PolicyInForceOut:
    """Show the policy that applies to a VM, and the earliest start of a maintenance that it allows."""

    def read(reader: Reader) -> PolicyInForceOut:
        found = reader.list_vms(name=name, owned=caller.ownership)
        if not found:
            raise not_found_error(name, "vm")
        vm = found[0]
        scope = None if vm.scope is None else reader.find_scopes([vm.scope]).get(vm.scope)
        return _build_policy_out(context, caller, reader, find_policy_in_force(vm, scope), vm, scope, question)

    return await context.engine.read(read)


@router.get("/scopes/{name}/policy")
async def show_scope_policy(
    context: ContextOf, caller: Caller, name: str, question: _StartQuestionOf
) -> PolicyInForceOut:
    """Show the policy of a scope, and the earliest start of a maintenance of one of its VMs that it allows."""

    def read(reader: Reader) -> PolicyInForceOut:
        scope = find_scope(reader, name, caller)
        return _build_policy_out(context, caller, reader, get_scope_policy(scope), None, scope, question)

    return await context.engine.read(read)


def _build_policy_out(  # noqa: PLR0913 - the subject, the viewer and the question
    context: Context,
    caller: Principal,
    reader: Reader,
    found: PolicyInForce,
    vm: VirtualMachine | None,
    scope: Scope | None,
    question: _StartQuestion | None,
) -> PolicyInForceOut:
    now, rules = context.clock.now(), context.engine.committer.rules
    shown = _hide_foreign_approvers(found, caller, scope)
    periods = list_next_quiet_periods(found.policy.quiet_hours, now, _PERIODS_MAX)
    start = None
    if question is not None:
        preview = preview_start(
            vm or _make_example_vm(scope),
            scope,
            question.type,
            now=now,
            rules=rules,
            notice=to_timedelta(question.notice_s),
            duration_s=question.duration_s,
        )
        start = StartPreviewOut.from_model(question.type, preview)
    return PolicyInForceOut(
        vm=None if vm is None else vm.name,
        scope=None if scope is None else scope.name,
        origin=found.origin,
        reason=found.reason,
        policy=to_policy_in(found.policy) if shown is found else None,
        rules=to_rules_out(shown.policy),
        next_quiet_hours=[QuietPeriodOut.from_model(period) for period in periods],
        extensions=_list_extensions(reader, found, vm, scope),
        start=start,
    )


def _hide_foreign_approvers(found: PolicyInForce, caller: Principal, scope: Scope | None) -> PolicyInForce:
    """Hide approvers that a tenant does not own: VMs of others in a standalone scope that is not the tenant's."""
    owned = caller.ownership
    if owned is None or scope is None or scope.name in owned.scopes:
        return found
    kept = tuple(each for each in found.policy.approvers if not each.startswith("vm:") or each[3:] in owned.vms)
    if kept == found.policy.approvers:
        return found
    return replace(found, policy=replace(found.policy, approvers=kept))


def _make_example_vm(scope: Scope | None) -> VirtualMachine:
    """Return a VM as a new one of the scope would be; the scope need not have any."""
    assert scope is not None  # noqa: S101 - a scope or a VM was requested
    return VirtualMachine(
        name=scope.name, host="", scope=scope.name, terminate_notification=scope.terminate_notification
    )


def _list_extensions(
    reader: Reader, found: PolicyInForce, vm: VirtualMachine | None, scope: Scope | None
) -> list[ExtensionLeftOut]:
    """Return what is left for the scheduled maintenances of the scope; for a VM, only of those that affect it.

    The VMs of a standalone scope are separate tenants, so none is listed for the scope as a whole.
    """
    part = Inventory(vms=(vm,)) if vm is not None else Inventory(scopes=() if scope is None else (scope,))
    scheduled = [m for m in reader.find_active_maintenances(part) if m.state is MaintenanceState.SCHEDULED]
    return [ExtensionLeftOut.from_model(found.policy.extension, m) for m in scheduled[:_EXTENSIONS_MAX]]
