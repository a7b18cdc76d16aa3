"""What a rollout does next, case by case. `tests/simulation/test_rollout.py` has all of it at once."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EventType, Host, Maintenance, MaintenanceState, Scope, VirtualMachine
from forewarn.core.rollout.rollout import (
    HealthCheck,
    HealthResult,
    Rollout,
    RolloutHost,
    RolloutHostState,
    RolloutSpec,
    RolloutState,
)
from forewarn.core.rollout.rollout_commands import (
    abort_rollout,
    create_rollout,
    pause_rollout,
    resume_rollout,
    start_rollout,
)
from forewarn.core.rollout.rollout_decision import (
    apply_own_step,
    decide_next_steps,
    list_candidates,
    observe_rollout,
    record_refused,
    record_scheduled,
)
from forewarn.core.rollout.rollout_lifecycle import RolloutTrigger
from forewarn.core.rollout.rollout_plan import plan_rollout
from forewarn.core.rollout.rollout_step_types import (
    CancelMaintenance,
    CheckHealth,
    FinishRollout,
    PauseRollout,
    RolloutFacts,
    ScheduleHost,
    SkipHost,
    Step,
    WaitForChange,
)
from tests.support.world import NOW, minutes
from tests.unit.core.builders import availability_set, maintenance, vm

H = RolloutHostState
R = RolloutState
S = MaintenanceState

SPEC = RolloutSpec(name="kernel", cause="host-maintenance", batch_size=2, hosts_at_once=2)
CHECK = HealthCheck(command=("fleet-ok", "--quick"), timeout=minutes(2))
WEB = availability_set()
STARTED_AT = {S.STARTED, S.COMPLETED, S.FAILED}
ENDED_AT = {S.COMPLETED, S.FAILED, S.CANCELED}


def fleet(*vms: VirtualMachine, hosts: int = 4, scopes: tuple[Scope, ...] = (WEB,)) -> Inventory:
    return Inventory(hosts=tuple(Host(name=f"h-{n}") for n in range(hosts)), scopes=scopes, vms=vms)


def running(inventory: Inventory, **changes: Any) -> Rollout:  # noqa: ANN401 - fields of the specification
    return start_rollout(create_rollout(plan_rollout(replace(SPEC, **changes), inventory, NOW), "r-1", NOW), NOW)


def of(host: str, state: MaintenanceState, *vms: VirtualMachine, id: str = "", ended_at: datetime = NOW) -> Maintenance:
    """The maintenance of a host, whose id is ``m-`` and the number of the host."""
    made = maintenance(
        *vms,
        id=id or f"m-{host[2:]}",
        state=state,
        not_before=None if state is S.QUEUED else NOW,
        started_at=NOW if state in STARTED_AT else None,
        ended_at=ended_at if state in ENDED_AT else None,
    )
    return replace(made, hosts=(host,))


def facts(*made: Maintenance, others: tuple[Maintenance, ...] = (), health: HealthResult | None = None) -> RolloutFacts:
    return RolloutFacts(maintenances={m.id: m for m in made}, others=others, health=health)


def begun(rollout: Rollout, *hosts: str) -> Rollout:
    """These hosts' maintenances were asked for now."""
    for host in hosts:
        rollout = record_scheduled(rollout, host, (f"m-{host[2:]}",), NOW)
    return rollout


def ended(rollout: Rollout, *hosts: str, state: MaintenanceState = S.COMPLETED) -> Rollout:
    """These hosts have had their turn now."""
    return observe_rollout(begun(rollout, *hosts), facts(*(of(host, state) for host in hosts)), NOW)


def host(rollout: Rollout, name: str) -> RolloutHost:
    return next(each for each in rollout.hosts if each.name == name)


def begins(steps: list[Step]) -> list[str]:
    return [step.host for step in steps if isinstance(step, ScheduleHost)]


