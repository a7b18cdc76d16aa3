"""The earliest start that a policy allows, as the planner of real maintenance finds it."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta

import pytest

from forewarn.core.fast_replace import replace
from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.maintenance.policy_in_force import PolicyOrigin, find_policy_in_force, get_scope_policy
from forewarn.core.maintenance.start_preview import StartPreview, preview_start
from forewarn.core.model import EventType, Scope, ScopeKind
from forewarn.core.policy import NO_POLICY, Policy, QuietHours, TimeZone
from forewarn.core.quiet_hours import list_next_quiet_periods
from tests.unit.core.builders import vm

NOW = datetime(2030, 1, 31, 10, 0, tzinfo=UTC)
"""A Thursday."""
OFFICE = QuietHours(days=(0, 1, 2, 3, 4), begin=time(8), end=time(18), zone=TimeZone(name="UTC", rules=UTC))


def preview(policy: Policy, event_type: EventType = EventType.REBOOT, notice: timedelta | None = None) -> StartPreview:
    one = replace(vm("db"), policy=policy)
    return preview_start(one, None, event_type, now=NOW, rules=DecisionRules(), notice=notice)


def test_without_a_policy_the_notice_decides() -> None:
    """R71."""
    found = preview(NO_POLICY)
    assert (found.notice, found.not_before) == (timedelta(minutes=15), NOW + timedelta(minutes=15))
    assert found.starts_at == found.not_before
    assert found.approved_starts_at == NOW
    assert found.reasons == (
        "no notice is given; a Reboot needs at least 15m",
        "without approval it starts at NotBefore",
    )


def test_quiet_hours_move_not_before_and_approval_does_not_wait_for_them() -> None:
    found = preview(Policy(quiet_hours=(OFFICE,)), notice=timedelta(minutes=30))
    assert found.not_before == datetime(2030, 1, 31, 18, 0, tzinfo=UTC)
    assert found.approved_starts_at == NOW
    assert "quiet hours of db moved NotBefore from 2030-01-31T10:30:00Z" in found.reasons


def test_a_policy_that_approves_does_so_outside_of_its_quiet_hours() -> None:
    approves = Policy(approves_freezes_up_to=timedelta(seconds=10))
    found = preview(approves, EventType.FREEZE)
    assert found.starts_at == NOW + timedelta(seconds=5)
    assert "the policy approves it when it is announced" in found.reasons
    found = preview(replace(approves, quiet_hours=(OFFICE,)), EventType.FREEZE)
    assert found.starts_at == found.not_before == datetime(2030, 1, 31, 18, 0, tzinfo=UTC)
    assert "the policy's own quiet hours hold it back until NotBefore" in found.reasons


def test_too_short_a_notice_is_refused_as_a_request_would_be() -> None:
    found = preview(NO_POLICY, notice=timedelta(minutes=1))
    assert (found.is_refused, found.not_before, found.starts_at) == (True, None, None)
    assert found.reasons[-1].startswith("it would be refused: notice of 1m: a Reboot needs at least 15m")


def test_a_maintenance_that_cannot_wait_disregards_quiet_hours() -> None:
    """R90."""
    spot = replace(vm("spot", priority="Spot"), policy=Policy(quiet_hours=(OFFICE,)))
    found = preview_start(spot, None, EventType.PREEMPT, now=NOW, rules=DecisionRules())
    assert found.not_before == NOW + timedelta(seconds=30)
    assert "quiet hours do not hold back a Preempt of this kind" in found.reasons


def test_a_maintenance_without_an_event_can_be_approved_by_no_one() -> None:
    """R91."""
    found = preview(NO_POLICY, EventType.TERMINATE)
    assert "a Terminate makes no event for this VM, so it can be approved by no one" in found.reasons


def test_the_policy_of_a_scope_counts_for_its_vms_and_a_vm_without_one_has_its_own() -> None:
    own = Policy(approvers=("operator",))
    scope = Scope(name="web", kind=ScopeKind.AVAILABILITY_SET, policy=Policy(user_operations_max=1))
    alone, member = replace(vm("db"), policy=own), vm("web-0", scope="web")
    found = find_policy_in_force(member, scope)
    assert (found.policy, found.origin) == (scope.policy, PolicyOrigin.SCOPE)
    assert find_policy_in_force(alone, None).policy == own
    assert find_policy_in_force(alone, None).origin is PolicyOrigin.VM
    default = replace(scope, policy=NO_POLICY)
    for each in (find_policy_in_force(member, default), find_policy_in_force(vm("x"), None), get_scope_policy(default)):
        assert (each.origin, "no policy" in each.reason) == (PolicyOrigin.DEFAULT, True)
    assert get_scope_policy(scope).origin is PolicyOrigin.SCOPE


@pytest.mark.parametrize(
    ("quiet", "begins"),
    [
        ((OFFICE,), [31 * 24 + 8, 32 * 24 + 8, 35 * 24 + 8]),
        ((OFFICE, OFFICE), [31 * 24 + 8, 32 * 24 + 8, 35 * 24 + 8]),
        ((replace(OFFICE, days=(2,), begin=time(20), end=time(12)),), [30 * 24 + 20, 37 * 24 + 20, 44 * 24 + 20]),
        ((), []),
    ],
)
def test_the_next_quiet_hours_are_the_current_ones_and_those_that_follow(
    quiet: tuple[QuietHours, ...], begins: list[int]
) -> None:
    found = list_next_quiet_periods(quiet, NOW, 3)
    first = datetime(2029, 12, 31, tzinfo=UTC)
    assert [(period.begin - first) // timedelta(hours=1) for period in found] == begins
    assert all(period.end > NOW for period in found)
