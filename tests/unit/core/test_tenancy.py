"""Policies: what they approve, what they keep free, whom they let approve, how much they allow."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from forewarn.core.maintenance.approval import Approver
from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EntryKind, EventSource, EventStatus, EventType, MaintenanceState, Scope, ScopeKind
from forewarn.core.policy import NO_POLICY, Policy
from forewarn.errors import Conflict, QuietHoursConflict
from tests.support.quiet import ALL_DAYS, quiet_hours, utc
from tests.support.world import NOW, World, minutes
from tests.unit.core.builders import availability_set, vm

S = MaintenanceState
SATURDAY = quiet_hours("sat", "09:00", "18:00", "UTC")
"""NOW is 10:00 of such a day."""
EVENING = utc("2026-11-21 18:00")
FREEZES = Policy(approves_freezes_up_to=timedelta(seconds=10))
QUIET = Policy(quiet_hours=(SATURDAY,))


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def lone(policy: Policy, rules: DecisionRules | None = None) -> World:
    return World(replace(vm("db"), policy=policy), rules=rules)


def scoped(policy: Policy, *names: str) -> World:
    scope = replace(availability_set(), policy=policy)
    return World(*(vm(name, scope="web") for name in names or ("web-0", "web-1")), scopes=(scope,))


# Approval by policy


def test_a_short_freeze_is_shown_as_scheduled_and_starts_a_moment_later() -> None:
    """R42, R75: a change of its own for each arrow."""
    world = lone(FREEZES)
    made = world.plan_one(MaintenanceRequest(cause="host-maintenance", vms=("db",)))
    assert (made.state, world.event_of(made).approved_by, world.incarnation("vm:db")) == (S.SCHEDULED, "policy", 2)
    assert made.not_before == NOW + minutes(15)
    assert made.due_at == NOW + seconds(5)
    approvals = [entry for entry in world.entries if entry.kind is EntryKind.APPROVED]
    assert [(entry.actor, entry.maintenance_id) for entry in approvals] == [("policy", made.id)]
    world.advance(seconds(4.9))
    assert world.state_of(made) is S.SCHEDULED
    world.advance(seconds(0.1))
    assert (world.state_of(made), world.incarnation("vm:db")) == (S.STARTED, 3)


@pytest.mark.parametrize(
    "request_",
    [
        MaintenanceRequest(cause="host-maintenance", vms=("db",), duration_s=11),
        MaintenanceRequest(cause="host-maintenance", vms=("db",), duration_s=-1),
        MaintenanceRequest(cause="host-maintenance", vms=("db",), type=EventType.REBOOT, duration_s=5),
        MaintenanceRequest(cause="host-maintenance", vms=("db",), source=EventSource.USER),
        MaintenanceRequest(cause="user-restart", vms=("db",)),
    ],
)
def test_what_is_no_short_freeze_by_the_platform_is_not_approved(request_: MaintenanceRequest) -> None:
    world = lone(FREEZES)
    assert not world.event_of(world.plan_one(request_)).is_approved


def test_a_longer_delay_of_starts_holds_for_policies_too() -> None:
    """A24."""
    world = lone(FREEZES, DecisionRules(start_delay=minutes(2)))
    assert world.plan_one(MaintenanceRequest(cause="live-migration", vms=("db",))).due_at == NOW + minutes(2)


def test_other_tenants_of_the_host_still_have_their_say() -> None:
    """R83."""
    world = World(replace(vm("db"), policy=FREEZES), vm("other"))
    made = world.plan_one(MaintenanceRequest(cause="live-migration", hosts=("host-1",)))
    world.advance(minutes(5))
    assert world.state_of(made) is S.SCHEDULED
    (other,) = [event for event in world.events_of(made) if not event.is_approved]
    world.approve("other", other.id)
    assert world.state_of(made) is S.STARTED


def test_the_policy_of_a_lone_vm_lets_its_user_operations_pass() -> None:
    """X5."""
    world = lone(Policy(approves_user_operations=True))
    assert world.plan_one(MaintenanceRequest(cause="user-restart", vms=("db",))).state is S.STARTED


def test_the_policy_of_a_scope_lets_its_user_operations_pass() -> None:
    """X5."""
    world = World(vm("web-0", scope="web"), scopes=(availability_set(approves_user_operations=True),))
    assert world.plan_one(MaintenanceRequest(cause="user-redeploy", vms=("web-0",))).state is S.STARTED


def test_a_scope_that_says_that_it_is_none_has_a_policy_all_the_same() -> None:
    scope = Scope(name="alone", kind=ScopeKind.STANDALONE, policy=FREEZES)
    world = World(vm("db", scope="alone"), scopes=(scope,))
    made = world.plan_one(MaintenanceRequest(cause="live-migration", vms=("db",)))
    assert world.event_of(made).approved_by == "policy"


# Quiet hours


@pytest.mark.parametrize("cause", ["live-migration", "host-maintenance", "platform-redeploy"])
def test_platform_maintenance_comes_after_quiet_hours(cause: str) -> None:
    world = lone(QUIET)
    made = world.plan_one(MaintenanceRequest(cause=cause, vms=("db",)))
    assert (made.state, made.not_before) == (S.SCHEDULED, EVENING)
    assert world.line("vm:db").not_before == EVENING


@pytest.mark.parametrize(
    "request_",
    [
        MaintenanceRequest(cause="user-restart", vms=("db",)),
        MaintenanceRequest(cause="host-maintenance", source=EventSource.USER, vms=("db",)),
        MaintenanceRequest(cause="spot-eviction", vms=("db",)),
        MaintenanceRequest(cause="predicted-failure", vms=("db",), notice=timedelta(hours=2)),
        MaintenanceRequest(cause="host-maintenance", vms=("db",), force_reason="the roof leaks"),
        MaintenanceRequest(cause="hardware-failure", hosts=("host-1",)),
    ],
)
def test_what_cannot_wait_or_is_wanted_or_forced_comes_in_quiet_hours_too(request_: MaintenanceRequest) -> None:
    """R72, R73, R90."""
    made = lone(QUIET).plan_one(request_)
    assert made.not_before is not None
    assert made.not_before <= NOW + timedelta(hours=2)


def test_a_named_moment_in_quiet_hours_is_put_after_them() -> None:
    noon = utc("2026-11-21 12:00")
    assert (
        lone(QUIET).plan_one(MaintenanceRequest(cause="host-maintenance", vms=("db",), not_before=noon)).not_before
        == EVENING
    )
    later = utc("2026-11-21 20:30")
    assert (
        lone(QUIET).plan_one(MaintenanceRequest(cause="host-maintenance", vms=("db",), not_before=later)).not_before
        == later
    )


def test_who_does_not_ask_for_events_has_quiet_hours_all_the_same() -> None:
    """R70."""
    world = World(replace(vm("db"), policy=QUIET), is_enabled=False)
    made = world.plan_one(MaintenanceRequest(cause="host-maintenance", vms=("db",)))
    assert (made.state, made.not_before, world.events_of(made)) == (S.SCHEDULED, EVENING, [])


def test_a_maintenance_says_from_when_it_was_moved_and_by_whose_quiet_hours() -> None:
    """It is not everybody on the host who has some, and not all of them are in the way."""
    night = Policy(quiet_hours=(quiet_hours(ALL_DAYS, "01:00", "02:00", "UTC"),))
    world = World(replace(vm("db"), policy=QUIET), replace(vm("other"), policy=night), vm("third"))
    made = world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    assert (made.not_before, made.moved_from, made.moved_by) == (EVENING, NOW + minutes(15), ("db",))
    (entry,) = world.changes.entries
    assert entry.reason == "quiet hours of db moved NotBefore from 2026-11-21T10:15:00Z"


def test_what_is_put_off_into_quiet_hours_says_so_and_no_more_when_it_is_put_off_out_of_them() -> None:
    world = World(replace(vm("db"), policy=Policy(quiet_hours=(quiet_hours("sat", "12:00", "13:00", "UTC"),))))
    request = MaintenanceRequest(cause="host-maintenance", vms=("db",), latest_start=utc("2026-11-21 20:00"))
    made = world.plan_one(request)
    assert (made.moved_from, made.moved_by) == (None, ())
    moved = world.defer(made, not_before=utc("2026-11-21 12:10"))
    assert (moved.not_before, moved.moved_from) == (utc("2026-11-21 13:00"), utc("2026-11-21 12:10"))
    assert moved.moved_by == ("db",)
    again = world.defer(moved, not_before=utc("2026-11-21 15:00"))
    assert (again.moved_from, again.moved_by) == (None, ())


def test_an_approval_is_consent_to_quiet_hours() -> None:
    world = lone(QUIET)
    made = world.plan_one(MaintenanceRequest(cause="host-maintenance", vms=("db",)))
    world.approve("db", world.event_of(made).id)
    assert world.state_of(made) is S.STARTED


def test_a_policy_that_approves_keeps_its_own_quiet_hours_unless_a_vm_approves_as_well() -> None:
    world = lone(replace(FREEZES, quiet_hours=(SATURDAY,)))
    made = world.plan_one(MaintenanceRequest(cause="live-migration", vms=("db",)))
    assert (made.state, made.due_at, made.not_before) == (S.SCHEDULED, EVENING, EVENING)
    world.advance(minutes(20))
    assert world.approve("db", world.event_of(made).id).approved == (world.event_of(made).id,)
    assert (world.state_of(made), world.event_of(made).approved_by) == (S.STARTED, "vm:db")


def test_a_policy_agrees_to_nothing_in_its_quiet_hours_though_others_approve_then() -> None:
    late = quiet_hours("sat", "10:10", "18:00", "UTC")
    world = World(replace(vm("db"), policy=replace(FREEZES, quiet_hours=(late,))), vm("other"))
    made = world.plan_one(MaintenanceRequest(cause="live-migration", hosts=("host-1",)))
    (other,) = [event for event in world.events_of(made) if not event.is_approved]
    world.advance(minutes(12))
    world.approve("other", other.id)
    assert (world.state_of(made), world.get(made).due_at) == (S.SCHEDULED, EVENING)


def test_where_no_moment_is_calm_for_all_it_is_refused_and_says_for_whom() -> None:
    day, night = quiet_hours(ALL_DAYS, "06:00", "18:00"), quiet_hours(ALL_DAYS, "18:00", "06:00")
    world = World(
        replace(vm("db"), policy=Policy(quiet_hours=(day,))),
        replace(vm("other"), policy=Policy(quiet_hours=(night,))),
        vm("third"),
    )
    with pytest.raises(QuietHoursConflict, match=r"outside the quiet hours of db, other: .* force it") as caught:
        world.plan(MaintenanceRequest(cause="live-migration", hosts=("host-1",)))
    assert caught.value.details == {"scopes": ["db", "other"]}
    forced = world.plan_one(
        MaintenanceRequest(cause="live-migration", hosts=("host-1",), force_reason="the roof leaks")
    )
    assert forced.not_before == NOW + minutes(15)
    (entry,) = [entry for entry in world.entries if entry.kind is EntryKind.SCHEDULED]
    assert entry.reason == "the roof leaks"


def test_the_latest_start_is_a_limit_for_quiet_hours_too() -> None:
    with pytest.raises(QuietHoursConflict, match="to 2026-11-21T17:00:00Z is outside"):
        lone(QUIET).plan(
            MaintenanceRequest(cause="host-maintenance", vms=("db",), latest_start=utc("2026-11-21 17:00"))
        )


def test_what_waited_in_the_queue_until_no_moment_was_left_is_canceled_with_the_reason() -> None:
    """R61: the scope was declared anew meanwhile."""
    machines = [vm("web-0", scope="web"), vm("web-1", scope="web", fault_domain=1, host="host-2")]
    world = World(*machines, scopes=(availability_set(),))
    first, second = world.plan(MaintenanceRequest(cause="host-maintenance", vms=("web-0", "web-1")))
    assert second.state is S.QUEUED
    world.scopes["web"] = replace(
        availability_set(), policy=Policy(quiet_hours=(quiet_hours(ALL_DAYS, "00:00", "00:00"),))
    )
    world.cancel(first)
    assert world.state_of(second) is S.CANCELED
    assert "quiet hours of web" in (world.entries[-1].reason or "")


def test_what_would_have_to_queue_is_refused_at_once_where_no_moment_is_calm() -> None:
    scope = replace(availability_set(), policy=Policy(quiet_hours=(quiet_hours(ALL_DAYS, "00:00", "00:00"),)))
    world = World(vm("web-0", scope="web"), vm("web-1", scope="web", fault_domain=1), scopes=(scope,))
    forced = MaintenanceRequest(cause="host-maintenance", vms=("web-0",), force_reason="now")
    world.plan(forced)
    with pytest.raises(QuietHoursConflict):
        world.plan(MaintenanceRequest(cause="host-maintenance", vms=("web-1",)))


# Approvers


def approve(world: World, actor: str, event_id: str) -> str:
    name = actor.removeprefix("vm:")
    is_vm = actor.startswith("vm:")
    approver = Approver(actor=actor, vm=name if is_vm else None, audience=world.key_of(name) if is_vm else None)
    approval = world.approve_as(approver, event_id)
    return next(word for word in ("approved", "unchanged", "refused", "unknown") if getattr(approval, word))


@pytest.mark.parametrize(
    ("approvers", "expected"),
    [
        (NO_POLICY.approvers, ["approved", "approved", "approved"]),
        (("vm",), ["approved", "refused", "refused"]),
        (("operator", "tenant"), ["refused", "approved", "approved"]),
        (("vm:web-0",), ["approved", "refused", "refused"]),
        (("vm:web-1", "tenant"), ["refused", "refused", "approved"]),
    ],
)
def test_only_approvals_of_those_whom_the_policy_names_count(approvers: tuple[str, ...], expected: list[str]) -> None:
    found = []
    for actor in ("vm:web-0", "operator:ann", "tenant:shop"):
        world = scoped(Policy(approvers=approvers))
        made = world.plan_one(MaintenanceRequest(cause="host-maintenance", vms=("web-0",)))
        found.append(approve(world, actor, world.event_of(made).id))
        is_approved = found[-1] == "approved"
        assert world.state_of(made) is (S.STARTED if is_approved else S.SCHEDULED)
        assert world.changes.is_empty is not is_approved
    assert found == expected


def test_with_one_that_is_refused_nothing_of_the_list_is_approved() -> None:
    """R55, and invariant 5: no 200 for what is not on disk."""
    world = World(vm("web-0", scope="web"), vm("web-1", scope="web", update_domain=1), scopes=(availability_set(),))
    made = world.plan_one(MaintenanceRequest(cause="host-maintenance", vms=("web-0", "web-1")))
    first, second = world.events_of(made)
    world.approve("web-0", first.id)
    world.scopes["web"] = replace(availability_set(), policy=Policy(approvers=("operator",)))
    assert world.approve("web-0", first.id, second.id).refused == (second.id,)
    assert world.changes.is_empty


def test_what_is_approved_started_or_over_is_no_matter_of_approvers_any_more() -> None:
    """R49."""
    world = scoped(Policy(approvers=("operator",)))
    made = world.plan_one(MaintenanceRequest(cause="host-maintenance", vms=("web-0",)))
    event_id = world.event_of(made).id
    assert approve(world, "vm:web-0", event_id) == "refused"
    assert approve(world, "operator:ann", event_id) == "approved"
    assert approve(world, "vm:web-0", event_id) == "unchanged"
    world.complete(made)
    assert approve(world, "vm:web-0", event_id) == "unchanged"


# User operations


def test_more_user_operations_than_the_policy_allows_are_refused_and_the_others_named() -> None:
    world = scoped(Policy(user_operations_max=2), "web-0", "web-1", "web-2")
    first = world.plan_one(MaintenanceRequest(cause="user-restart", vms=("web-0",)))
    world.approve("web-0", world.event_of(first).id)
    second = world.plan_one(MaintenanceRequest(cause="user-redeploy", vms=("web-1",)))
    with pytest.raises(Conflict, match="web allows 2 user operations at a time") as caught:
        world.plan(MaintenanceRequest(cause="user-restart", vms=("web-2",)))
    assert caught.value.details == {"limit": 2, "ids": [first.id, second.id]}
    assert first.id in caught.value.message
    world.plan(MaintenanceRequest(cause="live-migration", vms=("web-2",)))
    world.complete(first)
    assert world.plan_one(MaintenanceRequest(cause="user-restart", vms=("web-2",))).state is S.SCHEDULED


def test_one_request_for_more_vms_than_allowed_is_refused_as_a_whole() -> None:
    world = scoped(Policy(user_operations_max=1))
    with pytest.raises(Conflict, match="web allows 1 user operations at a time"):
        world.plan(MaintenanceRequest(cause="user-restart", vms=("web-0", "web-1")))
    assert world.maintenances == {}


def test_what_goes_on_in_another_scope_does_not_count() -> None:
    world = World(
        replace(vm("db"), policy=Policy(user_operations_max=1)),
        replace(vm("other"), policy=Policy(user_operations_max=1)),
    )
    world.plan(MaintenanceRequest(cause="user-restart", vms=("other",)))
    world.plan(MaintenanceRequest(cause="user-restart", vms=("db",)))
    with pytest.raises(Conflict, match="db allows 1"):
        world.plan(MaintenanceRequest(cause="user-redeploy", vms=("db",)))


def test_a_policy_approved_event_is_shown_like_any_other() -> None:
    """R40: there is no other status."""
    world = lone(FREEZES)
    world.plan(MaintenanceRequest(cause="live-migration", vms=("db",)))
    assert world.line("vm:db").status is EventStatus.SCHEDULED