def waits(steps: list[Step]) -> tuple[str, datetime | None]:
    last = steps[-1]
    assert isinstance(last, WaitForChange)
    return last.reason, last.until


# What has happened


@pytest.mark.parametrize(
    ("states", "expected", "is_open", "reason"),
    [
        ([S.QUEUED], H.WAITING, True, None),
        ([S.SCHEDULED], H.WAITING, True, None),
        ([S.STARTED], H.STARTED, True, None),
        ([S.SCHEDULED, S.STARTED], H.STARTED, True, None),
        ([S.COMPLETED, S.QUEUED], H.STARTED, True, None),
        ([S.COMPLETED], H.DONE, False, None),
        ([S.COMPLETED, S.COMPLETED], H.DONE, False, None),
        ([S.CANCELED], H.SKIPPED, False, "maintenance m-0 was canceled"),
        ([S.COMPLETED, S.CANCELED], H.SKIPPED, False, "maintenance m-1 was canceled"),
        ([S.CANCELED, S.SCHEDULED], H.WAITING, True, None),
        ([S.FAILED], H.FAILED, False, "maintenance m-0 failed"),
        ([S.FAILED, S.STARTED], H.FAILED, True, "maintenance m-0 failed"),
        ([S.COMPLETED, S.FAILED], H.FAILED, False, "maintenance m-1 failed"),
        ([None], H.FAILED, False, "maintenance m-0 no longer exists"),
        ([None, S.STARTED], H.FAILED, True, "maintenance m-0 no longer exists"),
    ],
)
def test_a_host_is_what_its_maintenances_are(
    states: list[MaintenanceState | None], expected: RolloutHostState, is_open: bool, reason: str | None
) -> None:
    ids = tuple(f"m-{n}" for n in range(len(states)))
    rollout = record_scheduled(running(fleet()), "h-0", ids, NOW)
    known = {i: None if state is None else of("h-0", state, id=i) for i, state in zip(ids, states, strict=True)}
    seen = host(observe_rollout(rollout, RolloutFacts(maintenances=known), NOW), "h-0")
    assert (seen.state, seen.is_open, seen.reason) == (expected, is_open, reason)


def test_a_host_is_over_when_the_last_of_its_maintenances_was() -> None:
    rollout = record_scheduled(running(fleet()), "h-0", ("m-0", "m-1"), NOW)
    late = (of("h-0", S.COMPLETED, ended_at=NOW + minutes(7)), of("h-0", S.COMPLETED, id="m-1"))
    assert host(observe_rollout(rollout, facts(*late), NOW + minutes(9)), "h-0").ended_at == NOW + minutes(7)


def test_what_is_not_told_is_taken_for_unchanged() -> None:
    rollout = begun(running(fleet()), "h-0", "h-1")
    assert observe_rollout(rollout, RolloutFacts(), NOW) is rollout
    assert begins(decide_next_steps(rollout, fleet(), RolloutFacts(), NOW)) == []


def test_a_host_that_is_not_over_by_its_deadline_has_failed_but_stays_in_flight() -> None:
    rollout = begun(running(fleet(), deadline=minutes(40), failures_max=2), "h-0")
    started = facts(of("h-0", S.STARTED))
    assert host(observe_rollout(rollout, started, NOW + minutes(39)), "h-0").state is H.STARTED
    overdue = observe_rollout(rollout, started, NOW + minutes(40))
    seen = host(overdue, "h-0")
    assert (seen.state, seen.is_open, seen.reason) == (H.FAILED, True, "deadline of 40m exceeded")
    assert begins(decide_next_steps(overdue, fleet(), started, NOW + minutes(40))) == ["h-1"], "it keeps its place"
    over = observe_rollout(overdue, facts(of("h-0", S.COMPLETED)), NOW + minutes(50))
    assert (host(over, "h-0").state, host(over, "h-0").is_open) == (H.FAILED, False)


