"""From a specification to batches with their estimates, and what is refused before anything happens."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.model import EventType, Host, PowerState, Scope, ScopeKind, VirtualMachine
from forewarn.core.policy import Policy
from forewarn.core.rollout.rollout import HOSTS_MAX, HostOrder, RolloutSpec
from forewarn.core.rollout.rollout_plan import RolloutPlan, check_spec, pause_after, plan_rollout
from forewarn.errors import (
    BelowMinimumNotice,
    CallerError,
    Conflict,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    QuietHoursConflict,
)
from tests.support.quiet import ALL_DAYS, quiet_hours, utc
from tests.support.world import NOW, minutes
from tests.unit.core.builders import availability_set, vm

SPEC = RolloutSpec(name="kernel", cause="host-maintenance", type=EventType.REBOOT, duration_s=300)


def fleet(*vms: VirtualMachine, hosts: int = 4, scopes: tuple[Scope, ...] = ()) -> Inventory:
    return Inventory(
        hosts=tuple(Host(name=f"h-{n}") for n in range(hosts)), scopes=scopes or (availability_set(),), vms=vms
    )


def made(inventory: Inventory, **changes: Any) -> RolloutPlan:  # noqa: ANN401 - fields of the specification
    return plan_rollout(replace(SPEC, **changes), inventory, NOW)


def batches(planned: RolloutPlan) -> list[tuple[str, ...]]:
    return [batch.hosts for batch in planned.batches]


# Order and batches


def test_all_hosts_of_the_inventory_come_one_by_one_as_listed() -> None:
    assert batches(made(fleet())) == [("h-0",), ("h-1",), ("h-2",), ("h-3",)]


def test_named_hosts_come_in_batches_as_listed() -> None:
    planned = made(fleet(), hosts=("h-3", "h-1", "h-0"), batch_size=2)
    assert batches(planned) == [("h-3", "h-1"), ("h-0",)]
    assert [batch.number for batch in planned.batches] == [0, 1]


def test_numbers_in_names_are_ordered_by_value() -> None:
    hosts = ("rack-2-h10", "rack-10-h1", "rack-2-h9", "a", "10", "9")
    inventory = Inventory(hosts=tuple(Host(name=name) for name in hosts))
    assert batches(made(inventory, order=HostOrder.NAME, batch_size=6)) == [
        ("9", "10", "a", "rack-2-h9", "rack-2-h10", "rack-10-h1")
    ]


def test_the_smallest_come_first_and_equal_ones_as_listed() -> None:
    """Only running VMs count."""
    inventory = fleet(
        vm("a", host="h-0"),
        vm("b", host="h-0"),
        vm("c", host="h-2"),
        vm("d", host="h-1", power_state=PowerState.DELETED),
    )
    assert batches(made(inventory, order=HostOrder.SMALLEST_FIRST, batch_size=4)) == [("h-1", "h-3", "h-2", "h-0")]


def test_each_canary_is_a_batch_of_its_own_before_the_others() -> None:
    planned = made(fleet(), batch_size=2, canary=("h-3", "h-1"))
    assert batches(planned) == [("h-3",), ("h-1",), ("h-0", "h-2")]
    assert [batch.is_canary for batch in planned.batches] == [True, True, False]
    assert batches(made(fleet(), hosts=("h-0", "h-1", "h-2"), canary=("h-1",))) == [("h-1",), ("h-0",), ("h-2",)]


# Rounds


def two_fault_domains() -> Inventory:
    return fleet(
        vm("web-0", host="h-0", scope="web", fault_domain=0),
        vm("web-1", host="h-1", scope="web", fault_domain=1),
        vm("web-2", host="h-2", scope="web", fault_domain=0),
        vm("db", host="h-3"),
    )


def test_hosts_of_different_fault_domains_of_a_scope_have_their_turns_apart() -> None:
    """R61."""
    planned = made(two_fault_domains(), batch_size=4, hosts_at_once=4)
    assert planned.batches[0].rounds == (("h-0", "h-2", "h-3"), ("h-1",))


def test_no_round_holds_more_hosts_than_may_be_in_flight() -> None:
    planned = made(two_fault_domains(), batch_size=4, hosts_at_once=2)
    assert planned.batches[0].rounds == (("h-0", "h-2"), ("h-1", "h-3"))


def test_hosts_of_different_update_domains_of_a_scope_have_their_turns_apart() -> None:
    """R34."""
    vms = [vm(f"web-{n}", host=f"h-{n}", scope="web", update_domain=n % 2) for n in range(4)]
    planned = made(fleet(*vms), batch_size=4, hosts_at_once=4)
    assert planned.batches[0].rounds == (("h-0", "h-2"), ("h-1", "h-3"))
    together = made(fleet(*vms), batch_size=4, hosts_at_once=4, one_update_domain=False)
    assert together.batches[0].rounds == (("h-0", "h-1", "h-2", "h-3"),)


def test_domains_of_a_standalone_scope_mean_nothing() -> None:
    vms = [vm(f"vm-{n}", host=f"h-{n}", scope="lone", fault_domain=n, update_domain=n) for n in range(2)]
    lone = Scope(name="lone", kind=ScopeKind.STANDALONE)
    planned = made(fleet(*vms, hosts=2, scopes=(lone,)), batch_size=2, hosts_at_once=2)
    assert planned.batches[0].rounds == (("h-0", "h-1"),)


# Estimates


def test_a_batch_takes_notice_and_duration_for_each_round_and_pauses_follow() -> None:
    planned = made(
        two_fault_domains(), batch_size=3, hosts_at_once=3, canary=("h-3",), canary_pause=minutes(60), pause=minutes(5)
    )
    first, second = planned.batches
    assert (first.begins_at, first.ends_at) == (NOW, NOW + minutes(20))
    assert (second.begins_at, second.ends_at) == (NOW + minutes(80), NOW + minutes(120))
    assert (planned.begins_at, planned.ends_at, planned.is_at_least) == (NOW, NOW + minutes(120), False)
    assert [batch.vms for batch in planned.batches] == [1, 3]


def test_the_pause_of_the_canaries_comes_after_the_last_of_them() -> None:
    spec = replace(SPEC, canary=("h-0", "h-1"), canary_pause=minutes(60), pause=minutes(5))
    assert [pause_after(spec, number) for number in range(4)] == [minutes(5), minutes(60), minutes(5), minutes(5)]
    assert pause_after(replace(spec, canary=()), 0) == minutes(5)


@pytest.mark.parametrize(
    ("changes", "takes", "is_at_least"),
    [
        ({"duration_s": None, "type": None}, timedelta(minutes=15, seconds=9), False),
        ({"duration_s": None}, minutes(15), True),
        ({"duration_s": -1}, minutes(15), True),
        ({"duration_s": 0}, minutes(15), False),
        ({"notice": minutes(60)}, minutes(65), False),
        ({"cause": "predicted-failure", "type": None, "duration_s": 0}, timedelta(days=7), False),
        ({"cause": "live-migration", "type": None, "duration_s": None}, timedelta(minutes=15, seconds=5), False),
        ({"one_fault_domain": False}, minutes(20), True),
    ],
)
def test_what_is_not_said_is_as_the_cause_has_it(changes: dict[str, Any], takes: timedelta, is_at_least: bool) -> None:
    planned = made(fleet(hosts=1), **changes)
    assert (planned.ends_at - NOW, planned.is_at_least) == (takes, is_at_least)


# Refused


@pytest.mark.parametrize(
    ("changes", "error", "words", "place"),
    [
        ({"cause": "magic"}, InvalidRequest, "unknown cause 'magic': expected one of live-migration", ["cause"]),
        ({"cause": "user-restart"}, InvalidRequest, "a rollout cannot be a user-restart", ["cause"]),
        ({"cause": "hardware-failure"}, InvalidRequest, "a rollout cannot be a hardware-failure", ["cause"]),
        ({"type": EventType.TERMINATE}, InvalidRequest, "cannot be a Terminate: expected one of Freeze", ["type"]),
        (
            {"cause": "live-migration"},
            InvalidRequest,
            "cause live-migration means Freeze, not Reboot",
            ["type"],
        ),
        ({"notice": minutes(14)}, BelowMinimumNotice, "notice of 14m: a Reboot needs at least 15m", ["notice"]),
        ({"hosts": ("h-0", "h-1", "h-0")}, InvalidRequest, "hosts: host 'h-0' is listed twice", ["hosts", 2]),
        ({"hosts": ()}, InvalidRequest, "hosts is empty: list some, or use 'all'", ["hosts"]),
        (
            {"hosts": tuple(f"h-{n}" for n in range(HOSTS_MAX + 1))},
            LimitExceeded,
            "20001 hosts exceed the maximum of 20000",
            ["hosts"],
        ),
        ({"canary": ("h-0", "h-0")}, InvalidRequest, "canary: host 'h-0' is listed twice", ["canary", "hosts", 1]),
        (
            {"hosts": ("h-0",), "canary": ("h-1",)},
            InvalidRequest,
            "canary: host 'h-1' is not among the hosts",
            ["canary", "hosts", 0],
        ),
        (
            {"hosts_at_once": 3, "batch_size": 2},
            InvalidRequest,
            "hosts_at_once of 3 exceeds batch_size of 2",
            ["hosts_at_once"],
        ),
        (
            {"deadline": minutes(20)},
            InvalidRequest,
            "deadline of 20m is too short: notice and duration take 20m",
            ["deadline"],
        ),
    ],
)
def test_a_specification_that_contradicts_itself_is_refused(
    changes: dict[str, Any], error: type[CallerError], words: str, place: list[Any]
) -> None:
    spec = replace(SPEC, **changes)
    with pytest.raises(error, match=words) as caught:
        check_spec(spec)
    assert caught.value.details["at"] == place
    with pytest.raises(error, match=words):
        plan_rollout(spec, fleet(), NOW)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"hosts": ("h-0", "h-8", "h-9")}, NotFound, r"host 'h-8' does not exist \(and 1 more\): see 'forewarn host"),
        ({"canary": ("h-9",)}, NotFound, "host 'h-9' does not exist: see"),
        ({"notice": timedelta(days=91)}, LimitExceeded, r"notice of 91d is more than the limit of 90d \(notice_max\)"),
        ({"pause": timedelta(days=3000)}, LimitExceeded, "would take longer than 3660d: use larger batches"),
        ({"notice": timedelta(days=90), "duration_s": 10**9}, LimitExceeded, "would take longer than 3660d"),
    ],
)
def test_what_does_not_fit_the_inventory_or_the_limits_is_refused(
    changes: dict[str, Any], error: type[CallerError], words: str
) -> None:
    with pytest.raises(error, match=words):
        made(fleet(), **changes)


def test_the_limit_on_notice_is_that_of_the_rules() -> None:
    long = replace(SPEC, notice=timedelta(days=91), hosts=("h-0",))
    assert plan_rollout(long, fleet(), NOW, rules=DecisionRules(notice_max=timedelta(days=91))).ends_at > NOW


def test_an_empty_or_a_huge_inventory_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="the inventory has no working host"):
        made(Inventory())
    with pytest.raises(LimitExceeded, match="the inventory has 20001 hosts, more than the maximum of 20000"):
        made(fleet(hosts=HOSTS_MAX + 1))


def test_a_pause_after_the_last_batch_does_not_count() -> None:
    planned = made(fleet(hosts=1), pause=timedelta(days=3660))
    assert planned.ends_at == NOW + minutes(20)


def test_a_host_that_lies_in_two_domains_by_itself_is_refused() -> None:
    """R61: it is maintained as one, so no order keeps them apart."""
    split = fleet(
        vm("web-0", host="h-1", scope="web", fault_domain=0, update_domain=4),
        vm("web-1", host="h-1", scope="web", fault_domain=1, update_domain=3),
        vm("web-2", host="h-2", scope="web", fault_domain=0, update_domain=4),
        vm("web-3", host="h-2", scope="web", fault_domain=1, update_domain=4),
    )
    with pytest.raises(Conflict, match=r"'h-1' has VMs in fault domains 0 and 1 of scope 'web' \(and 1 more") as caught:
        made(split)
    assert "set one_fault_domain: false" in caught.value.message
    assert caught.value.details == {"host": "h-1", "scope": "web", "hosts": ["h-1", "h-2"]}
    with pytest.raises(Conflict, match="update domains 3 and 4 of scope 'web': leave it out, move a VM, or set"):
        made(split, one_fault_domain=False)
    assert made(split, hosts=("h-0", "h-3")).ends_at > NOW
    assert made(split, one_fault_domain=False, one_update_domain=False).batches[1].vms == 2


def test_what_does_not_run_splits_nothing() -> None:
    inventory = fleet(
        vm("web-0", host="h-0", scope="web", fault_domain=0),
        vm("web-1", host="h-0", scope="web", fault_domain=1, power_state=PowerState.DEALLOCATED),
    )
    assert made(inventory).batches[0].vms == 1


def test_the_largest_rollout_is_planned_in_moments() -> None:
    vms = [vm(f"vm-{n}", host=f"h-{n}", scope=f"s-{n % 500}", fault_domain=n % 3) for n in range(5000)]
    scopes = tuple(availability_set(f"s-{n}") for n in range(500))
    planned = made(fleet(*vms, hosts=HOSTS_MAX, scopes=scopes), batch_size=500, hosts_at_once=100)
    assert len(planned.batches) == HOSTS_MAX // 500
    assert sum(len(hosts) for batch in planned.batches for hosts in batch.rounds) == HOSTS_MAX


# Quiet hours, and who is not warned

NIGHT = Policy(quiet_hours=(quiet_hours("sat", "10:00", "23:00", "UTC"),))
"""NOW is 10:00 of such a day."""


def test_a_host_in_quiet_hours_ends_after_them_and_those_behind_it_begin_later() -> None:
    """The estimate says what the maintenance will say: when, instead of when, and by whom."""
    web = vm("web-0", host="h-1", scope="web")
    inventory = fleet(vm("db", host="h-0"), web, hosts=3, scopes=(replace(availability_set(), policy=NIGHT),))
    planned = made(inventory)
    ends = [batch.ends_at for batch in planned.batches]
    assert ends == [NOW + minutes(20), utc("2026-11-21 23:05"), utc("2026-11-21 23:25")]
    assert planned.ends_at == utc("2026-11-21 23:25")
    (move,) = planned.batches[1].moves
    assert (move.host, move.not_before) == ("h-1", utc("2026-11-21 23:00"))
    assert (move.moved_from, move.moved_by) == (NOW + minutes(35), ("web",))
    assert (planned.batches[0].moves, planned.batches[2].moves) == ((), ())


def test_hosts_of_one_round_wait_together_for_the_last_of_them() -> None:
    lone = replace(vm("db", host="h-1"), policy=NIGHT)
    planned = made(fleet(lone, hosts=2), batch_size=2, hosts_at_once=2)
    assert [move.host for move in planned.batches[0].moves] == ["h-1"]
    assert planned.ends_at == utc("2026-11-21 23:05")


def test_what_cannot_be_put_off_is_not_moved() -> None:
    """R72."""
    lone = replace(vm("db", host="h-0"), policy=NIGHT)
    spec = RolloutSpec(name="old", cause="predicted-failure", notice=minutes(15), duration_s=0)
    planned = plan_rollout(spec, fleet(lone, hosts=1), NOW)
    assert (planned.ends_at, planned.batches[0].moves) == (NOW + minutes(15), ())


def test_a_host_without_a_calm_moment_is_refused_when_it_is_planned() -> None:
    always = Policy(quiet_hours=(quiet_hours(ALL_DAYS, "00:00", "00:00", "UTC"),))
    lone = replace(vm("db", host="h-0"), policy=always)
    with pytest.raises(QuietHoursConflict, match="host 'h-0': quiet hours of db leave no time for it"):
        made(fleet(lone, hosts=1))


def test_the_vms_that_no_event_would_warn_are_named() -> None:
    """R70c."""
    inventory = fleet(vm("a", host="h-0"), vm("b", host="h-0"), vm("c", host="h-1"), hosts=2)
    planned = plan_rollout(SPEC, inventory, NOW, would_warn=lambda name: name == "b")
    assert [batch.unwarned_vms for batch in planned.batches] == [("a",), ("c",)]
    assert [batch.unwarned_vms for batch in made(inventory).batches] == [(), ()]
