"""Tenants affected by a maintenance, and the effect of their policies.

A tenant is a scope, or a standalone VM; it has one policy. The working set of a decision holds every scope of a
maintenance in focus, and those of its standalone VMs that have a policy: one that is missing has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from forewarn.core.causes import CAUSES
from forewarn.core.maintenance.decision import Draft
from forewarn.core.model import Claim, Event, EventSource, EventType, Maintenance, Scope, VirtualMachine
from forewarn.core.policy import NO_POLICY, Policy
from forewarn.core.quiet_hours import find_free_start, overlaps_quiet_hours
from forewarn.errors import QuietHoursConflict

__all__ = [
    "PASSED_CAUSES",
    "AllowedStart",
    "describe_move",
    "find_allowed_start",
    "get_tenant",
    "get_tenant_key",
    "get_tenant_name",
    "get_tenant_policies",
    "get_unavailable_max",
    "next_allowed_start",
    "policy_approves",
    "policy_of",
    "require_allowed_start",
    "respects_quiet_hours",
]

PASSED_CAUSES = frozenset({"user-restart", "user-redeploy"})
"""Causes that a policy lets pass without showing them as Scheduled (X5)."""


def policy_of(vm: VirtualMachine, scope: Scope | None) -> Policy:
    """Return the policy that applies to a VM, given its scope."""
    return vm.policy if scope is None else scope.policy


def get_tenant_policies(draft: Draft, maintenance: Maintenance) -> dict[str, Policy]:
    """Return the policies of the affected tenants, by `get_tenant_key`."""
    # A scope may have a thousand VMs on the hosts, but is looked up only once.
    by_key = {get_tenant_key(claim.vm, claim.scope): claim for claim in maintenance.claims}
    return {key: _get_policy(draft, claim) for key, claim in by_key.items()}


def get_unavailable_max(maintenance: Maintenance, scopes: Mapping[str, Scope]) -> dict[str, int]:
    """Return the limits on unavailable VMs of the scopes of a maintenance, by name; scopes without one are left out."""
    limits = {}
    for name in {claim.scope for claim in maintenance.claims if claim.scope is not None}:
        scope = scopes.get(name)
        if scope is not None and scope.policy.unavailable_max is not None:
            limits[name] = scope.policy.unavailable_max
    return limits


def get_tenant(draft: Draft, event: Event, maintenance: Maintenance) -> tuple[str, Policy]:
    """Return the key and the policy of the tenant that gets the event."""
    # All VMs of an event have one owner, so any of them leads to the tenant.
    vm = event.resources[0]
    claim = next(each for each in maintenance.claims if each.vm == vm)
    return get_tenant_key(claim.vm, claim.scope), _get_policy(draft, claim)


def get_tenant_key(vm: str, scope: str | None) -> str:
    """Return ``scope:NAME``, or ``vm:NAME`` for a standalone VM: a scope and a VM may have the same name."""
    return f"vm:{vm}" if scope is None else f"scope:{scope}"


def get_tenant_name(key: str) -> str:
    """Return the name of the scope or standalone VM with that key."""
    return key.partition(":")[2]


def _get_policy(draft: Draft, claim: Claim) -> Policy:
    vm = draft.vms.get(claim.vm)
    # A standalone scope is in no claim: its VMs are separate, but use its policy.
    name = claim.scope or (None if vm is None else vm.scope)
    if name is not None:
        scope = draft.scopes.get(name)
        return NO_POLICY if scope is None else scope.policy
    return NO_POLICY if vm is None else vm.policy


def policy_approves(policy: Policy, maintenance: Maintenance) -> bool:
    """Return True if a policy approves it, as a user operation (X5) or as a Freeze that is short enough."""
    if maintenance.cause in PASSED_CAUSES:
        return policy.approves_user_operations
    longest = policy.approves_freezes_up_to
    if longest is None or maintenance.type is not EventType.FREEZE or maintenance.source is not EventSource.PLATFORM:
        return False
    # An unknown duration is -1, and never short enough.
    return maintenance.duration_s >= 0 and maintenance.known_duration <= longest


def respects_quiet_hours(maintenance: Maintenance) -> bool:
    """Return True if it is kept out of quiet hours.

    User operations are not, nor operations that cannot wait (`Cause.is_fixed`), nor those that an operator has forced.
    """
    is_free = maintenance.source is EventSource.PLATFORM and not CAUSES[maintenance.cause].is_fixed
    return is_free and maintenance.force_reason is None


def next_allowed_start(
    maintenance: Maintenance, policies: Iterable[Policy], at: datetime, until: datetime
) -> datetime | None:
    """Return the first moment from `at` until `until` at which it can happen outside of all quiet hours of `policies`.

    None if there is none. The quiet hours may not count for the maintenance: see `respects_quiet_hours`.
    """
    if not respects_quiet_hours(maintenance):
        return at
    quiet = [hours for policy in policies for hours in policy.quiet_hours]
    return find_free_start(quiet, at, until, maintenance.known_duration) if quiet else at


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedStart:
    """A moment outside of all quiet hours, and the quiet hours before it.

    Attributes:
        moved_from: Requested moment, if quiet hours moved it; None if it is the same.
        moved_by: Names of the scopes and standalone VMs whose quiet hours are between the two, at most 100.
    """

    at: datetime
    moved_from: datetime | None = None
    moved_by: tuple[str, ...] = ()


def find_allowed_start(
    policies: Mapping[str, Policy], at: datetime, until: datetime, duration: timedelta
) -> AllowedStart | None:
    """Return the first moment from `at` until `until` outside of all quiet hours; None if there is none.

    `policies` are those of the affected tenants, by `get_tenant_key`; the result names the tenants that moved it.
    """
    quiet = [hours for policy in policies.values() for hours in policy.quiet_hours]
    moment = find_free_start(quiet, at, until, duration) if quiet else at
    if moment is None or moment == at:
        return None if moment is None else AllowedStart(at=at)
    # Only the tenants whose quiet hours lie in the skipped time, not all that have some.
    names = [
        get_tenant_name(key)
        for key, policy in policies.items()
        if policy.quiet_hours and overlaps_quiet_hours(policy.quiet_hours, at, moment - at + duration)
    ]
    return AllowedStart(at=moment, moved_from=at, moved_by=tuple(sorted(names)[:_NAMES_KEPT]))


def describe_move(moved_from: datetime, moved_by: Iterable[str]) -> str:
    """Return the reason why NotBefore differs from the requested one, for people."""
    return f"quiet hours of {_abbreviate_names(list(moved_by))} moved NotBefore from {_format_time(moved_from)}"


def require_allowed_start(
    draft: Draft, maintenance: Maintenance, at: datetime, advice: str = "change them, or force it and give a reason"
) -> AllowedStart:
    """Return the first moment from `at` on outside of the quiet hours of all affected tenants.

    Raises:
        QuietHoursConflict: There is none within the limits of its notice; the message ends with `advice`.
    """
    until = draft.now + draft.rules.notice_max
    # A start after the latest one is refused elsewhere, with a clearer message.
    if maintenance.latest_start is not None and at <= maintenance.latest_start:
        until = min(until, maintenance.latest_start)
    found = get_tenant_policies(draft, maintenance)
    if not respects_quiet_hours(maintenance):
        return AllowedStart(at=at)
    moment = find_allowed_start(found, at, until, maintenance.known_duration)
    if moment is None:
        names = sorted(get_tenant_name(key) for key, policy in found.items() if policy.quiet_hours)
        span = f"from {_format_time(at)} to {_format_time(until)}"
        msg = f"no start {span} is outside the quiet hours of {_abbreviate_names(names)}: {advice}"
        raise QuietHoursConflict(msg, scopes=names[:_NAMES_MAX])
    return moment


_NAMES_SHOWN = 10
_NAMES_KEPT = 100
_NAMES_MAX = 1000


def _abbreviate_names(names: list[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _format_time(moment: datetime) -> str:
    return moment.replace(microsecond=0).isoformat().replace("+00:00", "Z")