def test_what_was_over_in_time_is_done_however_late_one_looks() -> None:
    rollout = begun(running(fleet(), deadline=minutes(40)), "h-0")
    assert host(observe_rollout(rollout, facts(of("h-0", S.COMPLETED)), NOW + timedelta(days=1)), "h-0").state is H.DONE


def test_only_the_health_check_that_was_asked_for_counts() -> None:
    rollout = replace(running(fleet(), health=CHECK), checks=2)
    for number in (1, 2, 4):
        assert (
            observe_rollout(rollout, facts(health=HealthResult(number=number, batch=0, is_healthy=False)), NOW)
            == rollout
        )
    third = HealthResult(number=3, batch=0, is_healthy=False)
    seen = observe_rollout(rollout, facts(health=third), NOW)
    assert (seen.checks, seen.health) == (3, third)


# Whom to begin


def test_hosts_of_the_first_batch_are_begun_in_order_with_the_request_of_the_specification() -> None:
    rollout = running(fleet(), type=EventType.REBOOT, description="new kernel", duration_s=300, notice=minutes(20))
    first, second = decide_next_steps(rollout, fleet(), RolloutFacts(), NOW)
    assert first == ScheduleHost(
        host="h-0",
        request=MaintenanceRequest(
            cause="host-maintenance",
            type=EventType.REBOOT,
            description="new kernel",
            duration_s=300,
            notice=minutes(20),
            hosts=("h-0",),
        ),
    )
    assert isinstance(second, ScheduleHost)
    assert second.host == "h-1"


def test_nobody_is_begun_before_the_start_or_after_the_end() -> None:
    planned = create_rollout(plan_rollout(SPEC, fleet(), NOW), "r-1", NOW)
    assert decide_next_steps(planned, fleet(), RolloutFacts(), NOW) == []
    assert decide_next_steps(abort_rollout(planned, NOW), fleet(), RolloutFacts(), NOW) == []


def test_as_many_are_in_flight_as_may_be() -> None:
    rollout = begun(running(fleet(), batch_size=4), "h-0")
    assert begins(decide_next_steps(rollout, fleet(), facts(of("h-0", S.SCHEDULED)), NOW)) == ["h-1"]
    full = begun(rollout, "h-1")
    two = facts(of("h-0", S.SCHEDULED), of("h-1", S.STARTED))
    assert decide_next_steps(full, fleet(), two, NOW) == [WaitForChange(until=None, reason="2 hosts are in flight")]
    assert list_candidates(full, two, NOW) == []
    assert begins(decide_next_steps(full, fleet(), facts(of("h-0", S.COMPLETED), of("h-1", S.STARTED)), NOW)) == ["h-2"]


def test_the_next_batch_waits_for_the_last_host_of_this_one() -> None:
    rollout = begun(running(fleet()), "h-0", "h-1")
    one = facts(of("h-0", S.COMPLETED), of("h-1", S.STARTED))
    assert waits(decide_next_steps(rollout, fleet(), one, NOW)) == ("1 host is in flight", None)
    both = facts(of("h-0", S.COMPLETED), of("h-1", S.COMPLETED))
    assert begins(decide_next_steps(rollout, fleet(), both, NOW)) == ["h-2", "h-3"]


def test_a_host_that_must_wait_lets_others_of_its_batch_go_first() -> None:
    """R61."""
    inventory = fleet(
        vm("web-0", host="h-0", scope="web", fault_domain=0),
        vm("web-1", host="h-1", scope="web", fault_domain=1),
        vm("db", host="h-2"),
    )
    rollout = running(inventory, batch_size=3, hosts_at_once=3)
    assert begins(decide_next_steps(rollout, inventory, RolloutFacts(), NOW)) == ["h-0", "h-2"]
    in_flight = begun(rollout, "h-0", "h-2")
    held = facts(of("h-0", S.SCHEDULED), of("h-2", S.SCHEDULED))
    reason = "host h-1 waits: fault domain 0 of scope web is held by h-0"
    assert decide_next_steps(in_flight, inventory, held, NOW) == [WaitForChange(until=None, reason=reason)]


