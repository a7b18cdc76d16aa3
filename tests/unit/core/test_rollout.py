"""What a rollout is, which arrows there are, and what an operator may ask."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from forewarn.core.inventory import Inventory
from forewarn.core.model import Host
from forewarn.core.rollout.rollout import (
    ENDED_STATES,
    OVER_STATES,
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
from forewarn.core.rollout.rollout_lifecycle import (
    HOST_TRANSITIONS,
    TRANSITIONS,
    HostTrigger,
    RolloutTrigger,
    apply_host_trigger,
    apply_rollout_trigger,
    check_host,
    check_rollout,
)
from forewarn.core.rollout.rollout_plan import plan_rollout
from forewarn.errors import Conflict, IllegalTransition
from tests.support.world import NOW

H = RolloutHostState
R = RolloutState
LATER = NOW + timedelta(minutes=1)

SPEC = RolloutSpec(name="kernel", cause="host-maintenance", batch_size=2, hosts_at_once=2, canary=("h-0",))
INVENTORY = Inventory(hosts=tuple(Host(name=f"h-{n}") for n in range(4)))


def planned() -> Rollout:
    return create_rollout(plan_rollout(SPEC, INVENTORY, NOW), "r-1", NOW)


def in_state(state: RolloutState) -> Rollout:
    """A rollout whose hosts and times fit its state."""
    began = None if state is R.PLANNED else NOW
    made = replace(planned(), state=state, started_at=began, reason="why")
    if state not in ENDED_STATES:
        return made
    done = tuple(replace(host, state=H.DONE, scheduled_at=NOW, ended_at=NOW) for host in made.hosts)
    return replace(made, hosts=done, ended_at=NOW)


def host_in_state(state: RolloutHostState) -> RolloutHost:
    return RolloutHost(
        name="h-0",
        batch=0,
        state=state,
        is_open=state in {H.WAITING, H.STARTED},
        scheduled_at=None if state is H.PENDING else NOW,
        ended_at=NOW if state in OVER_STATES else None,
    )


# Arrows


def test_a_rollout_leads_from_planned_to_an_end_and_out_of_none() -> None:
    assert {state for state, _ in TRANSITIONS if state in ENDED_STATES} == set()
    reached: set[RolloutState | None] = {None}
    for _ in TRANSITIONS:
        reached |= {target for (state, _), target in TRANSITIONS.items() if state in reached}
    assert reached == {None, *RolloutState}


def test_a_host_leads_from_pending_to_an_end_and_out_of_none() -> None:
    assert {state for state, _ in HOST_TRANSITIONS if state in OVER_STATES} == set()
    reached: set[RolloutHostState | None] = {None}
    for _ in HOST_TRANSITIONS:
        reached |= {target for (state, _), target in HOST_TRANSITIONS.items() if state in reached}
    assert reached == {None, *RolloutHostState}


@pytest.mark.parametrize("trigger", RolloutTrigger)
@pytest.mark.parametrize("state", RolloutState)
def test_only_arrows_of_the_table_are_taken(state: RolloutState, trigger: RolloutTrigger) -> None:
    before = in_state(state)
    target = TRANSITIONS.get((state, trigger))
    if target is None:
        with pytest.raises((Conflict, IllegalTransition), match=f"rollout 'kernel' is {state}"):
            apply_rollout_trigger(before, trigger, LATER)
        return
    if target in ENDED_STATES:
        before = replace(before, hosts=in_state(R.COMPLETED).hosts)
    assert apply_rollout_trigger(before, trigger, LATER).state is target


@pytest.mark.parametrize("trigger", HostTrigger)
@pytest.mark.parametrize("state", RolloutHostState)
def test_only_arrows_of_the_table_are_taken_by_a_host(state: RolloutHostState, trigger: HostTrigger) -> None:
    before = host_in_state(state)
    target = HOST_TRANSITIONS.get((state, trigger))
    if target is None:
        with pytest.raises(IllegalTransition, match=f"host h-0 of a rollout is {state}: {trigger} is not possible"):
            apply_host_trigger(before, trigger, LATER)
        return
    after = apply_host_trigger(before, trigger, LATER, is_open=target in {H.WAITING, H.STARTED})
    assert (after.state, after.ended_at) == (target, LATER if target in OVER_STATES else None)
    assert after.scheduled_at == (LATER if trigger is HostTrigger.SCHEDULE else before.scheduled_at)


def test_a_step_sets_the_times_and_reasons_that_belong_to_its_state() -> None:
    started = start_rollout(planned(), LATER)
    assert (started.started_at, started.ended_at, started.reason) == (LATER, None, None)
    paused = pause_rollout(started, LATER, reason="lunch")
    assert (paused.state, paused.reason) == (R.PAUSED, "lunch")
    assert resume_rollout(paused, LATER).reason is None
    assert apply_rollout_trigger(in_state(R.PLANNED), RolloutTrigger.START, LATER).reason is None


@pytest.mark.parametrize(
    "wrong",
    [
        replace(in_state(R.COMPLETED), ended_at=None),
        replace(in_state(R.RUNNING), ended_at=NOW),
        replace(in_state(R.RUNNING), started_at=None),
        replace(in_state(R.PLANNED), started_at=NOW),
        replace(in_state(R.COMPLETED), hosts=planned().hosts),
        replace(in_state(R.FAILED), hosts=(replace(host_in_state(H.FAILED), is_open=True),)),
        replace(in_state(R.COMPLETED), hosts=(host_in_state(H.FAILED),)),
    ],
)
def test_a_rollout_that_contradicts_its_state_is_a_bug(wrong: Rollout) -> None:
    with pytest.raises(IllegalTransition, match="do not fit its state"):
        check_rollout(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(host_in_state(H.PENDING), is_open=True),
        replace(host_in_state(H.STARTED), is_open=False),
        replace(host_in_state(H.DONE), ended_at=None),
        replace(host_in_state(H.WAITING), ended_at=NOW),
        replace(host_in_state(H.WAITING), scheduled_at=None),
        replace(host_in_state(H.FAILED), is_open=True, scheduled_at=None),
    ],
)
def test_a_host_that_contradicts_its_state_is_a_bug(wrong: RolloutHost) -> None:
    with pytest.raises(IllegalTransition, match="do not fit its state"):
        check_host(wrong)


def test_a_host_that_has_failed_may_be_open_or_not() -> None:
    for is_open in (False, True):
        check_host(replace(host_in_state(H.FAILED), is_open=is_open))
        assert replace(host_in_state(H.FAILED), is_open=is_open).is_over


# Words


def test_a_new_rollout_is_planned_with_every_host_pending() -> None:
    rollout = planned()
    assert (rollout.id, rollout.state, rollout.created_at) == ("r-1", R.PLANNED, NOW)
    assert [(host.name, host.batch) for host in rollout.hosts] == [("h-0", 0), ("h-1", 1), ("h-2", 1), ("h-3", 2)]
    assert rollout.host_counts == {state: 4 if state is H.PENDING else 0 for state in RolloutHostState}
    assert (rollout.current_batch, rollout.batch_count, rollout.canary_count, rollout.failure_count) == (0, 3, 1, 0)
    assert (rollout.open_hosts, rollout.watched_maintenance_ids, rollout.is_ended) == ((), (), False)


def test_what_is_in_flight_is_what_is_open() -> None:
    first, second, *rest = planned().hosts
    failed = replace(first, state=H.FAILED, is_open=True, scheduled_at=NOW, ended_at=NOW, maintenance_ids=("m-1",))
    waiting = replace(second, state=H.WAITING, is_open=True, scheduled_at=NOW, maintenance_ids=("m-2", "m-3"))
    rollout = replace(planned(), hosts=(failed, waiting, *rest))
    assert [host.name for host in rollout.open_hosts] == ["h-0", "h-1"]
    assert rollout.watched_maintenance_ids == ("m-1", "m-2", "m-3")
    assert (rollout.current_batch, rollout.failure_count) == (1, 1)


# What an operator asks


@pytest.mark.parametrize(
    ("state", "command", "hint"),
    [
        (R.RUNNING, start_rollout, "only a planned one can be started"),
        (R.PLANNED, pause_rollout, "only a running one can be paused"),
        (R.PAUSED, pause_rollout, "only a running one can be paused"),
        (R.RUNNING, resume_rollout, "only a paused one can be resumed"),
        (R.COMPLETED, resume_rollout, "only a paused one can be resumed"),
        (R.ABORTING, abort_rollout, "it has ended or is being aborted already"),
        (R.ABORTED, abort_rollout, "it has ended or is being aborted already"),
    ],
)
def test_a_command_at_the_wrong_time_is_a_conflict(state: RolloutState, command: object, hint: str) -> None:
    assert callable(command)
    before = in_state(state)
    with pytest.raises(Conflict, match=hint) as caught:
        command(before, LATER)
    assert caught.value.details == {"rollout": "kernel", "state": state.value}


def test_what_is_aborted_before_it_began_is_over_at_once() -> None:
    aborted = abort_rollout(planned(), LATER, reason="wrong kernel")
    assert (aborted.state, aborted.ended_at, aborted.started_at, aborted.reason) == (
        R.ABORTED,
        LATER,
        None,
        "wrong kernel",
    )
    assert {(host.state, host.reason) for host in aborted.hosts} == {
        (H.SKIPPED, "the rollout was aborted: wrong kernel")
    }


def test_an_abort_skips_what_is_pending_and_waits_for_the_rest() -> None:
    first, *rest = in_state(R.RUNNING).hosts
    waiting = replace(first, state=H.WAITING, is_open=True, scheduled_at=NOW)
    aborting = abort_rollout(replace(in_state(R.RUNNING), hosts=(waiting, *rest)), LATER)
    assert (aborting.state, aborting.ended_at) == (R.ABORTING, None)
    assert aborting.hosts[0] == waiting
    assert {(host.state, host.reason) for host in aborting.hosts[1:]} == {(H.SKIPPED, "the rollout was aborted")}


def test_the_reason_of_an_abort_stays_when_it_is_over() -> None:
    aborting = replace(in_state(R.ABORTING), hosts=in_state(R.ABORTED).hosts, reason="enough")
    assert apply_rollout_trigger(aborting, RolloutTrigger.END, LATER).reason == "enough"


def test_a_resumption_accepts_the_failures_that_are_there() -> None:
    first, *rest = in_state(R.PAUSED).hosts
    failed = replace(first, state=H.FAILED, ended_at=NOW)
    resumed = resume_rollout(replace(in_state(R.PAUSED), hosts=(failed, *rest)), LATER)
    assert (resumed.state, resumed.failures_accepted, resumed.failure_count) == (R.RUNNING, 1, 1)


@pytest.mark.parametrize("is_healthy", [False, True])
def test_a_resumption_has_the_health_before_the_next_batch_checked_again(is_healthy: bool) -> None:
    paused = replace(in_state(R.PAUSED), health=HealthResult(number=3, batch=0, is_healthy=is_healthy), checks=3)
    assert (resume_rollout(paused, LATER).health, resume_rollout(paused, LATER).checks) == (None, 3)
    accepted = resume_rollout(paused, LATER, accept_health=True)
    assert accepted.health == HealthResult(number=3, batch=0, is_healthy=True)


def test_a_resumption_keeps_the_health_of_a_batch_that_has_begun() -> None:
    first, *rest = in_state(R.PAUSED).hosts
    begun = replace(first, state=H.WAITING, is_open=True, scheduled_at=NOW)
    health = HealthResult(number=1, batch=0, is_healthy=True)
    paused = replace(in_state(R.PAUSED), hosts=(begun, *rest), health=health, checks=1)
    assert resume_rollout(paused, LATER).health == health
