"""Whose VMs a maintenance hits, and what their policies say about it.

A tenant is a scope, or a VM that stands alone; it has one policy. What was loaded for a decision holds every scope of
a maintenance in focus, and those of its lone VMs that have a policy: one that is not here has none.
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
"""What a policy lets pass without showing it as Scheduled (X5)."""


def policy_of(vm: VirtualMachine, scope: Scope | None) -> Policy:
    """The policy that holds for a VM, given its scope."""
    return vm.policy if scope is None else policy_of_scope(scope)


def policy_of_scope(scope: Scope) -> Policy:
    """The policy of a scope; what the version before this keeps of it is in it too."""
    if scope.approves_user_operations and not scope.policy.approves_user_operations:
        return replace(scope.policy, approves_user_operations=True)
    return scope.policy


def tenants(draft: Draft, maintenance: Maintenance) -> dict[str, Policy]:
    """The policies of those whose VMs it hits, by the name of the scope, or of the VM where it stands alone."""
    # A scope may have a thousand VMs on the hosts, and is looked up once.
    by_name = {claim.scope or claim.vm: claim for claim in maintenance.claims}
    return {name: _policy(draft, claim) for name, claim in by_name.items()}


def tenant_of(draft: Draft, event: Event, maintenance: Maintenance) -> tuple[str, Policy]:
    """The name and the policy of the one whom the event is shown to."""
    vm = event.resources[0]
    claim = next(each for each in maintenance.claims if each.vm == vm)
    return claim.scope or claim.vm, _policy(draft, claim)


def _policy(draft: Draft, claim: Claim) -> Policy:
    vm = draft.vms.get(claim.vm)
    # A scope of kind standalone is in no claim: its VMs stand alone, under its policy.
    name = claim.scope or (None if vm is None else vm.scope)
    if name is not None:
        scope = draft.scopes.get(name)
        return NO_POLICY if scope is None else policy_of_scope(scope)
    return NO_POLICY if vm is None else vm.policy


def approves(policy: Policy, maintenance: Maintenance) -> bool:
    """Whether a policy approves it by itself (X5), or as a Freeze that is short enough."""
    if maintenance.cause in PASSED_CAUSES:
        return policy.approves_user_operations
    longest = policy.approves_freezes_up_to
    if longest is None or maintenance.type is not EventType.FREEZE or maintenance.source is not Source.PLATFORM:
        return False
    return maintenance.duration_s >= 0 and timedelta(seconds=maintenance.duration_s) <= longest


def heeds_quiet_hours(maintenance: Maintenance) -> bool:
    """Whether it is kept out of quiet hours.

    What users want themselves is not, nor what cannot wait (`Cause.is_fixed`), nor what an operator has forced.
    """
    is_free = maintenance.source is Source.PLATFORM and not CAUSES[maintenance.cause].is_fixed
    return is_free and maintenance.force_reason is None


def next_allowed_start(
    maintenance: Maintenance, policies: Iterable[Policy], at: datetime, until: datetime
) -> datetime | None:
    """The first moment from `at` on at which it may happen without disturbing anybody's quiet hours.

    Args:
        maintenance: What is to happen, and how long it takes.
        policies: Of those who are to be left in peace.
        at: Not before that.
        until: Not after that.

    Returns:
        That moment; None: there is none until then.
    """
    if not heeds_quiet_hours(maintenance):
        return at
    quiet = [hours for policy in policies for hours in policy.quiet_hours]
    lasts = timedelta(seconds=max(maintenance.duration_s, 0))
    return first_calm(quiet, at, until, lasts) if quiet else at


@dataclass(frozen=True, slots=True, kw_only=True)
class CalmMoment:
    """A moment outside of all quiet hours, and what was in the way before it.

    Attributes:
        at: The moment.
        moved_from: The moment that was asked for, where quiet hours are in its way; None: it is the same.
        moved_by: Names of the scopes, or VMs that stand alone, whose quiet hours lie between the two.
    """

    at: datetime
    moved_from: datetime | None = None
    moved_by: tuple[str, ...] = ()


def find_calm(policies: Mapping[str, Policy], at: datetime, until: datetime, lasts: timedelta) -> CalmMoment | None:
    """The first moment from `at` on that disturbs none of their quiet hours, and whose quiet hours moved it there.

    Args:
        policies: Of those who are hit, by name.
        at: Not before that.
        until: Not after that.
        lasts: How long it takes.

    Returns:
        That moment; None: there is none until then.
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
    """Why NotBefore is another one than was asked for, for people."""
    return f"NotBefore moved from {_words(moved_from)} by quiet hours of {_listed(list(moved_by))}"


def must_be_calm(
    draft: Draft, maintenance: Maintenance, at: datetime, advice: str = "change these, or force it and give a reason"
) -> CalmMoment:
    """The first moment from `at` on that is quiet for none of those whom it hits.

    Args:
        draft: The decision.
        maintenance: What is to happen.
        at: Not before that.
        advice: What to do where there is none.

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