def test_what_others_do_keeps_hosts_waiting() -> None:
    web = vm("web-0", host="h-0", scope="web", fault_domain=0)
    other = vm("web-1", host="h-9", scope="web", fault_domain=1)
    inventory = fleet(web, other)
    rollout = running(inventory, batch_size=1, hosts_at_once=1)
    failing = maintenance(other, id="m-9", cause="hardware-failure", state=S.STARTED, started_at=NOW)
    reason = "host h-0 waits: fault domain 1 of scope web is held by maintenance m-9"
    assert decide_next_steps(rollout, inventory, facts(others=(failing,)), NOW) == [
        WaitForChange(until=None, reason=reason)
    ]
    restart = maintenance(other, id="m-9", cause="user-restart")
    assert begins(decide_next_steps(rollout, inventory, facts(others=(restart,)), NOW)) == ["h-0"]


def test_a_vm_that_was_moved_from_a_host_in_flight_keeps_its_new_host_waiting() -> None:
    before = vm("db", host="h-0")
    rollout = begun(running(fleet(before)), "h-0")
    moved = fleet(replace(before, host="h-1"))
    steps = decide_next_steps(rollout, moved, facts(of("h-0", S.SCHEDULED, before)), NOW)
    assert waits(steps) == ("host h-1 waits: vm db is held by maintenance m-0", None)


def test_a_host_that_cannot_have_its_turn_is_skipped_with_the_reason() -> None:
    rollout = running(fleet(), batch_size=4, hosts_at_once=4)
    changed = fleet(
        vm("web-0", host="h-0", scope="web", fault_domain=0),
        vm("web-1", host="h-0", scope="web", fault_domain=2),
        hosts=3,
    )
    steps = decide_next_steps(rollout, changed, RolloutFacts(), NOW)
    assert steps[0] == SkipHost(host="h-0", reason="it now has VMs in fault domains 0 and 2 of scope web")
    assert steps[-1] == SkipHost(host="h-3", reason="it is no longer in the inventory")
    assert begins(steps) == ["h-1", "h-2"]
    skipped = apply_own_step(rollout, SkipHost(host="h-3", reason="gone"), NOW)
    assert (host(skipped, "h-3").state, host(skipped, "h-3").reason) == (H.SKIPPED, "gone")


def test_a_host_whose_maintenance_is_refused_has_failed() -> None:
    rollout = record_refused(running(fleet()), "h-0", "vm db: the same is pending", NOW)
    seen = host(rollout, "h-0")
    assert (seen.state, seen.is_open, seen.reason) == (H.FAILED, False, "vm db: the same is pending")


# Canaries


def test_canaries_go_one_by_one_with_nothing_beside_them() -> None:
    rollout = running(fleet(), canary=("h-2", "h-0"), canary_pause=minutes(30))
    assert begins(decide_next_steps(rollout, fleet(), RolloutFacts(), NOW)) == ["h-2"]
    in_flight = begun(rollout, "h-2")
    assert begins(decide_next_steps(in_flight, fleet(), facts(of("h-2", S.STARTED)), NOW)) == []
    second = ended(rollout, "h-2")
    assert begins(decide_next_steps(second, fleet(), RolloutFacts(), NOW)) == ["h-0"]
    rest = ended(second, "h-0")
    reason = ("pause after batch 2 of 3", NOW + minutes(30))
    assert waits(decide_next_steps(rest, fleet(), RolloutFacts(), NOW + minutes(29))) == reason
    assert list_candidates(rest, RolloutFacts(), NOW + minutes(29)) == []
    assert list_candidates(rest, RolloutFacts(), NOW + minutes(30)) == ["h-1", "h-3"]
    assert begins(decide_next_steps(rest, fleet(), RolloutFacts(), NOW + minutes(30))) == ["h-1", "h-3"]


