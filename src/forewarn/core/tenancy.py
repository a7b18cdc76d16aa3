"""Tenants affected by a maintenance, and the effect of their policies.

A tenant is a scope, or a standalone VM; it has one policy. The working set of a decision holds every scope of a
maintenance in focus, and those of its standalone VMs that have a policy: one that is missing has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from forewarn.core.causes import CAUSES
from forewarn.core.decision import Draft
from forewarn.core.model import Claim, Event, EventType, Maintenance, Scope, Source, VirtualMachine
from forewarn.core.policy import NO_POLICY, Policy
from forewarn.core.quiet import first_calm, is_disturbed
from forewarn.core.value import replace
from forewarn.errors import QuietHoursConflict

__all__ = [
    "PASSED_CAUSES",
    "CalmMoment",
    "approves",
    "find_calm",
    "heeds_quiet_hours",
    "move_words",
    "must_be_calm",
    "next_allowed_start",
    "policy_of",
    "policy_of_scope",
    "tenant_of",
    "tenants",
]

PASSED_CAUSES = frozenset({"user-restart", "user-redeploy"})
"""Causes that a policy lets pass without showing them as Scheduled (X5)."""


def policy_of(vm: VirtualMachine, scope: Scope | None) -> Policy:
    """Return the policy that applies to a VM, given its scope."""
    return vm.policy if scope is None else policy_of_scope(scope)


def policy_of_scope(scope: Scope) -> Policy:
    """Return the policy of a scope, including the field in which the previous version stored part of it."""
    if scope.approves_user_operations and not scope.policy.approves_user_operations:
        return replace(scope.policy, approves_user_operations=True)
    return scope.policy


def tenants(draft: Draft, maintenance: Maintenance) -> dict[str, Policy]:
    """Return the policies of the affected tenants, by the name of the scope or standalone VM."""
    # A scope may have a thousand VMs on the hosts, but is looked up only once.
    by_name = {claim.scope or claim.vm: claim for claim in maintenance.claims}
    return {name: _policy(draft, claim) for name, claim in by_name.items()}


def tenant_of(draft: Draft, event: Event, maintenance: Maintenance) -> tuple[str, Policy]:
    """Return the name and the policy of the tenant that gets the event."""
    vm = event.resources[0]
    claim = next(each for each in maintenance.claims if each.vm == vm)
    return claim.scope or claim.vm, _policy(draft, claim)


def _policy(draft: Draft, claim: Claim) -> Policy:
    vm = draft.vms.get(claim.vm)
    # A standalone scope is in no claim: its VMs are separate, but use its policy.
    name = claim.scope or (None if vm is None else vm.scope)
    if name is not None:
        scope = draft.scopes.get(name)
        return NO_POLICY if scope is None else policy_of_scope(scope)
    return NO_POLICY if vm is None else vm.policy


def approves(policy: Policy, maintenance: Maintenance) -> bool:
    """Return True if a policy approves it, as a user operation (X5) or as a Freeze that is short enough."""
    if maintenance.cause in PASSED_CAUSES:
        return policy.approves_user_operations
    longest = policy.approves_freezes_up_to
    if longest is None or maintenance.type is not EventType.FREEZE or maintenance.source is not Source.PLATFORM:
        return False
    return maintenance.duration_s >= 0 and timedelta(seconds=maintenance.duration_s) <= longest


def heeds_quiet_hours(maintenance: Maintenance) -> bool:
    """Return True if it is kept out of quiet hours.

    User operations are not, nor operations that cannot wait (`Cause.is_fixed`), nor those that an operator has forced.
    """
    is_free = maintenance.source is Source.PLATFORM and not CAUSES[maintenance.cause].is_fixed
    return is_free and maintenance.force_reason is None


def next_allowed_start(
    maintenance: Maintenance, policies: Iterable[Policy], at: datetime, until: datetime
) -> datetime | None:
    """Return the first moment from `at` on at which it can happen outside of all quiet hours.

    Args:
        maintenance: Maintenance, with its duration.
        policies: Policies whose quiet hours count.
        at: Earliest moment.
        until: Latest moment.

    Returns:
        The moment; None if there is none until then.
    """
    if not heeds_quiet_hours(maintenance):
        return at
    quiet = [hours for policy in policies for hours in policy.quiet_hours]
    lasts = timedelta(seconds=max(maintenance.duration_s, 0))
    return first_calm(quiet, at, until, lasts) if quiet else at


@dataclass(frozen=True, slots=True, kw_only=True)
class CalmMoment:
    """A moment outside of all quiet hours, and the quiet hours before it.

    Attributes:
        at: The moment.
        moved_from: Requested moment, if quiet hours moved it; None if it is the same.
        moved_by: Names of the scopes and standalone VMs whose quiet hours are between the two, at most 100.
    """

    at: datetime
    moved_from: datetime | None = None
    moved_by: tuple[str, ...] = ()


def find_calm(policies: Mapping[str, Policy], at: datetime, until: datetime, lasts: timedelta) -> CalmMoment | None:
    """Return the first moment from `at` on outside of all quiet hours, and the tenants whose quiet hours moved it.

    Args:
        policies: Policies of the affected tenants, by name.
        at: Earliest moment.
        until: Latest moment.
        lasts: Duration.

    Returns:
        The moment; None if there is none until then.
    """
    quiet = [hours for policy in policies.values() for hours in policy.quiet_hours]
    moment = first_calm(quiet, at, until, lasts) if quiet else at
    if moment is None or moment == at:
        return None if moment is None else CalmMoment(at=at)
    names = [
        name
        for name, policy in policies.items()
        if policy.quiet_hours and is_disturbed(policy.quiet_hours, at, moment - at + lasts)
    ]
    return CalmMoment(at=moment, moved_from=at, moved_by=tuple(sorted(names)[:_NAMES_KEPT]))


def move_words(moved_from: datetime, moved_by: Iterable[str]) -> str:
    """Return the reason why NotBefore differs from the requested one, for people."""
    return f"NotBefore moved from {_words(moved_from)} by quiet hours of {_listed(list(moved_by))}"


def must_be_calm(
    draft: Draft, maintenance: Maintenance, at: datetime, advice: str = "change these, or force it and give a reason"
) -> CalmMoment:
    """Return the first moment from `at` on outside of the quiet hours of all affected tenants.

    Args:
        draft: The decision.
        maintenance: The maintenance.
        at: Earliest moment.
        advice: Advice in the error message.

    Raises:
        QuietHoursConflict: There is none within the limits of its notice.
    """
    until = draft.now + draft.rules.notice_max
    if maintenance.latest_start is not None and at <= maintenance.latest_start:
        until = min(until, maintenance.latest_start)
    found = tenants(draft, maintenance)
    if not heeds_quiet_hours(maintenance):
        return CalmMoment(at=at)
    moment = find_calm(found, at, until, timedelta(seconds=max(maintenance.duration_s, 0)))
    if moment is None:
        names = sorted(name for name, policy in found.items() if policy.quiet_hours)
        msg = (
            f"no moment from {_words(at)} to {_words(until)} is outside of the quiet hours of {_listed(names)}: "
            f"{advice}"
        )
        raise QuietHoursConflict(msg, scopes=names[:_NAMES_TOLD])
    return moment


_NAMES_SHOWN = 10
_NAMES_KEPT = 100
_NAMES_TOLD = 1000


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _words(moment: datetime) -> str:
    return moment.replace(microsecond=0).isoformat().replace("+00:00", "Z")
