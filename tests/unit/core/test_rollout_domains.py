"""Which hosts may be in flight together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forewarn.core.inventory import Inventory
from forewarn.core.model import EventSource, Host, MaintenanceState, PowerState, Scope, ScopeKind, VirtualMachine
from forewarn.core.rollout.rollout import RolloutSpec
from forewarn.core.rollout.rollout_domains import FAULT_DOMAIN, UPDATE_DOMAIN, InventorySurvey, Occupancy, blocks_hosts
from tests.unit.core.builders import availability_set, maintenance, vm

SPEC = RolloutSpec(name="kernel", cause="host-maintenance")
HOSTS = ("h-0", "h-1", "h-2")
SCOPES = (availability_set(), availability_set("db"), Scope(name="lone", kind=ScopeKind.STANDALONE))
S = MaintenanceState


def seen(*vms: VirtualMachine, spec: RolloutSpec = SPEC, claimed: tuple[str, ...] = ()) -> InventorySurvey:
    hosts = tuple(Host(name=name) for name in HOSTS)
    return InventorySurvey(Inventory(hosts=hosts, scopes=SCOPES, vms=vms), spec, HOSTS, claimed)


def web(number: int, host: str, fault: int = 0, update: int = 0) -> VirtualMachine:
    return vm(f"web-{number}", host=host, scope="web", fault_domain=fault, update_domain=update)


def test_a_footprint_holds_running_vms_and_the_domains_of_their_scopes() -> None:
    survey = seen(
        web(0, "h-0", fault=1, update=2),
        replace(web(1, "h-0", fault=0), power_state=PowerState.DELETED),
        vm("db", host="h-0"),
        vm("x", host="h-0", scope="lone", fault_domain=5),
        web(2, "h-1"),
    )
    footprint = survey.get_footprint("h-0")
    assert footprint.vms == {"web-0", "db", "x"}
    assert footprint.domains == {(FAULT_DOMAIN, "web"): {1}, (UPDATE_DOMAIN, "web"): {2}}
    assert (len(survey.vms_of("h-0")), len(survey.vms_of("h-2")), footprint.find_split_scope()) == (3, 0, None)


@pytest.mark.parametrize(
    ("one_fault_domain", "one_update_domain", "split"),
    [
        (True, True, (FAULT_DOMAIN, "web", [0, 3])),
        (False, True, (UPDATE_DOMAIN, "web", [1, 2])),
        (False, False, None),
    ],
)
def test_only_the_domains_that_count_split_a_host(
    one_fault_domain: bool, one_update_domain: bool, split: tuple[str, str, list[int]] | None
) -> None:
    spec = replace(SPEC, one_fault_domain=one_fault_domain, one_update_domain=one_update_domain)
    survey = seen(web(0, "h-0", fault=3, update=1), web(1, "h-0", fault=0, update=2), spec=spec)
    assert survey.get_footprint("h-0").find_split_scope() == split


def test_hosts_that_share_nothing_or_one_domain_go_together() -> None:
    occupied = Occupancy(seen(web(0, "h-0", fault=1), web(1, "h-1", fault=1), vm("db", host="h-2")))
    for host in HOSTS:
        assert occupied.find_obstacle(host) is None
        occupied.add_host(host)


def test_another_domain_of_a_scope_in_flight_is_an_obstacle() -> None:
    """R61, R34."""
    occupied = Occupancy(seen(web(0, "h-0", fault=1), web(1, "h-1", fault=0), web(2, "h-2", fault=1, update=1)))
    occupied.add_host("h-0")
    assert occupied.find_obstacle("h-1") == "fault domain 1 of scope web is held by h-0"
    assert occupied.find_obstacle("h-2") == "update domain 0 of scope web is held by h-0"


def test_where_two_domains_are_in_flight_already_none_may_follow() -> None:
    """VMs may be moved so; nothing makes it worse."""
    occupied = Occupancy(seen(web(0, "h-0", fault=0), web(1, "h-0", fault=1), web(2, "h-1", fault=0)))
    occupied.add_host("h-0")
    assert occupied.find_obstacle("h-1") == "fault domain 1 of scope web is held by h-0"


def test_a_vm_that_was_moved_in_the_middle_counts_where_it_was_claimed_and_where_it_is() -> None:
    moved = web(0, "h-1", fault=1)
    claimed = replace(maintenance(replace(moved, host="h-0"), id="m-1"), hosts=("h-0",))
    occupied = Occupancy(seen(moved, web(1, "h-2", fault=0), claimed=("web-0",)))
    occupied.add_maintenance(claimed)
    assert occupied.find_obstacle("h-1") == "vm web-0 is held by maintenance m-1"
    assert occupied.find_obstacle("h-2") == "fault domain 1 of scope web is held by maintenance m-1"
    assert occupied.find_obstacle("h-0") == "it is held by maintenance m-1"


def test_a_vm_that_came_to_another_domain_in_the_middle_holds_both() -> None:
    claimed = maintenance(web(0, "h-0", fault=1), id="m-1")
    occupied = Occupancy(seen(web(0, "h-0", fault=0), web(1, "h-1", fault=0), claimed=("web-0",)))
    occupied.add_maintenance(claimed)
    assert occupied.find_obstacle("h-1") == "fault domain 1 of scope web is held by maintenance m-1"


def test_a_vm_that_was_moved_to_a_host_in_flight_holds_its_domains() -> None:
    occupied = Occupancy(seen(web(0, "h-0", fault=0), web(1, "h-1", fault=1)))
    occupied.add_host("h-0")
    assert occupied.find_obstacle("h-1") is not None


def test_a_claim_of_a_vm_that_is_gone_still_holds_its_fault_domain() -> None:
    occupied = Occupancy(seen(web(1, "h-1", fault=0), claimed=("web-0",)))
    occupied.add_maintenance(maintenance(web(0, "h-0", fault=1), id="m-1"))
    assert occupied.find_obstacle("h-1") == "fault domain 1 of scope web is held by maintenance m-1"


def test_domains_that_do_not_count_are_no_obstacle() -> None:
    spec = replace(SPEC, one_fault_domain=False, one_update_domain=False)
    occupied = Occupancy(seen(web(1, "h-1", fault=0), spec=spec, claimed=("web-0",)))
    occupied.add_maintenance(maintenance(web(0, "h-0", fault=1), vm("db", host="h-0")))
    assert occupied.find_obstacle("h-1") is None


@pytest.mark.parametrize(
    ("cause", "source", "state", "is_blocking"),
    [
        ("host-maintenance", EventSource.PLATFORM, S.QUEUED, True),
        ("host-maintenance", EventSource.PLATFORM, S.SCHEDULED, True),
        ("host-maintenance", EventSource.USER, S.SCHEDULED, False),
        ("user-restart", EventSource.USER, S.SCHEDULED, False),
        ("user-restart", EventSource.USER, S.STARTED, True),
        ("predicted-failure", EventSource.PLATFORM, S.SCHEDULED, False),
        ("hardware-failure", EventSource.PLATFORM, S.STARTED, True),
        ("host-maintenance", EventSource.PLATFORM, S.COMPLETED, False),
    ],
)
def test_others_block_when_they_are_going_on_or_come_first(
    cause: str, source: EventSource, state: MaintenanceState, is_blocking: bool
) -> None:
    """R61: a failure or a user's restart that is going on is no time to take a second fault domain."""
    assert blocks_hosts(maintenance(vm("a"), cause=cause, source=source, state=state)) is is_blocking


def test_of_several_vms_that_are_held_the_first_is_named() -> None:
    survey = seen(vm("a", host="h-1"), vm("b", host="h-1"))
    occupied = Occupancy(survey)
    occupied.add_maintenance(maintenance(vm("b"), id="m-2"))
    occupied.add_maintenance(maintenance(vm("a"), id="m-1"))
    assert occupied.find_obstacle("h-1") == "vm a is held by maintenance m-1"