def test_a_canary_that_fails_pauses_the_rollout_whatever_may_fail() -> None:
    rollout = ended(running(fleet(), canary=("h-2",), failures_max=9), "h-2", state=S.FAILED)
    (step,) = decide_next_steps(rollout, fleet(), RolloutFacts(), NOW)
    assert step == PauseRollout(reason="canary h-2 failed: maintenance m-2 failed")
    paused = apply_own_step(rollout, step, NOW)
    assert (paused.state, paused.reason) == (R.PAUSED, step.reason)
    assert begins(decide_next_steps(resume_rollout(paused, NOW), fleet(), RolloutFacts(), NOW)) == ["h-0", "h-1"]


def test_while_an_overdue_canary_is_in_flight_nothing_else_begins() -> None:
    rollout = begun(running(fleet(), canary=("h-2",), deadline=minutes(40)), "h-2")
    late, started = NOW + minutes(40), facts(of("h-2", S.STARTED))
    paused = apply_own_step(observe_rollout(rollout, started, late), PauseRollout(reason="canary"), late)
    resumed = resume_rollout(paused, late)
    assert waits(decide_next_steps(resumed, fleet(), started, late)) == ("1 host is in flight", None)
    assert begins(decide_next_steps(resumed, fleet(), facts(of("h-2", S.COMPLETED)), late)) == ["h-0", "h-1"]


# Between two batches


def test_a_pause_is_counted_from_the_end_of_the_last_host() -> None:
    rollout = running(fleet(), pause=minutes(10))
    begun_ = begun(rollout, "h-0", "h-1")
    both = facts(of("h-0", S.COMPLETED), of("h-1", S.COMPLETED, ended_at=NOW + minutes(5)))
    steps = decide_next_steps(begun_, fleet(), both, NOW + minutes(6))
    assert steps == [WaitForChange(until=NOW + minutes(15), reason="pause after batch 1 of 2")]
    assert begins(decide_next_steps(begun_, fleet(), both, NOW + minutes(15))) == ["h-2", "h-3"]


def test_health_is_asked_after_the_pause_and_opens_the_next_batch() -> None:
    rollout = ended(running(fleet(), pause=minutes(10), health=CHECK), "h-0", "h-1")
    assert waits(decide_next_steps(rollout, fleet(), RolloutFacts(), NOW))[0] == "pause after batch 1 of 2"
    later = NOW + minutes(10)
    ask, wait = decide_next_steps(rollout, fleet(), RolloutFacts(), later)
    assert ask == CheckHealth(number=1, batch=0, command=CHECK.command, timeout=CHECK.timeout)
    assert wait == WaitForChange(until=None, reason="health check after batch 1 of 2")
    assert decide_next_steps(rollout, fleet(), RolloutFacts(), later) == [ask, wait], (
        "it is the same check, not another one"
    )
    healthy = facts(health=HealthResult(number=1, batch=0, is_healthy=True))
    assert begins(decide_next_steps(rollout, fleet(), healthy, later)) == ["h-2", "h-3"]


def test_a_failed_health_check_pauses_and_is_made_again() -> None:
    rollout = ended(running(fleet(), health=CHECK), "h-0", "h-1")
    ill = facts(health=HealthResult(number=1, batch=0, is_healthy=False, detail="3 VMs are down"))
    (step,) = decide_next_steps(rollout, fleet(), ill, NOW)
    assert step == PauseRollout(reason="the health check after batch 1 failed: 3 VMs are down")
    paused = apply_own_step(observe_rollout(rollout, ill, NOW), step, NOW)
    ask = decide_next_steps(resume_rollout(paused, NOW), fleet(), ill, NOW)[0]
    assert isinstance(ask, CheckHealth)
    assert (ask.number, ask.batch) == (2, 0)
    assert begins(decide_next_steps(resume_rollout(paused, NOW, accept_health=True), fleet(), ill, NOW)) == [
        "h-2",
        "h-3",
    ]


def test_a_health_check_that_says_nothing_is_told_so() -> None:
    rollout = ended(running(fleet(), health=CHECK), "h-0", "h-1")
    (step,) = decide_next_steps(rollout, fleet(), facts(health=HealthResult(number=1, batch=0, is_healthy=False)), NOW)
    assert step == PauseRollout(reason="the health check after batch 1 failed: no output")


def test_after_the_last_batch_nobody_is_asked() -> None:
    rollout = ended(running(fleet(hosts=2), health=CHECK, pause=minutes(10)), "h-0", "h-1")
    assert decide_next_steps(rollout, fleet(hosts=2), RolloutFacts(), NOW) == [
        FinishRollout(trigger=RolloutTrigger.COMPLETE)
    ]


# Failures


def test_too_many_failures_pause_it_and_count_anew_after_a_resumption() -> None:
    rollout = running(fleet(hosts=8), batch_size=2, failures_max=2)
    one = ended(rollout, "h-0", state=S.FAILED)
    assert begins(decide_next_steps(one, fleet(hosts=8), RolloutFacts(), NOW)) == ["h-1"]
    two = ended(one, "h-1", state=S.FAILED)
    (step,) = decide_next_steps(two, fleet(hosts=8), RolloutFacts(), NOW)
    assert step == PauseRollout(reason="2 hosts failed, most recently h-1 (failures_max is 2)")
    resumed = resume_rollout(apply_own_step(two, step, NOW), NOW)
    third = ended(resumed, "h-2", state=S.FAILED)
    assert begins(decide_next_steps(third, fleet(hosts=8), RolloutFacts(), NOW)) == ["h-3"]


def test_what_has_not_started_of_a_host_that_failed_is_taken_back() -> None:
    rollout = record_scheduled(running(fleet(), failures_max=2), "h-0", ("m-0", "m-1", "m-2"), NOW)
    known = facts(of("h-0", S.FAILED), of("h-0", S.QUEUED, id="m-1"), of("h-0", S.STARTED, id="m-2"))
    steps = decide_next_steps(rollout, fleet(), known, NOW)
    assert steps[0] == CancelMaintenance(host="h-0", maintenance_id="m-1", reason="maintenance m-0 failed")
    assert [step for step in steps if isinstance(step, CancelMaintenance)] == steps[:1]


def test_time_is_waited_for_until_the_first_host_is_overdue() -> None:
    rollout = begun(running(fleet(), deadline=minutes(40)), "h-0")
    later = record_scheduled(rollout, "h-1", ("m-1",), NOW + minutes(1))
    known = facts(of("h-0", S.SCHEDULED), of("h-1", S.SCHEDULED))
    assert waits(decide_next_steps(later, fleet(), known, NOW + minutes(2))) == (
        "2 hosts are in flight",
        NOW + minutes(40),
    )


# Pause, abort, end


def test_a_pause_lets_what_is_in_flight_come_to_its_end() -> None:
    paused = pause_rollout(begun(running(fleet()), "h-0"), NOW, reason="lunch")
    known = facts(of("h-0", S.SCHEDULED))
    assert decide_next_steps(paused, fleet(), known, NOW) == [WaitForChange(until=None, reason="lunch")]
    assert host(observe_rollout(paused, facts(of("h-0", S.COMPLETED)), NOW), "h-0").state is H.DONE
    assert waits(decide_next_steps(pause_rollout(running(fleet()), NOW), fleet(), RolloutFacts(), NOW)) == (
        "the rollout is paused",
        None,
    )
    assert begins(decide_next_steps(resume_rollout(paused, NOW), fleet(), known, NOW)) == ["h-1"]


def test_an_abort_takes_back_what_has_not_started_and_waits_for_the_rest() -> None:
    aborting = abort_rollout(begun(running(fleet()), "h-0", "h-1"), NOW, reason="enough")
    known = facts(of("h-0", S.SCHEDULED), of("h-1", S.STARTED))
    assert decide_next_steps(aborting, fleet(), known, NOW) == [
        CancelMaintenance(host="h-0", maintenance_id="m-0", reason="enough"),
        WaitForChange(until=None, reason="enough"),
    ]
    over = facts(of("h-0", S.CANCELED), of("h-1", S.COMPLETED))
    (step,) = decide_next_steps(aborting, fleet(), over, NOW)
    assert step == FinishRollout(trigger=RolloutTrigger.END)
    aborted = apply_own_step(observe_rollout(aborting, over, NOW), step, NOW)
    assert (aborted.state, aborted.reason) == (R.ABORTED, "enough")
    assert [each.state for each in aborted.hosts] == [H.SKIPPED, H.DONE, H.SKIPPED, H.SKIPPED]


@pytest.mark.parametrize(
    ("state", "expected"), [(S.COMPLETED, R.COMPLETED), (S.CANCELED, R.COMPLETED), (S.FAILED, R.FAILED)]
)
@pytest.mark.parametrize("is_paused", [False, True])
def test_it_ends_when_every_host_has_had_its_turn(
    state: MaintenanceState, expected: RolloutState, is_paused: bool
) -> None:
    """Also while it is paused: nothing is left to be resumed."""
    inventory = fleet(hosts=2)
    rollout = ended(running(inventory), "h-0", "h-1", state=state)
    if is_paused:
        rollout = pause_rollout(rollout, NOW)
    (step,) = decide_next_steps(rollout, inventory, RolloutFacts(), NOW)
    assert isinstance(step, FinishRollout)
    over = apply_own_step(rollout, step, NOW + minutes(1))
    assert (over.state, over.ended_at, over.reason) == (expected, NOW + minutes(1), None)
    assert decide_next_steps(over, inventory, RolloutFacts(), NOW) == []
    assert observe_rollout(over, facts(health=HealthResult(number=1, batch=0, is_healthy=True)), NOW) is over


def test_it_does_not_end_while_an_overdue_host_is_in_flight() -> None:
    inventory = fleet(hosts=1)
    rollout = begun(running(inventory, deadline=minutes(40)), "h-0")
    late = NOW + minutes(40)
    assert waits(decide_next_steps(rollout, inventory, facts(of("h-0", S.STARTED)), late)) == (
        "1 host is in flight",
        None,
    )
    steps = decide_next_steps(rollout, inventory, facts(of("h-0", S.FAILED)), late)
    assert steps == [FinishRollout(trigger=RolloutTrigger.FAIL)]


# Quiet hours


def moved(host: str, to: datetime) -> Maintenance:
    """The maintenance of a host, announced now, that quiet hours have moved."""
    made = of(host, S.SCHEDULED, vm("web-0", scope="web"))
    return replace(made, announced_at=NOW, not_before=to, due_at=to, moved_from=NOW + minutes(15), moved_by=("web",))


def test_the_deadline_of_a_host_moves_with_the_quiet_hours_that_put_it_off() -> None:
    """It was announced for 23:00: that is not over within an hour, and has not failed."""
    inventory = fleet(vm("web-0", host="h-0", scope="web"), hosts=1)
    rollout = begun(running(inventory, deadline=minutes(60)), "h-0")
    late = moved("h-0", NOW + minutes(13 * 60))
    assert host(observe_rollout(rollout, facts(late), NOW + minutes(13 * 60)), "h-0").state is H.WAITING
    reason, until = waits(decide_next_steps(rollout, inventory, facts(late), NOW + minutes(60)))
    assert reason == "1 host is in flight; h-0 was moved to 2026-11-21T23:00:00Z by quiet hours of web"
    assert until == NOW + minutes(13 * 60 + 45)
    failed = host(observe_rollout(rollout, facts(late), NOW + minutes(13 * 60 + 45)), "h-0")
    assert (failed.state, failed.reason) == (H.FAILED, "deadline of 1h exceeded")
